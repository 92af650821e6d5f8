"""A path of turns becomes one sample.

::

    turn 0    prompt [u u u]  completion [a a E]                  E: sampled stop token
    turn 1    trim 1          prompt [M u u]  completion [b E]    M: the marker that takes E's place
    path      u u u a a M u u b E
    response        a a M u u b E
    loss_mask       1 1 0 0 0 1 1                                 E of turn 1 stays: its path ends here
    rows      0 1 2 3 4 5 6 7 8                                   tokens - 1; row 5 is M's, from turn 1's patch

Had the next marker been E itself, nothing would be trimmed: E stays in turn 0's completion, trainable.

Knows nothing of which paths are picked, and nothing of the wire.
"""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels import CHANNELS, PathTurn
from turnkeeper.core import FinishReason, MaskReason
from turnkeeper.core.tokens import TokenIds, join_ids
from turnkeeper.ids import TurnId
from turnkeeper.samples.sample import PrefixCacheInfo, Sample, SampleStatus, SpecInfo
from turnkeeper.samples.truncate import Cut
from turnkeeper.samples.view import Stretch

Decode = Callable[[TokenIds], str]
"""Token ids to text, special tokens kept."""

MASK_REASONS: tuple[MaskReason, ...] = tuple(MaskReason)
"""Reason codes of a sample's positions count from 1 in this order; 0 is no reason."""

