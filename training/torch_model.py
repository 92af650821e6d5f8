"""The embedded engine's transformer in torch, for training and replaying; the numpy one in the package is what serves.

Every conversation of the training data starts with the same system message. Its keys and values are computed once
a step and shared by the whole batch, which halves the work.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from turnkeeper.tiny.model import TinyShape, Weights, parameter_shapes

NORM_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Episodes one behind the other, without padding: N tokens of B episodes, at most `length` long."""

    episodes: int
    length: int
    ids_N: Tensor
    places_N: Tensor
    """Where each token stands in a padded, flattened [B * length]."""
    selected: Tensor
    """Of which tokens the successor is to be predicted, as indices into N."""
    targets: Tensor
    """These successors."""
    owners: Tensor
    """Which episode each target belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one forward pass gives."""

    logits: Tensor
    """[targets, V]."""
    balance: Tensor
    """How unevenly the experts are used, mean over layers: 1 when all are used alike, E when only one is."""
    loads_LE: Tensor
    """The share of assignments each expert of each layer got."""


class TorchModel(nn.Module):
    """Parameters with the names and shapes of the checkpoint."""

    def __init__(self, shape: TinyShape, seed: int) -> None:
        super().__init__()
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterDict()
        for name, size in parameter_shapes(shape).items():
            self.weights[name.replace(".", "/")] = nn.Parameter(_draw(name, size, shape, generator))

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[name.replace(".", "/")]

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Take over the weights of a checkpoint."""
        for name, tensor in weights.items():
            self[name].copy_(torch.from_numpy(tensor))

    def forward(self, prefix_P: Tensor, batch: Batch, experts_PNLK: Tensor | None = None) -> Output:
        """Predict the batch's targets behind the shared start `prefix_P` (ids).

        Args:
            prefix_P: the ids that all episodes begin with.
            batch: the episodes behind them.
            experts_PNLK: the experts that each token goes to, prefix first; None leaves the choice to the router.
        """
        start, length = len(prefix_P), batch.length
        # Prefix and suffixes stand in one matrix [P + N, D] for all but attention, without any padding.
        x = self["embed"][torch.cat([prefix_P, batch.ids_N])]
        rotation = _rotation(start + length, self.shape)
        mask = torch.ones(length, start + length, dtype=torch.bool).tril(start)
        balances: list[Tensor] = []
        loads: list[Tensor] = []
        for layer in range(self.shape.num_hidden_layers):
            h = _norm(x, self[f"layers.{layer}.attn_norm"]) @ self[f"layers.{layer}.qkv"]
            x = x + _attend(h, start, batch, rotation, mask, self.shape) @ self[f"layers.{layer}.attn_out"]
            chosen = None if experts_PNLK is None else experts_PNLK[:, layer]
            mixed, balance, load = self._mix_experts(_norm(x, self[f"layers.{layer}.moe_norm"]), layer, chosen)
            x = x + mixed
            balances.append(balance)
            loads.append(load)
        logits = _norm(x[start:][batch.selected], self["final_norm"]) @ self["embed"].T
        return Output(logits=logits, balance=torch.stack(balances).mean(), loads_LE=torch.stack(loads))

    def _mix_experts(self, h: Tensor, layer: int, forced: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        experts, k = self.shape.num_experts, self.shape.num_experts_per_tok
        probs = functional.softmax(h @ self[f"layers.{layer}.router"], dim=-1)
        top, chosen = probs.topk(k, dim=-1) if forced is None else (probs.gather(-1, forced), forced)
        top = top / top.sum(dim=-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=experts)
        gathered = h[order // k].split(counts.tolist())
        w_in, w_out = self[f"layers.{layer}.experts_in"], self[f"layers.{layer}.experts_out"]
        results: list[Tensor] = []
        for expert, inputs in enumerate(gathered):
            gate, up = (inputs @ w_in[expert]).chunk(2, dim=-1)
            results.append((functional.silu(gate) * up) @ w_out[expert])
        weighted = torch.cat(results) * top.flatten()[order, None]
        mixed = torch.zeros_like(h).index_add(0, order // k, weighted)
        load = counts / counts.sum()
        return mixed, experts * (load * probs.mean(dim=0)).sum(), load


def _draw(name: str, size: tuple[int, ...], shape: TinyShape, generator: torch.Generator) -> Tensor:
    if name.endswith("norm"):
        return torch.ones(size)
    if name == "embed":
        return torch.randn(size, generator=generator) * 0.05
    scale = 1 / math.sqrt(size[-2])
    if name.endswith(("attn_out", "experts_out")):  # what is added to the residual stream starts small
        scale /= math.sqrt(2 * shape.num_hidden_layers)
    return torch.randn(size, generator=generator) * scale


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, NORM_EPSILON)


def _rotation(length: int, shape: TinyShape) -> tuple[Tensor, Tensor]:
    half = shape.head_dim // 2
    angles = torch.arange(length)[:, None] * shape.rope_theta ** (-torch.arange(half) / half)
    return torch.cat([angles.cos()] * 2, dim=-1), torch.cat([angles.sin()] * 2, dim=-1)


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor], first: int) -> Tensor:
    cos, sin = (table[first : first + x.shape[-2]] for table in rotation)
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def _attend(
    qkv: Tensor, start: int, batch: Batch, rotation: tuple[Tensor, Tensor], mask: Tensor, shape: TinyShape
) -> Tensor:
    """Attention of the prefix to itself, and of each suffix to the prefix and itself: [P + N, 3D] -> [P + N, D]."""

    def split(rows: Tensor, count: int, first: int) -> tuple[Tensor, Tensor, Tensor]:
        parts = rows.view(count, -1, 3, shape.num_attention_heads, shape.head_dim).permute(2, 0, 3, 1, 4)
        return _rotate(parts[0], rotation, first), _rotate(parts[1], rotation, first), parts[2]

    def join(heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).reshape(-1, shape.hidden_size)

    q, k, v = split(qkv[:start], 1, 0)
    padded = qkv.new_zeros(batch.episodes * batch.length, qkv.shape[-1]).index_copy(0, batch.places_N, qkv[start:])
    q_s, k_s, v_s = split(padded, batch.episodes, start)
    k_all = torch.cat([k.expand(batch.episodes, -1, -1, -1), k_s], dim=2)
    v_all = torch.cat([v.expand(batch.episodes, -1, -1, -1), v_s], dim=2)
    prefix = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    suffix = functional.scaled_dot_product_attention(q_s, k_all, v_all, attn_mask=mask)
    return torch.cat([join(prefix), join(suffix)[batch.places_N]])
