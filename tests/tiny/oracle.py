"""The toy transformer once more, written token by token from its definition: the oracle of the batched one."""

import numpy as np
from numpy.typing import NDArray

from turnkeeper.tiny.model import TinyShape, Weights


def naive_forward(
    shape: TinyShape, weights: Weights, ids: list[int], forced: NDArray[np.int32] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Logits [tokens, vocabulary] and experts [tokens, layers, top-k] of one sequence, in float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    heads, width, top = shape.num_attention_heads, shape.head_dim, shape.num_experts_per_tok
    x = [w["embed"][token] for token in ids]
    experts = np.zeros((len(ids), shape.num_hidden_layers, top), np.int32)
    for layer in range(shape.num_hidden_layers):
        part = {name.split(".")[2]: array for name, array in w.items() if name.startswith(f"layers.{layer}.")}
        keys, values = [], []
        for position in range(len(ids)):
            q, k, v = np.split(_norm(x[position], part["attn_norm"]) @ part["qkv"], 3)
            keys.append([_turn(k[h * width : (h + 1) * width], position, shape.rope_theta) for h in range(heads)])
            values.append([v[h * width : (h + 1) * width] for h in range(heads)])
            mixed = []
            for h in range(heads):
                query = _turn(q[h * width : (h + 1) * width], position, shape.rope_theta)
                scores = np.array([query @ keys[p][h] for p in range(position + 1)]) / np.sqrt(width)
                share = np.exp(scores - scores.max())
                share /= share.sum()
                mixed.append(sum(share[p] * values[p][h] for p in range(position + 1)))
            x[position] = x[position] + np.concatenate(mixed) @ part["attn_out"]
        for position in range(len(ids)):
            h = _norm(x[position], part["moe_norm"])
            router = h @ part["router"]
            share = np.exp(router - router.max())
            share /= share.sum()
            ranked = sorted(range(len(share)), key=lambda e: (-share[e], e))[:top]
            chosen = ranked if forced is None else [int(e) for e in forced[position, layer]]
            experts[position, layer] = chosen
            total = sum(share[e] for e in chosen)
            for e in chosen:
                gate, up = np.split(h @ part["experts_in"][e], 2)
                x[position] = x[position] + share[e] / total * (
                    (gate / (1 + np.exp(-gate)) * up) @ part["experts_out"][e]
                )
    return np.array([_norm(row, w["final_norm"]) @ w["embed"].T for row in x]), experts


def _norm(x: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    return x / np.sqrt((x * x).mean() + 1e-6) * weight


def _turn(x: NDArray[np.float64], position: int, theta: float) -> NDArray[np.float64]:
    half = len(x) // 2
    out = np.empty_like(x)
    for i in range(half):
        angle = position * theta ** (-i / half)
        out[i] = x[i] * np.cos(angle) - x[i + half] * np.sin(angle)
        out[i + half] = x[i + half] * np.cos(angle) + x[i] * np.sin(angle)
    return out
