"""Sampling masks as a side channel.

With top-p, top-k or min-p a token is drawn from a part of the vocabulary. A trainer that computes its log-probabilities
over all of it compares probabilities of two distributions; with the mask it normalises over the same ids. So with masks
``rollout_log_probs`` of a sample is the logprob within the mask, and that over the vocabulary stands beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels.channel import (
    CallFacts,
    Capture,
    CaptureSettings,
    Channel,
    Kept,
    MaskedSpan,
    PathTurn,
    SampleTensor,
    TakePayload,
    TurnPlan,
)
from turnkeeper.channels.id_lists import IdLists, read_id_lists
from turnkeeper.channels.masks.check import check_masks, check_whole, read_logprobs
from turnkeeper.channels.masks.sampler import MaskAsked, is_greedy, is_truncating, list_unexplained
from turnkeeper.channels.masks.values import MaskItems, build_items, join_items
from turnkeeper.channels.run import ItemRun
from turnkeeper.choices import OnNotReplayable
from turnkeeper.errors import AssemblyError, RequestError, TokenIntegrityError
from turnkeeper.fields import Wire
from turnkeeper.jsontypes import JsonObject, is_number

NOT_REPLAYABLE = "not_replayable"
"""The mark of a turn whose weights no mask explains, and the reason why its tokens carry no loss."""

IDS, OFFSETS = "rollout_sampling_mask_ids", "rollout_sampling_mask_offsets"
FULL, TEMPERATURES = "rollout_full_log_probs", "rollout_temperatures"
LOGPROBS = "rollout_log_probs"
"""The tensor of every sample, which holds the logprobs within the masks where there are any."""

_MASKS, _VLLM_MASKS = "output_token_sampling_mask", "sampling_mask"
_PROBE = {"temperature": 1.0, "top_p": 0.9, "top_k": 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPayload:
    """What a reply says of masks."""

    masks: IdLists | object
    """The lists, read apart or as they were parsed; None when absent."""
    logprobs: object
    """``output_token_sampling_logprobs``, as it was parsed."""
    truncated: object
    """``output_token_sampling_mask_truncated``, as it was parsed."""
    has_logprobs: bool
    """True where the wire has logprobs within the masks beside those of the tokens."""


def _tensor(name: str, dtype: str, shape: str, meaning: str) -> SampleTensor:
    return SampleTensor(
        name=name,
        dtype=np.dtype(dtype),
        shape=shape,
        null="no token was drawn from a mask",
        meaning=meaning,
        is_left_out_when_null=True,
    )


class SamplingMasks(Channel):
    """The ids that truncation left in, for each sampled token."""

    name = "sampling_mask"
    label = "masks"
    stored_as = "sampling_mask"
    stored_runs = ("sampling_mask_counts", "sampling_mask_ids", "sampling_mask_logprobs")
    members = (
        _MASKS,
        "output_token_sampling_logprobs",
        "output_token_sampling_mask_length",
        "output_token_sampling_mask_truncated",
        _VLLM_MASKS,
    )
    list_keys = (_MASKS, _VLLM_MASKS)
    fields = ("return_sampling_mask",)
    tensors = (
        _tensor(IDS, "<i4", "[M]", "The ids that each sampled token was drawn from, one mask behind the other."),
        _tensor(
            OFFSETS,
            "<i8",
            "[R+1]",
            "Mask i is ids offsets[i]..offsets[i+1]; empty: the whole vocabulary, or not sampled.",
        ),
        _tensor(FULL, "<f8", "[R]", "Log probability over the whole vocabulary; left out where the engine has none."),
        _tensor(TEMPERATURES, "<f8", "[R]", "Temperature of each sampled token; NaN where its request named none."),
    )

    def is_lost(self, route: str, asked: MaskAsked) -> bool:
        # Streams of vLLM 0.28 to 0.31 lose masks, and SGLang's repeat all masks so far with every event.
        return asked.is_truncating

    def render(self, wire: Wire, asked: MaskAsked) -> JsonObject:
        is_asked = asked.is_truncating and wire is not Wire.VLLM  # whose server sends masks by its own flag
        return {"return_sampling_mask": True} if is_asked else {}

    def read(self, wire: Wire, holder: JsonObject, take: TakePayload) -> MaskPayload:
        name = _VLLM_MASKS if wire is Wire.VLLM else _MASKS
        listed = holder.get(name)
        return MaskPayload(
            masks=take(name) if listed is None else listed,
            logprobs=holder.get("output_token_sampling_logprobs"),
            truncated=holder.get("output_token_sampling_mask_truncated"),
            has_logprobs=wire is not Wire.VLLM,
        )

    def is_on(self, options: Mapping[str, Any]) -> bool:
        return options["use_rollout_sampling_mask"]

    def open(self, settings: CaptureSettings) -> "MaskCapture":
        return MaskCapture(
            self,
            on_not_replayable=settings.options["on_not_replayable"],
            vocabulary_size=settings.vocabulary_size,
        )

    def restore(self, runs: Sequence[ItemRun]) -> MaskItems:
        counts, ids, logprobs = runs
        return MaskItems(counts=counts, ids=ids, logprobs=logprobs)

    def check_added(self, items: MaskItems, parent_items: Any, *, parent_tokens: int, path_tokens: int) -> None:
        if len(items) >= path_tokens:
            raise TokenIntegrityError(
                f"a path of {path_tokens} tokens has {len(items)} sampling masks of its last turn",
                index=0,
                expected=path_tokens - 1,
                found=len(items),
            )

    def show(self, items: MaskItems) -> JsonObject:
        ends = np.cumsum(items.counts.array)[:-1]
        shown: JsonObject = {_MASKS: [each.tolist() for each in np.split(items.ids.array, ends)]}
        return shown | (
            {"output_token_sampling_logprobs": items.logprobs.array.tolist()} if len(items.logprobs) else {}
        )

    def show_asked(self, items: MaskItems, *, parent_tokens: int, use_increments: bool) -> JsonObject:
        return {"return_sampling_mask": True}

    def assemble(self, turns: Sequence[PathTurn], *, tokens: int) -> Mapping[str, NDArray[Any]]:
        if not any(self.name in turn.channels for turn in turns):
            return {}
        first = turns[0].sampled
        counts_R = np.zeros(tokens - first, np.int64)
        logprobs_R, full_R, temperatures_R = np.zeros((3, tokens - first))
        ids: list[NDArray[Any]] = []
        has_full = True
        for turn in turns:
            count, place = turn.kept - turn.sampled, slice(turn.sampled - first, turn.kept - first)
            items: MaskItems | None = turn.channels.get(self.name)
            full_R[place] = logprobs_R[place] = turn.logprobs[:count]
            temperature = turn.sampling.get("temperature")
            temperatures_R[place] = temperature if is_number(temperature) else np.nan
            if items is not None:
                counts_R[place], own = items.read_first(count)
                ids.append(own)
                has_full = has_full and len(items.logprobs) > 0
                if len(items.logprobs):
                    logprobs_R[place] = items.logprobs.cut(0, count).array
            elif is_truncating(turn.sampling):
                raise AssemblyError(
                    f"turn {turn.number} was drawn from a part of the vocabulary and has no sampling masks, other "
                    "turns of its path have",
                    turn=turn.number,
                )
        return {
            IDS: np.concatenate(ids).astype(np.int32, copy=False),
            OFFSETS: np.concatenate([np.zeros(1, np.int64), np.cumsum(counts_R)]),
            TEMPERATURES: temperatures_R,
            LOGPROBS: logprobs_R,
            **({FULL: full_R} if has_full else {}),
        }

    def check_tensors(
        self, tensors: Mapping[str, NDArray[Any]], *, tokens: int, loss_mask: NDArray[Any], turns: Sequence[JsonObject]
    ) -> str | None:
        ids, offsets = tensors.get(IDS), tensors.get(OFFSETS)
        response = len(loss_mask)
        if ids is None or offsets is None:
            return None if ids is offsets else f"{IDS} and {OFFSETS} come together"
        counts_R = np.diff(offsets)
        if len(offsets) != response + 1 or offsets[0] or int(offsets[-1]) != len(ids) or (counts_R < 0).any():
            return f"{OFFSETS} must be {response + 1} ascending places from 0 to the {len(ids)} of {IDS}"
        for name in (FULL, TEMPERATURES):
            if name in tensors and len(tensors[name]) != response:
                return f"{name} has {len(tensors[name])} entries, the response has {response} tokens"
        for turn in turns:
            if is_truncating(turn.get("sampling", {})):
                place = slice(turn["start"], turn["end"])
                if (loss_mask[place].astype(bool) & (counts_R[place] == 0)).any():
                    said = f"turn {turn.get('id')} was drawn from a part of the vocabulary"
                    return f"{said}, and a token of it that trains has no mask"
        return None

    def list_masked_marks(self, options: Mapping[str, Any]) -> Sequence[str]:
        return (NOT_REPLAYABLE,) if options["on_not_replayable"] is OnNotReplayable.MASK else ()

    def find_masked(self, turns: Sequence[PathTurn], masked_marks: frozenset[str]) -> Sequence[MaskedSpan]:
        if NOT_REPLAYABLE not in masked_marks:
            return ()
        return [
            MaskedSpan(reason=NOT_REPLAYABLE, start=turn.sampled, stop=turn.kept)
            for turn in turns
            if turn.marks.get(NOT_REPLAYABLE)
        ]


class MaskCapture(Capture):
    """Sampling masks as a server asks for them."""

    def __init__(
        self,
        channel: Channel,
        *,
        on_not_replayable: OnNotReplayable = OnNotReplayable.KEEP,
        vocabulary_size: int | None = None,
    ) -> None:
        """Ask for masks with every turn whose sampler truncates.

        Args:
            channel: the declaration.
            on_not_replayable: what becomes of a turn whose weights no mask explains.
            vocabulary_size: the number of ids that the model has; None when unknown.
        """
        self.channel = channel
        self._on_not_replayable = on_not_replayable
        self._vocabulary_size = vocabulary_size

    def plan(self, turn: TurnPlan) -> MaskAsked | None:
        unexplained, truncates = list_unexplained(turn.sampling), is_truncating(turn.sampling)
        if unexplained and self._on_not_replayable is OnNotReplayable.REFUSE:
            raise RequestError(
                f"{', '.join(unexplained)} changes weights in a way that no sampling mask explains",
                hint="leave it out; --on-not-replayable keep or mask takes such turns",
                param=unexplained[0],
            )
        if not truncates and not unexplained:
            return None
        return MaskAsked(
            payload_start=turn.prompt_tokens,
            is_truncating=truncates,
            is_greedy=is_greedy(turn.sampling),
            unexplained=unexplained,
        )

    def plan_next(self, asked: MaskAsked, taken: Any, prompt_tokens: int) -> MaskAsked:
        """Ask for the masks of what the next call samples."""
        return MaskAsked(
            payload_start=prompt_tokens,
            is_truncating=asked.is_truncating,
            is_greedy=asked.is_greedy,
            unexplained=asked.unexplained,
        )

    def take(
        self, payload: MaskPayload | None, asked: MaskAsked, call: CallFacts, *, held: Any, earlier: Any
    ) -> "_TakenMasks":
        if not asked.is_truncating:
            return _TakenMasks(items=None, unexplained=asked.unexplained)
        masks = None if payload is None else payload.masks
        if masks is not None and not isinstance(masks, IdLists):
            masks = read_id_lists(masks, self.channel.members[0])
        found = check_masks(masks, call, is_greedy=asked.is_greedy, vocabulary_size=self._vocabulary_size)
        assert payload is not None
        check_whole(payload.truncated, call)
        logprobs = read_logprobs(payload.logprobs, call) if payload.has_logprobs else np.zeros(0)
        return _TakenMasks(items=build_items(found.counts, found.ids, logprobs), unexplained=asked.unexplained)

    def join(
        self, taken: "Sequence[_TakenMasks]", *, prompt_tokens: int, counts: Sequence[int], count: int
    ) -> "_TakenMasks":
        items = [each.items for each in taken if each.items is not None]
        return _TakenMasks(items=join_items(items, count) if items else None, unexplained=taken[0].unexplained)

    def finish(self, taken: "_TakenMasks", turn: CallFacts, *, held: Any) -> Kept:
        marks = {NOT_REPLAYABLE: list(taken.unexplained)} if taken.unexplained else {}
        return Kept(items=taken.items, marks=marks)

    def shape_probe(self, sampling: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**sampling, **_PROBE}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _TakenMasks:
    """What was taken of one engine call."""

    items: MaskItems | None
    """None where the sampler does not truncate."""
    unexplained: tuple[str, ...]