_STATUS = {
    FinishReason.STOP: SampleStatus.COMPLETED,
    FinishReason.TOOL_CALLS: SampleStatus.COMPLETED,
    FinishReason.LENGTH: SampleStatus.TRUNCATED,
    FinishReason.CONTENT_FILTER: SampleStatus.PENDING,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedPath:
    """The tokens of a path that a sample keeps, and those of them that carry loss."""

    stretches: tuple[Stretch, ...]
    """The whole path, laid out."""
    cut: Cut
    """The part of the path that the sample keeps."""
    reasons_R: NDArray[np.uint8]
    """Shape [R]: why a sampled token is masked, as a code of ``MASK_REASONS``; 0 elsewhere."""
    sampled_R: NDArray[np.bool_]
    """Shape [R]; True where the token was sampled."""

    @property
    def first_prompt(self) -> int:
        """The number of tokens before the response."""
        return self.stretches[0].sampled

    def find_kept(self, at: int) -> slice:
        """Return the positions of a turn's kept completion in the response; empty behind the cut."""
        stretch = self.stretches[at]
        stop = min(stretch.kept, self.cut.tokens)
        return slice(stretch.sampled - self.first_prompt, max(stretch.sampled, stop) - self.first_prompt)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssembledPath(MaskedPath):
    """A sample with its origin."""

    sample: Sample
    texts: tuple[slice, ...]
    """The characters of each kept turn's completion in the response of the sample."""


def mask_path(
    stretches: tuple[Stretch, ...],
    cut: Cut,
    *,
    masked_marks: frozenset[str] = frozenset(),
    untrained: Collection[TurnId] = (),
    acknowledged: Container[TurnId] = (),
) -> MaskedPath:
    """Find what of a path that keeps at least one turn carries loss; see `assemble_path`."""
    kept = stretches[: cut.turns]
    first = kept[0].sampled
    sampled_R = np.zeros(cut.tokens - first, dtype=np.bool_)
    reasons_R = np.zeros(cut.tokens - first, dtype=np.uint8)
    for stretch in kept:
        sampled_R[stretch.sampled - first : min(stretch.kept, cut.tokens) - first] = True
    _mask_by_channels(kept, cut, sampled_R, reasons_R, masked_marks=masked_marks, untrained=untrained)
    for stretch in kept:
        if stretch.turn.id in acknowledged:
            reasons = reasons_R[stretch.sampled - first : min(stretch.kept, cut.tokens) - first]
            reasons[reasons == 0] = encode_reason(MaskReason.ACKNOWLEDGED)
    return MaskedPath(stretches=stretches, cut=cut, reasons_R=reasons_R, sampled_R=sampled_R)


def assemble_path(
    stretches: tuple[Stretch, ...],
    cut: Cut,
    *,
    decode: Decode,
    masked_marks: frozenset[str] = frozenset(),
    untrained: Collection[TurnId] = (),
    acknowledged: Container[TurnId] = (),
) -> AssembledPath:
    """Make the sample of a path that keeps at least one turn.

    Args:
        stretches: the whole path, laid out.
        cut: how much of it the sample keeps.
        decode: token ids to text, special tokens kept.
        masked_marks: marks of turns whose tokens carry no loss.
        untrained: turns whose tokens carry no loss, since their model is not trained.
        acknowledged: turns whose tokens carry no loss, since a trainer has them from an earlier collect.

    Raises:
        AssemblyError: turns lack items of a side channel that others of the path have.
    """
    masked = mask_path(stretches, cut, masked_marks=masked_marks, untrained=untrained, acknowledged=acknowledged)
    kept, first = stretches[: cut.turns], masked.first_prompt
    logprobs_R = np.zeros(cut.tokens - first, dtype=np.float64)
    for stretch in kept:
        stop = min(stretch.kept, cut.tokens)
        logprobs_R[stretch.sampled - first : stop - first] = stretch.turn.completion.logprobs[: stop - stretch.sampled]
    decoded = _decode_response(kept, cut, decode)
    tensors: dict[str, NDArray[Any]] = {}
    turns = _lay_out(kept, cut)
    for channel in CHANNELS.values():
        tensors |= channel.assemble(turns, tokens=cut.tokens)
    sample = Sample(
        tokens=_join_tokens(kept)[: cut.tokens].astype(np.int64),
        loss_mask=(masked.sampled_R & (masked.reasons_R == 0)).astype(np.uint8),
        rollout_log_probs=tensors.pop("rollout_log_probs", logprobs_R),
        response=decoded.text,
        status=SampleStatus.TRUNCATED if cut.is_inside else _STATUS[kept[-1].turn.completion.finish_reason],
        tensors=tensors,
        weight_versions=tuple(
            version for stretch in kept if (version := stretch.turn.completion.weight_version) is not None
        ),
        prefix_cache_info=_sum_prefix_cache(kept),
        spec_info=_sum_speculation(kept),
    )
    return AssembledPath(
        sample=sample,
        texts=decoded.completions,
        stretches=stretches,
        cut=cut,
        reasons_R=masked.reasons_R,
        sampled_R=masked.sampled_R,
    )


def _mask_by_channels(
    kept: Sequence[Stretch],
    cut: Cut,
    sampled_R: NDArray[np.bool_],
    reasons_R: NDArray[np.uint8],
    *,
    masked_marks: frozenset[str],
    untrained: Collection[TurnId],
) -> None:
    """Write why sampled tokens are masked: for turns that are not trained, and by side channels."""
    first = kept[0].sampled
    turns = _lay_out(kept, cut)
    spans = [span for channel in CHANNELS.values() for span in channel.find_masked(turns, masked_marks)]

    def mask(start: int, stop: int, reason: MaskReason) -> None:
        place = slice(max(0, start - first), max(0, stop - first))
        reasons_R[place][sampled_R[place]] = encode_reason(reason)

    for span in spans:
        if not span.wins_over_hook:
            mask(span.start, span.stop, MaskReason(span.reason))
    for stretch in kept:
        if stretch.turn.id in untrained:
            mask(stretch.sampled, min(stretch.kept, cut.tokens), MaskReason.HOOK)
    for span in spans:
        if span.wins_over_hook:
            mask(span.start, span.stop, MaskReason(span.reason))


def _lay_out(kept: Sequence[Stretch], cut: Cut) -> list[PathTurn]:
    """Lay out the turns of a path as side channels see them."""
    return [
        PathTurn(
            number=int(stretch.turn.id),
            channels=stretch.turn.completion.channels,
            sampled=stretch.sampled,
            kept=min(stretch.kept, cut.tokens),
            stop=stretch.stop,
            logprobs=stretch.turn.completion.logprobs,
            marks=stretch.turn.completion.marks,
            sampling=stretch.turn.request.sampling,
        )
        for stretch in kept
    ]


def encode_reason(reason: MaskReason) -> int:
    """Return the code that stands for a reason in arrays of reasons."""
    return MASK_REASONS.index(reason) + 1


def _join_tokens(kept: Sequence[Stretch]) -> TokenIds:
    pieces: list[TokenIds] = []
    for stretch in kept:
        pieces += [stretch.turn.prompt.ids, stretch.turn.completion.ids[: stretch.kept - stretch.sampled]]
    return join_ids(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodedResponse:
    """The text of a response."""

    text: str
    completions: tuple[slice, ...]
    """The characters of each turn's completion."""


def _decode_response(kept: Sequence[Stretch], cut: Cut, decode: Decode) -> _DecodedResponse:
    """Decode completions and the prompts between them, each on its own."""
    pieces: list[str] = []
    completions: list[slice] = []
    length = 0
    for at, stretch in enumerate(kept):
        stop = min(stretch.kept, cut.tokens)
        prompt_ids = stretch.turn.prompt.ids
        prompt = decode(prompt_ids) if at and len(prompt_ids) else ""
        completion_ids = stretch.turn.completion.ids[: stop - stretch.sampled]
        completion = decode(completion_ids) if len(completion_ids) else ""
        start = length + len(prompt)
        length = start + len(completion)
        completions.append(slice(start, length))
        pieces += [prompt, completion]
    return _DecodedResponse(text="".join(pieces), completions=tuple(completions))


def _sum_prefix_cache(kept: Sequence[Stretch]) -> PrefixCacheInfo:
    return PrefixCacheInfo(
        cached_tokens=sum(stretch.turn.completion.cached_tokens for stretch in kept),
        total_prompt_tokens=sum(stretch.sampled for stretch in kept),
    )


def _sum_speculation(kept: Sequence[Stretch]) -> SpecInfo:
    info = SpecInfo()
    for stretch in kept:
        meta = stretch.turn.completion.meta
        if not _read_count(meta, "spec_verify_ct"):
            continue
        info.spec_accept_token_num += _read_count(meta, "spec_accept_token_num")
        info.spec_draft_token_num += _read_count(meta, "spec_draft_token_num")
        info.spec_verify_ct += _read_count(meta, "spec_verify_ct")
        info.completion_token_num += len(stretch.turn.completion.ids)
    return info


def _read_count(meta: Mapping[str, Any], name: str) -> int:
    value: object = meta.get(name)
    return value if type(value) is int and value >= 0 else 0
