"""Checkpoint folders of the embedded engine: reading, writing, and deriving other weights.

A folder holds ``config.json``, ``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja`` and
``weights.safetensors`` (float16). One ships with the package; every other is written from it. Knows neither how
the weights are used nor how they were trained.
"""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from turnkeeper.errors import ConfigError
from turnkeeper.tiny.model import TinyShape, Weights, parameter_shapes

WEIGHTS_FILE = "weights.safetensors"
TEXT_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

DEFAULT_NOISE = 0.07
"""See `derive_weights`: changes a few in a hundred expert choices, and leaves most tasks solvable."""


class TinyCheckpoint(NamedTuple):
    """The shape of a model and its weights."""

    shape: TinyShape
    weights: Weights


def shipped_checkpoint() -> Path:
    """Return the folder of the trained checkpoint that comes with the package; read only."""
    return Path(__file__).parent / "data"


def read_weights(folder: Path) -> TinyCheckpoint:
    """Read a checkpoint folder's shape and weights.

    Raises:
        ConfigError: a file is missing or unreadable, or a tensor is not what the shape asks for.
    """
    shape = _read_shape(folder / "config.json")
    path = folder / WEIGHTS_FILE
    try:
        tensors = load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the weights {path}: {error.strerror}", hint=_HINT) from error
    except (SafetensorError, KeyError) as error:  # KeyError: a dtype that numpy does not have
        raise ConfigError(f"{path} is not a safetensors file of numpy's types: {error}", hint=_HINT) from error
    expected = parameter_shapes(shape)
    if surplus := sorted(tensors.keys() - expected.keys()):
        raise ConfigError(f"{path} holds {surplus[0]!r}, which the model of config.json does not have", hint=_HINT)
    weights: Weights = {}
    for name, size in expected.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != size or tensor.dtype.kind != "f":
            found = "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
            raise ConfigError(f"{path} needs {name} as floats {list(size)}, it holds {found}", hint=_HINT)
        weights[name] = tensor.astype(np.float32)
    return TinyCheckpoint(shape=shape, weights=weights)


def write_checkpoint(folder: Path, *, weights: Weights | None = None) -> None:
    """Write a whole checkpoint folder, replacing what it holds.

    The weights file is renamed into place last: an engine that reads the folder meanwhile sees the old weights
    or the new, never half a file.

    Args:
        folder: made when it does not exist.
        weights: of the shipped shape, stored as float16; None for the shipped ones.

    Raises:
        ConfigError: the folder cannot be written, or the weights are of another shape.
    """
    shipped = shipped_checkpoint()
    payload = (shipped / WEIGHTS_FILE).read_bytes() if weights is None else _encode(weights)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in TEXT_FILES:
            shutil.copyfile(shipped / name, folder / name)
        partial = folder / f"{WEIGHTS_FILE}.partial"
        partial.write_bytes(payload)
        partial.replace(folder / WEIGHTS_FILE)
    except OSError as error:
        raise ConfigError(f"cannot write a checkpoint to {folder}: {error.strerror}") from error


def derive_weights(weights: Weights, seed: int, scale: float = DEFAULT_NOISE) -> Weights:
    """Make other weights by seeded noise: a stand-in for what a training step changes.

    Each parameter gets normal noise of ``scale`` times the root mean square of its tensor; norms stay as they
    are. The result is rounded to float16, so that writing and reading it back changes nothing.
    """
    rng = np.random.default_rng(seed)
    derived: Weights = {}
    for name, tensor in weights.items():
        if name.endswith("norm"):
            derived[name] = tensor.copy()
            continue
        noise = rng.standard_normal(tensor.shape, dtype=np.float32)
        size = scale * np.sqrt(np.mean(np.square(tensor), dtype=np.float64))
        derived[name] = (tensor + noise * np.float32(size)).astype(np.float16).astype(np.float32)
    return derived


_HINT = "turnkeeper engine --write-checkpoint DIR writes a whole folder"


def _read_shape(path: Path) -> TinyShape:
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=_HINT) from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}", hint=_HINT) from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} has to hold a JSON object, it holds a {type(config).__name__}", hint=_HINT)
    return TinyShape.from_config(config)  # pyright: ignore[reportUnknownArgumentType] - from_config checks it


def _encode(weights: Weights) -> bytes:
    expected = parameter_shapes(_read_shape(shipped_checkpoint() / "config.json"))
    found = {name: tensor.shape for name, tensor in weights.items()}
    if found != expected:
        name = next(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise ConfigError(f"the shipped shape has {name} as {expected.get(name)}, these weights as {found.get(name)}")
    return save({name: np.ascontiguousarray(weights[name], np.float16) for name in expected})
