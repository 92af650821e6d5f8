"""Checkpoint folders of the embedded engine.

1. The shipped checkpoint is whole, of the shape of its config, and under four megabytes.
2. A written checkpoint reads back as what was written; writing over one replaces it.
3. Derived weights are others, the same for the same seed, and survive writing and reading bit for bit.
4. A derived checkpoint chooses other experts for at least one in twenty choices of real prompts.
5. A folder that cannot be read or written is a `ConfigError` that says what is wrong.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from training.episodes import encode_episodes, system_text
from turnkeeper.demo.tasks import held_out_tasks
from turnkeeper.errors import ConfigError
from turnkeeper.tiny.checkpoint import derive_weights, read_weights, shipped_checkpoint, write_checkpoint
from turnkeeper.tiny.model import Chunk, TinyModel, TinyShape, Weights, init_weights, parameter_shapes

SHIPPED = shipped_checkpoint()
NAMES = {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "weights.safetensors"}


def _assert_equal(left: Weights, right: Weights) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        np.testing.assert_array_equal(tensor, right[name], err_msg=name)


def test_the_shipped_checkpoint_is_whole_and_small() -> None:
    assert {path.name for path in SHIPPED.iterdir()} == NAMES
    assert (SHIPPED / "weights.safetensors").stat().st_size < 4_000_000
    shape, weights = read_weights(SHIPPED)
    assert shape == TinyShape.from_config(json.loads((SHIPPED / "config.json").read_text()))
    assert {name: tensor.shape for name, tensor in weights.items()} == parameter_shapes(shape)
    assert all(tensor.dtype == np.float32 and np.isfinite(tensor).all() for tensor in weights.values())
    assert {tensor.dtype for tensor in load_file(SHIPPED / "weights.safetensors").values()} == {np.dtype(np.float16)}


def test_the_shipped_checkpoint_is_written_as_it_is(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "new" / "folder")
    for name in NAMES:
        assert (tmp_path / "new" / "folder" / name).read_bytes() == (SHIPPED / name).read_bytes()


def test_writing_again_replaces_the_weights(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    shape, weights = read_weights(tmp_path)
    derived = derive_weights(weights, seed=1)
    write_checkpoint(tmp_path, weights=derived)
    assert {path.name for path in tmp_path.iterdir()} == NAMES
    found = read_weights(tmp_path)
    assert found.shape == shape
    _assert_equal(found.weights, derived)


def test_derived_weights_are_others_for_each_seed() -> None:
    weights = init_weights(TinyShape(), seed=0)
    first, again, other = derive_weights(weights, 1), derive_weights(weights, 1), derive_weights(weights, 2)
    _assert_equal(first, again)
    for name, tensor in weights.items():
        is_norm = name.endswith("norm")
        assert (first[name] == tensor).all() == is_norm
        assert (first[name] == other[name]).all() == is_norm
        assert first[name].shape == tensor.shape


def test_the_scale_sets_the_size_of_the_noise() -> None:
    weights = init_weights(TinyShape(), seed=0)
    for scale in (0.02, 0.2):
        change = derive_weights(weights, 5, scale)["embed"] - weights["embed"]
        assert change.std() == pytest.approx(scale * weights["embed"].std(), rel=0.05)


def test_a_derived_checkpoint_routes_real_prompts_otherwise() -> None:
    """Counted as sets: a pair of experts whose order changed is no other choice."""
    shape, weights = read_weights(SHIPPED)
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    start = tokenizer.encode(system_text()).ids
    prompts = [start + episode.ids for episode in encode_episodes(tokenizer, held_out_tasks(8, seed=0), seed=0)]

    def route(model: TinyModel) -> np.ndarray:
        chunks = [Chunk(ids=np.array(ids, np.int32), kv=model.new_kv()) for ids in prompts]
        experts = model.forward(chunks).experts
        return (experts[..., None] == np.arange(shape.num_experts)).any(axis=-2)

    shipped = route(TinyModel(shape, weights))
    for seed in (1, 2):
        kept = shipped & route(TinyModel(shape, derive_weights(weights, seed)))
        assert kept.sum() <= 0.95 * shipped.sum()
        assert kept.sum() >= 0.5 * shipped.sum()


def test_every_expert_of_the_shipped_checkpoint_is_used() -> None:
    shape, weights = read_weights(SHIPPED)
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    model = TinyModel(shape, weights)
    episodes = encode_episodes(tokenizer, held_out_tasks(8, seed=1), seed=0)
    experts = model.forward([Chunk(ids=np.array(e.ids, np.int32), kv=model.new_kv()) for e in episodes]).experts
    for layer in range(shape.num_hidden_layers):
        loads = np.bincount(experts[:, layer].ravel(), minlength=shape.num_experts) / experts[:, layer].size
        assert loads.min() > 0.01


def _drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def _change(name: str, tensor: np.ndarray | None) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "weights.safetensors")
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
        save_file(tensors, folder / "weights.safetensors")

    return apply


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_drop("config.json"), r"cannot read .*config\.json: No such file"),
        (_write("config.json", "{"), r"config\.json is not JSON"),
        (_write("config.json", "[]"), "has to hold a JSON object, it holds a list"),
        (_write("config.json", '{"model_type": "qwen3"}'), "this checkpoint is 'qwen3'"),
        (_drop("weights.safetensors"), "cannot read the weights .*: No such file"),
        (_write("weights.safetensors", "no tensors"), "is not a safetensors file"),
        (_change("final_norm", None), r"needs final_norm as floats \[128\], it holds nothing"),
        (_change("final_norm", np.ones(64, np.float16)), r"final_norm as floats \[128\], it holds float16 \[64\]"),
        (_change("final_norm", np.ones(128, np.int32)), r"final_norm as floats \[128\], it holds int32 \[128\]"),
        (_change("lm_head", np.ones(1, np.float16)), "holds 'lm_head', which the model of config.json does not have"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_harmed_folder_is_refused(harm: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    harm(tmp_path)
    with pytest.raises(ConfigError, match=message):
        read_weights(tmp_path)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write a checkpoint to .*file"):
        write_checkpoint(tmp_path / "file")


def test_weights_of_another_shape_are_not_written(tmp_path: Path) -> None:
    other = init_weights(TinyShape(num_hidden_layers=3), seed=0)
    with pytest.raises(ConfigError, match=r"the shipped shape has layers\.3\."):
        write_checkpoint(tmp_path / "folder", weights=other)
    assert not (tmp_path / "folder").exists()
