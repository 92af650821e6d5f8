"""The toy mixture-of-experts transformer: one forward over the new tokens of several sequences.

The tokens of all sequences go through the matrices together; only attention looks at each sequence by itself,
over exactly its own positions. No product ever has a single row (BLAS would add up in another order), so on the
kernels seen so far a token's numbers do not depend on what else is in the batch.

Knows tokens and weights. Knows no text, no sampling, no requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import threadpoolctl
from numpy.typing import NDArray

from turnkeeper.errors import ConfigError
from turnkeeper.tiny.model.cache import SequenceKV
from turnkeeper.tiny.model.shape import TinyShape, Weights, parameter_shapes

_EPSILON = np.float32(1e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """New tokens of one sequence, to be computed behind what its buffer holds."""

    ids: NDArray[np.int32]
    """[n], n >= 1."""

    kv: SequenceKV
    """What came before; the forward appends the n positions to it."""

    experts: NDArray[np.int32] | None = None
    """[n, layers, top-k] experts to use instead of the router's own choice; its probabilities still weigh them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """The results of one forward pass, one after the other for each chunk."""

    logits: NDArray[np.float32]
    """[chunks, vocabulary], of each chunk's last token; [tokens, vocabulary] when every position was asked for."""

    experts: NDArray[np.int32]
    """[tokens, layers, top-k], most probable expert first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attn_norm: NDArray[np.float32]
    qkv: NDArray[np.float32]
    attn_out: NDArray[np.float32]
    moe_norm: NDArray[np.float32]
    router: NDArray[np.float32]
    experts_in: NDArray[np.float32]
    experts_out: NDArray[np.float32]


class TinyModel:
    """The weights, ready to compute with. One model may serve many buffers, one forward at a time."""

    def __init__(self, shape: TinyShape, weights: Weights) -> None:
        """Check and take over the weights.

        Raises:
            ConfigError: a parameter is missing or has another shape; the first one is named.
        """
        for name, size in parameter_shapes(shape).items():
            found = weights[name].shape if name in weights else None
            if found != size:
                raise ConfigError(f"weights need {name} of shape {list(size)}, found {found and list(found)}")
        threadpoolctl.threadpool_limits(limits=1, user_api="blas")  # matrices this small only lose by threads
        self.shape = shape
        ready = {name: np.ascontiguousarray(weights[name], np.float32) for name in parameter_shapes(shape)}
        self._embed = ready["embed"]
        self._output = np.ascontiguousarray(self._embed.T)
        self._final_norm = ready["final_norm"]
        names = _Layer.__dataclass_fields__
        self._layers = [
            _Layer(**{name: ready[f"layers.{layer}.{name}"] for name in names})
            for layer in range(shape.num_hidden_layers)
        ]
        half = shape.head_dim // 2
        frequencies = shape.rope_theta ** (-np.arange(half) / half)
        angles = np.outer(np.arange(shape.max_position_embeddings), frequencies)
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)

    def new_kv(self, capacity: int = 0) -> SequenceKV:
        """Make an empty buffer for a sequence of this model."""
        return SequenceKV(self.shape, capacity)

    def forward(self, chunks: Sequence[Chunk], *, stamp: int = 0, every_position: bool = False) -> Forward:
        """Compute the chunks' tokens and append them to their buffers.

        Args:
            chunks: one or more, each with a buffer of its own.
            stamp: names the weights; written beside each new position.
            every_position: whether logits of all tokens are wanted, not only of each chunk's last.

        Raises:
            ValueError: a sequence would be longer than the model has positions; nothing was changed.
        """
        ends = np.cumsum([len(chunk.ids) for chunk in chunks])
        spans = [slice(int(end) - len(chunk.ids), int(end)) for chunk, end in zip(chunks, ends, strict=True)]
        for chunk in chunks:
            chunk.kv.reserve(chunk.kv.length + len(chunk.ids))
        positions = np.concatenate([np.arange(c.kv.length, c.kv.length + len(c.ids)) for c in chunks])
        forced = self._forced(chunks)
        x = self._embed[np.concatenate([chunk.ids for chunk in chunks])]
        experts = np.empty((len(x), self.shape.num_hidden_layers, self.shape.num_experts_per_tok), np.int32)
        for index, layer in enumerate(self._layers):
            x = x + self._attention(index, layer, _rms_norm(x, layer.attn_norm), positions, chunks, spans)
            choice = None if forced is None else forced[:, index]
            mixed, experts[:, index] = self._mixture(layer, _rms_norm(x, layer.moe_norm), choice)
            x = x + mixed
        for chunk, span in zip(chunks, spans, strict=True):
            start, end = chunk.kv.length, chunk.kv.length + len(chunk.ids)
            chunk.kv.experts[start:end] = experts[span]
            chunk.kv.stamps[start:end] = stamp
            chunk.kv.length = end
        wanted = x if every_position else x[ends - 1]
        return Forward(logits=_product(_rms_norm(wanted, self._final_norm), self._output), experts=experts)

    def _forced(self, chunks: Sequence[Chunk]) -> NDArray[np.int32] | None:
        given = [chunk.experts for chunk in chunks if chunk.experts is not None]
        if not given:
            return None
        if len(given) != len(chunks):
            raise ValueError("give experts for every chunk of a forward, or for none")
        return np.concatenate(given)

    def _attention(
        self,
        index: int,
        layer: _Layer,
        h: NDArray[np.float32],
        positions: NDArray[np.int64],
        chunks: Sequence[Chunk],
        spans: Sequence[slice],
    ) -> NDArray[np.float32]:
        heads, width = self.shape.num_attention_heads, self.shape.head_dim
        qkv = _product(h, layer.qkv).reshape(len(h), 3, heads, width)
        rotated = _rotate(qkv[:, :2], self._cos[positions, None, None], self._sin[positions, None, None])
        queries = rotated[:, 0] * np.float32(width**-0.5)
        out = np.empty((len(h), heads, width), np.float32)
        for chunk, span in zip(chunks, spans, strict=True):
            start, end = chunk.kv.length, chunk.kv.length + len(chunk.ids)
            keys, values = chunk.kv.keys[index], chunk.kv.values[index]
            keys[:, start:end] = rotated[span, 1].swapaxes(0, 1)
            values[:, start:end] = qkv[span, 2].swapaxes(0, 1)
            attended = _attend(queries[span].swapaxes(0, 1), keys[:, :end], values[:, :end])
            out[span] = attended.swapaxes(0, 1)
        return _product(out.reshape(len(h), heads * width), layer.attn_out)

    def _mixture(
        self, layer: _Layer, h: NDArray[np.float32], forced: NDArray[np.int32] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Compute the experts' weighted sum [n, D] and the experts [n, K]: pairs are sorted by expert, then put
        back."""
        count = self.shape.num_experts_per_tok
        probabilities = softmax(_product(h, layer.router))
        top = np.argsort(-probabilities, axis=-1, kind="stable")[:, :count] if forced is None else forced
        weights = np.take_along_axis(probabilities, top, axis=-1)
        weights /= weights.sum(axis=-1, keepdims=True)
        order = np.argsort(top, axis=None, kind="stable")
        bounds = np.concatenate(([0], np.cumsum(np.bincount(top.ravel(), minlength=self.shape.num_experts))))
        groups = [
            (e, slice(bounds[e], bounds[e + 1])) for e in range(self.shape.num_experts) if bounds[e] < bounds[e + 1]
        ]
        pairs = h[order // count]
        hidden = np.empty((len(pairs), 2 * self.shape.moe_intermediate_size), np.float32)
        for expert, span in groups:
            hidden[span] = _product(pairs[span], layer.experts_in[expert])
        gate, up = np.split(hidden, 2, axis=-1)
        with np.errstate(over="ignore"):  # the exponential of a very negative gate is infinite, its quotient zero
            active = gate / (np.float32(1) + np.exp(-gate)) * up
        sorted_out = np.empty_like(pairs)
        for expert, span in groups:
            sorted_out[span] = _product(active[span], layer.experts_out[expert])
        out = np.empty_like(pairs)
        out[order] = sorted_out
        mixed = (out.reshape(len(h), count, -1) * weights[:, :, None]).sum(axis=1)
        return mixed, top.astype(np.int32)


def softmax(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities over the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _product(x: NDArray[np.float32], matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """x @ matrix, with one row computed as two: a lone row takes another BLAS path, with other roundings."""
    return x @ matrix if len(x) > 1 else (x.repeat(2, axis=0) @ matrix)[:1]


def _rms_norm(x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    scale = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + _EPSILON)
    return (x / scale * weight).astype(np.float32, copy=False)


def _rotate(x: NDArray[np.float32], cos: NDArray[np.float32], sin: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rotary positions: the first half of each head turns against its second half."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    out = np.empty_like(x)
    out[..., :half] = first * cos - second * sin
    out[..., half:] = second * cos + first * sin
    return out


def _attend(
    queries: NDArray[np.float32], keys: NDArray[np.float32], values: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Causal attention [heads, n, width] of the last n positions of T over all T: queries come scaled."""
    count, total = queries.shape[1], keys.shape[1]
    scores = queries @ keys.swapaxes(1, 2)
    if count > 1:
        scores[:, np.triu(np.ones((count, total), bool), total - count + 1)] = -np.inf
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (powers @ values) / powers.sum(axis=-1, keepdims=True)
