"""The shape of the toy transformer.

1. A config.json written from a shape reads back as that shape.
2. A config of another model, or one that lacks a size or has a malformed one, is refused by name.
3. Seeded weights have the shapes that are declared and repeat from their seed.
"""

import numpy as np
import pytest

from turnkeeper.errors import ConfigError
from turnkeeper.tiny.model import TinyShape, init_weights, parameter_shapes


def test_a_config_reads_back_as_its_shape() -> None:
    shape = TinyShape(vocab_size=700, eos_token_id=3)
    assert TinyShape.from_config(shape.as_config()) == shape


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"model_type": "llama"}, "llama", id="another model"),
        pytest.param({"vocab_size": None}, "vocab_size", id="missing size"),
        pytest.param({"hidden_size": "128"}, "hidden_size", id="a string"),
        pytest.param({"hidden_size": 128.5}, "hidden_size", id="not whole"),
        pytest.param({"num_experts": True}, "num_experts", id="a boolean"),
        pytest.param({"hidden_size": 130}, "heads", id="heads do not divide"),
        pytest.param({"num_experts_per_tok": 9}, "9 experts", id="more experts than there are"),
    ],
)
def test_a_config_that_makes_no_model_is_refused(change: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        TinyShape.from_config(TinyShape().as_config() | change)


def test_weights_have_the_declared_shapes_and_repeat_from_their_seed() -> None:
    shape = TinyShape()
    first, again, other = init_weights(shape, 1), init_weights(shape, 1), init_weights(shape, 2)
    assert {name: array.shape for name, array in first.items()} == parameter_shapes(shape)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["embed"], other["embed"])


def test_the_model_fits_the_package() -> None:
    count = sum(int(np.prod(size)) for size in parameter_shapes(TinyShape()).values())
    assert 1_500_000 < count < 2_000_000, "at most 4 MB as float16"
