"""The sample that a trainer gets for one path, with the attribute names of the sample in radixark/miles.

Knows neither how a sample is made nor how it travels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels import CHANNELS
from turnkeeper.errors import AssemblyError
from turnkeeper.jsontypes import JsonObject

Reward: TypeAlias = float | Mapping[str, Any]
"""A number, or an object of named numbers of which the trainer takes one."""


OWN_KEY = "turnkeeper"
"""The key under which all metadata of ours stands, in a sample and in a session."""
OWNED_KEYS = ("accumulated_token_ids", "tito_session_mismatch", "leaf", OWN_KEY)
"""Metadata of a sample that only the server writes."""


class SampleStatus(StrEnum):
    """The way in which a path ended. A member equals any other enum's member of the same value, as trainers expect."""

    PENDING = "pending"
    """The engine withheld text, so the completion may be incomplete."""
    COMPLETED = "completed"
    """The last completion ended with a stop token or a stop string."""
    TRUNCATED = "truncated"
    """A token budget ended the last completion."""
    ABORTED = "aborted"
    """The generation was cut off."""
    FAILED = "failed"
    """A hook marked the sample as failed."""

    def __eq__(self, other: object) -> bool:
        """Return True for an equal value, whichever enum the other belongs to."""
        return self.value == (other.value if isinstance(other, Enum) else other)

    def __hash__(self) -> int:
        """Return the hash of the value."""
        return hash(self.value)


