"""A sample as hooks see it: mutable, with the attribute names of the reference trainer's sample, lists where it has
lists. A hook written for that trainer runs on it unchanged. Built-in postprocessors take a shorter draft, in arrays.

Knows nothing of what a hook may do; `run` checks that afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels import CHANNELS
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples.assemble import AssembledPath
from turnkeeper.samples.sample import PrefixCacheInfo, Reward, Sample, SampleStatus, SpecInfo


@dataclass(slots=True, kw_only=True, eq=False)
class ArrayDraft:
    """A leaf's sample as the built-in postprocessors take it: what they read and may change, in arrays."""

    tokens: NDArray[np.int64]
    response_length: int
    loss_mask: NDArray[np.uint8]
    """The draft's own."""
    reward: Reward | None
    metadata: JsonObject
    """The sample's, to be replaced as a whole."""

    @classmethod
    def of(cls, sample: Sample) -> "ArrayDraft":
        """Draft an assembled sample, which stays as it is."""
        return cls(
            tokens=sample.tokens,
            response_length=sample.response_length,
            loss_mask=sample.loss_mask.copy(),
            reward=sample.reward,
            metadata=sample.metadata,
        )


class DraftSample:
    """One leaf's sample between assembly and the wire."""

    Status = SampleStatus
    PrefixCacheInfo = PrefixCacheInfo
    SpecInfo = SpecInfo

    def __init__(self, assembled: AssembledPath, metadata: JsonObject) -> None:
        """Spell an assembled sample in lists.

        Args:
            assembled: stays as it is; nothing here is shared with it but tensors of side channels.
            metadata: becomes this sample's own.
        """
        sample = assembled.sample
        self.group_index: int | None = None
        self.index: int | None = None
        self.rollout_id: int | None = None
        self.prompt: str | list[dict[str, str]] = ""
        self.tokens: list[int] = sample.tokens.tolist()
        self.multimodal_inputs: dict[str, Any] | None = None
        self.multimodal_train_inputs: dict[str, Any] | None = None
        self.response: str = sample.response
        self.response_length: int = sample.response_length
        self.label: str | None = None
        self.reward: Reward | None = sample.reward
        self.loss_mask: list[int] | None = sample.loss_mask.tolist()
        self.weight_versions: list[str] = list(sample.weight_versions)
        self.rollout_log_probs: list[float] | None = sample.rollout_log_probs.tolist()
        self.remove_sample: bool = False
        self.teacher_log_probs: list[float] | None = None
        self.opd_reverse_kl: list[float] | None = None
        self.status: Any = sample.status
        self.metadata: JsonObject = metadata
        self.generate_function_path: str | None = None
        self.train_metadata: dict[str, Any] | None = None
        self.adapter: object = None
        self.reward_spec: object = None
        self.routing_key: str | None = None
        self.non_generation_time: float = 0.0
        self.spec_info: SpecInfo = SpecInfo(**sample.spec_info.to_dict())
        self.prefix_cache_info: PrefixCacheInfo = PrefixCacheInfo(**sample.prefix_cache_info.to_dict())
        self._tensors = sample.tensors

    def __getattr__(self, name: str) -> Any:
        """Return the tensor of a side channel in the dtype that the reference has, widened when first read; None where
        the sample has none."""
        tensor = next((tensor for tensor in CHANNELS.tensors if tensor.name == name), None)
        if tensor is None:
            raise AttributeError(name)
        stored = self._tensors.get(name)
        wide = None if stored is None else stored.astype(tensor.dtype, copy=False)
        setattr(self, name, wide)
        return wide

    def find_tensor(self, name: str) -> NDArray[Any] | None:
        """Find the tensor of a side channel in whatever dtype it has now; None where the sample has none."""
        return self.__dict__[name] if name in self.__dict__ else self._tensors.get(name)

    @property
    def effective_response_length(self) -> int:
        """Trainable tokens."""
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length

    @property
    def oldest_weight_version(self) -> int | None:
        """The smallest of the versions that are numbers."""
        return min((int(version) for version in self.weight_versions if str(version).isdigit()), default=None)

    def get_reward_value(self, args: Any) -> Any:
        """Return the reward, or the part of it that ``args.reward_key`` names."""
        if args.reward_key and isinstance(self.reward, Mapping):
            return self.reward[args.reward_key]
        return self.reward
