"""The model of the embedded engine: its shape, its weights' names, its forward pass and its KV cache."""

from turnkeeper.tiny.model.cache import PrefixCache, SequenceKV
from turnkeeper.tiny.model.shape import TinyShape, Weights, init_weights, parameter_shapes
from turnkeeper.tiny.model.transformer import Chunk, TinyModel

__all__ = [
    "Chunk",
    "PrefixCache",
    "SequenceKV",
    "TinyModel",
    "TinyShape",
    "Weights",
    "init_weights",
    "parameter_shapes",
]