@dataclass(slots=True, kw_only=True)
class PrefixCacheInfo:
    """The prompt tokens that the engine took from its prefix cache, summed over the turns."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    @property
    def prefix_cache_hit_rate(self) -> float:
        """The share of prompt tokens that were cached; 0.0 without a prompt."""
        return self.cached_tokens / self.total_prompt_tokens if self.total_prompt_tokens else 0.0

    def to_dict(self) -> JsonObject:
        """Return the counters as the wire has them."""
        return {"cached_tokens": self.cached_tokens, "total_prompt_tokens": self.total_prompt_tokens}


@dataclass(slots=True, kw_only=True)
class SpecInfo:
    """Speculative decoding counters, summed over the turns; zeros without speculation."""

    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0

    @property
    def spec_accept_rate(self) -> float:
        """The share of drafted tokens that were accepted; 0.0 without drafts."""
        return self.spec_accept_token_num / self.spec_draft_token_num if self.spec_draft_token_num else 0.0

    @property
    def spec_accept_length(self) -> float:
        """The completion tokens per verification; 0.0 without one."""
        return self.completion_token_num / self.spec_verify_ct if self.spec_verify_ct else 0.0

    def to_dict(self) -> JsonObject:
        """Return the counters as the wire has them."""
        return {
            "spec_accept_token_num": self.spec_accept_token_num,
            "spec_draft_token_num": self.spec_draft_token_num,
            "spec_verify_ct": self.spec_verify_ct,
            "completion_token_num": self.completion_token_num,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """Tokens and everything parallel to them. T tokens, of which the last R follow the first prompt."""

    tokens: NDArray[np.int64]
    """Shape [T]: the first prompt, then completions and the prompts between them."""
    loss_mask: NDArray[np.uint8]
    """Shape [R]: 1 where the token was sampled here and trains."""
    rollout_log_probs: NDArray[np.float64]
    """Shape [R]: natural log probability under the weights that sampled the token; 0.0 where it was not sampled."""
    response: str
    """The text of the last R tokens, decoded piece by piece."""
    status: SampleStatus
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    """The tensors of side channels by name, such as ``rollout_routed_experts``: only those that were asked for."""
    weight_versions: tuple[str, ...] = ()
    """The engine's version at the end of each turn that has one, in order."""
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    reward: Reward | None = None
    """The reward of the sample; None keeps the trainer's own."""
    metadata: JsonObject = field(default_factory=dict[str, Any])
    """JSON-ready; arrays of whole numbers stand for lists. Everything of turnkeeper's own is under ``turnkeeper``."""

    def __post_init__(self) -> None:
        """Check that the lists are parallel, so that no ill-formed sample exists.

        Raises:
            AssemblyError: lengths differ.
        """
        length = len(self.loss_mask)
        if len(self.rollout_log_probs) != length or length > len(self.tokens):
            raise AssemblyError(
                f"a sample's lists are not parallel: {len(self.tokens)} tokens, {length} mask entries, "
                f"{len(self.rollout_log_probs)} logprobs"
            )
        if self.tensors:
            self._check_tensors()

    def _check_tensors(self) -> None:
        if strange := self.tensors.keys() - {tensor.name for tensor in CHANNELS.tensors}:
            raise AssemblyError(f"no side channel has tensors named {', '.join(sorted(strange))}")
        for channel in CHANNELS.values():
            problem = channel.check_tensors(
                self.tensors,
                tokens=len(self.tokens),
                loss_mask=self.loss_mask,
                turns=self.metadata.get(OWN_KEY, {}).get("turns", ()),
            )
            if problem is not None:
                raise AssemblyError(problem)

    @property
    def response_length(self) -> int:
        """R."""
        return len(self.loss_mask)

    @property
    def rollout_routed_experts(self) -> NDArray[np.integer[Any]] | None:
        """Shape [T-1, layers, topk], any whole-number dtype (int32 on the wire): row i is the routing of token i as
        input. None without routing replay."""
        return self.tensors.get("rollout_routed_experts")

    @property
    def rollout_indexer_topk(self) -> NDArray[np.int32] | None:
        """Shape [T-1, layers, topk], int32; None without indexer replay."""
        return self.tensors.get("rollout_indexer_topk")

    @property
    def rollout_sampling_mask_ids(self) -> NDArray[np.int32] | None:
        """Shape [M]: the ids that each sampled token was drawn from, one mask behind the other; None without masks."""
        return self.tensors.get("rollout_sampling_mask_ids")

    @property
    def rollout_sampling_mask_offsets(self) -> NDArray[np.int64] | None:
        """Shape [R+1]: the mask of response token i is ids offsets[i]..offsets[i+1]. An empty one stands for the whole
        vocabulary, or for a token that was not sampled. None without masks."""
        return self.tensors.get("rollout_sampling_mask_offsets")

    @property
    def rollout_full_log_probs(self) -> NDArray[np.float64] | None:
        """Shape [R]: natural log probability over the whole vocabulary, where ``rollout_log_probs`` is that within the
        masks. None without masks, or where the engine has none."""
        return self.tensors.get("rollout_full_log_probs")

    @property
    def rollout_temperatures(self) -> NDArray[np.float64] | None:
        """Shape [R]: the temperature of each sampled token; NaN where its request named none, 0.0 where it was not
        sampled. None without masks."""
        return self.tensors.get("rollout_temperatures")

    def replace_tensors(self, **tensors: NDArray[Any] | None) -> "Sample":
        """Return the sample with other tensors of side channels; None takes one away.

        Raises:
            AssemblyError: they do not fit the sample.
        """
        found = {**self.tensors, **tensors}
        return replace(self, tensors={name: array for name, array in found.items() if array is not None})

    def to_dict(self) -> JsonObject:
        """Return the sample as JSON has it: the fields that are on the wire, arrays as lists."""
        return {
            "tokens": self.tokens.tolist(),
            "response": self.response,
            "response_length": self.response_length,
            "loss_mask": self.loss_mask.tolist(),
            "rollout_log_probs": self.rollout_log_probs.tolist(),
            **{
                tensor.name: _to_plain(self.tensors.get(tensor.name))
                for tensor in CHANNELS.tensors
                if tensor.name in self.tensors or not tensor.is_left_out_when_null
            },
            "status": str(self.status),
            "weight_versions": list(self.weight_versions),
            "prefix_cache_info": self.prefix_cache_info.to_dict(),
            "spec_info": self.spec_info.to_dict(),
            "metadata": _to_plain(self.metadata),
            "reward": _to_plain(self.reward),
        }

    def __repr__(self) -> str:
        """Return the sample in a line, without its tokens."""
        trained = f"{int(self.loss_mask.sum())} of {self.response_length} response tokens trained"
        rows = "" if self.rollout_routed_experts is None else ", with routing rows"
        return f"<Sample {self.status}: {len(self.tokens)} tokens, {trained}, reward {self.reward}{rows}>"


def _to_plain(value: Any) -> Any:
    """Replace arrays by lists, at any depth."""
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType] - JSON
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType] - JSON
    return value.tolist() if hasattr(value, "tolist") else value
