"""The sizes of routing rows.

1. They come from `config.json`, `text_config` before the outer keys, under the names that model families use.
2. Given values win; half-known sizes and impossible ones are configuration errors that name the flags.
3. A config that speaks of no experts is a dense model: None.
"""

from typing import Any

import pytest

from turnkeeper.channels.routing import RoutingShape, read_routing_shape
from turnkeeper.errors import ConfigError

QWEN3 = {"num_hidden_layers": 48, "num_experts_per_tok": 8, "num_experts": 128}
GLM = {"num_hidden_layers": 92, "num_experts_per_tok": 8, "n_routed_experts": 160}
MINIMAX = {"num_hidden_layers": 62, "num_experts_per_tok": 8, "num_local_experts": 256}
KIMI = {"num_hidden_layers": 2, "text_config": {**GLM, "num_hidden_layers": 61, "n_routed_experts": 384}}


@pytest.mark.parametrize(
    ("config", "sizes"),
    [(QWEN3, (48, 8, 128)), (GLM, (92, 8, 160)), (MINIMAX, (62, 8, 256)), (KIMI, (61, 8, 384))],
    ids=["num_experts", "n_routed_experts", "num_local_experts", "text_config"],
)
def test_sizes_are_read_from_the_checkpoint(config: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    shape = read_routing_shape(config)
    assert shape == RoutingShape(layers=sizes[0], topk=sizes[1], experts=sizes[2])
    assert shape.row_ids == sizes[0] * sizes[1]


def test_given_sizes_win_over_the_checkpoint() -> None:
    shape = read_routing_shape(QWEN3, layers=4, topk=2, experts=16)
    assert shape == RoutingShape(layers=4, topk=2, experts=16)


def test_a_dense_model_has_no_shape() -> None:
    assert read_routing_shape({"num_hidden_layers": 28, "text_config": None}) is None


def test_sizes_that_are_half_known_name_the_missing_flags() -> None:
    with pytest.raises(ConfigError, match="--num-layers, --moe-router-topk unknown") as caught:
        read_routing_shape({"num_experts": 8})
    assert "--num-layers N --moe-router-topk N" in caught.value.hint


@pytest.mark.parametrize("value", ["8", 8.0, True, 0, -1], ids=["text", "float", "bool", "zero", "negative"])
def test_a_size_that_is_no_positive_whole_number_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="--moe-router-topk must be a positive whole number"):
        read_routing_shape({**QWEN3, "num_experts_per_tok": value})


@pytest.mark.parametrize(
    ("layers", "topk", "experts"),
    [(0, 1, 2), (1, 0, 2), (1, 3, 2), (1, 1, 65537)],
    ids=["no-layer", "no-choice", "more-choices-than-experts", "too-many-experts"],
)
def test_an_impossible_shape_does_not_exist(layers: int, topk: int, experts: int) -> None:
    with pytest.raises(ConfigError, match="1 <= topk <= experts"):
        RoutingShape(layers=layers, topk=topk, experts=experts)
