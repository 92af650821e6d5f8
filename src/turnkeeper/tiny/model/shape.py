"""The shape of the toy transformer: its sizes, the names of its parameters, seeded weights.

Knows no files and no forward pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.errors import ConfigError

MODEL_TYPE = "turnkeeper_tiny"

Weights = dict[str, NDArray[np.float32]]
"""Parameters by name, float32 in memory; `parameter_shapes` lists names and shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """The sizes of one checkpoint, as its ``config.json`` states them."""

    vocab_size: int = 768
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 128
    rope_theta: float = 10000.0
    max_position_embeddings: int = 4096
    eos_token_id: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that make no model."""
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ConfigError(
                f"hidden_size {self.hidden_size} does not split into {self.num_attention_heads} heads of even size"
            )
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ConfigError(f"{self.num_experts_per_tok} experts per token, but the model has {self.num_experts}")

    @property
    def head_dim(self) -> int:
        """The width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "TinyShape":
        """Read a ``config.json``.

        Raises:
            ConfigError: another model type, or a missing or malformed size.
        """
        if config.get("model_type") != MODEL_TYPE:
            raise ConfigError(
                f"the embedded engine runs model_type {MODEL_TYPE!r}, this checkpoint is {config.get('model_type')!r}",
                hint="turnkeeper engine --write-checkpoint DIR writes one that it can run",
            )
        sizes: dict[str, Any] = {}
        for name, kind in _FIELDS.items():
            value = config.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value != kind(value) or value < 0:
                raise ConfigError(f"config.json needs {name} as a number, got {value!r}")
            sizes[name] = kind(value)
        return cls(**sizes)

    def as_config(self) -> dict[str, Any]:
        """Return the ``config.json`` that `from_config` reads back."""
        sizes = {name: getattr(self, name) for name in _FIELDS}
        return {"model_type": MODEL_TYPE, **sizes, "tie_word_embeddings": True}


_FIELDS: dict[str, type[int] | type[float]] = {
    "vocab_size": int,
    "hidden_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "num_experts": int,
    "num_experts_per_tok": int,
    "moe_intermediate_size": int,
    "rope_theta": float,
    "max_position_embeddings": int,
    "eos_token_id": int,
}


def parameter_shapes(shape: TinyShape) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every parameter, in the order they are written.

    V is the vocabulary, D the hidden size, E the experts, H an expert's hidden size: ``embed`` [V, D], per layer
    ``attn_norm`` [D], ``qkv`` [D, 3D], ``attn_out`` [D, D], ``moe_norm`` [D], ``router`` [D, E], ``experts_in``
    [E, D, 2H] (gate, then up), ``experts_out`` [E, H, D], and ``final_norm`` [D]. Everything is used as x @ W;
    the embedding is also the output matrix.
    """
    d, e, h = shape.hidden_size, shape.num_experts, shape.moe_intermediate_size
    shapes: dict[str, tuple[int, ...]] = {"embed": (shape.vocab_size, d)}
    for layer in range(shape.num_hidden_layers):
        shapes |= {
            f"layers.{layer}.attn_norm": (d,),
            f"layers.{layer}.qkv": (d, 3 * d),
            f"layers.{layer}.attn_out": (d, d),
            f"layers.{layer}.moe_norm": (d,),
            f"layers.{layer}.router": (d, e),
            f"layers.{layer}.experts_in": (e, d, 2 * h),
            f"layers.{layer}.experts_out": (e, h, d),
        }
    return shapes | {"final_norm": (d,)}


def init_weights(shape: TinyShape, seed: int) -> Weights:
    """Draw untrained weights: norms are one, matrices normal with the scale that keeps activations near one."""
    rng = np.random.default_rng(seed)
    weights: Weights = {}
    for name, size in parameter_shapes(shape).items():
        if name.endswith("norm"):
            weights[name] = np.ones(size, np.float32)
            continue
        fan_in = size[-1] if name == "embed" else size[-2]
        weights[name] = (rng.standard_normal(size) / np.sqrt(fan_in)).astype(np.float32)
    return weights
