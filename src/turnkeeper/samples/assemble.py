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

from turnkeeper.choices import OnRecomputed
from turnkeeper.core import FinishReason, MaskReason
from turnkeeper.core.tokens import TokenIds, join_ids
from turnkeeper.errors import AssemblyError
from turnkeeper.ids import TurnId
from turnkeeper.routing import assemble_rows, list_pieces
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
    on_recomputed: OnRecomputed = OnRecomputed.KEEP,
    untrained: Collection[TurnId] = (),
    acknowledged: Container[TurnId] = (),
) -> MaskedPath:
    """Find what of a path that keeps at least one turn carries loss; see `assemble_path`."""
    kept = stretches[: cut.turns]
    first = kept[0].sampled
    sampled_R = np.zeros(cut.tokens - first, dtype=np.bool_)
    reasons_R = np.zeros(cut.tokens - first, dtype=np.uint8)
    for stretch in kept:
        place = slice(stretch.sampled - first, min(stretch.kept, cut.tokens) - first)
        sampled_R[place] = True
        if stretch.turn.id in untrained:
            reasons_R[place] = encode_reason(MaskReason.HOOK)
        elif on_recomputed is OnRecomputed.MASK and stretch.turn.completion.marks.get("rows_recomputed"):
            reasons_R[place] = encode_reason(MaskReason.ROWS_RECOMPUTED)
    bad_from = _find_bad_from(kept)
    if bad_from is not None:
        # Row r is the forward that samples token r + 1; every later token stands on it.
        behind = slice(max(0, bad_from + 1 - first), None)
        reasons_R[behind][sampled_R[behind]] = encode_reason(MaskReason.BAD_ROWS)
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
    on_recomputed: OnRecomputed = OnRecomputed.KEEP,
    untrained: Collection[TurnId] = (),
    acknowledged: Container[TurnId] = (),
) -> AssembledPath:
    """Make the sample of a path that keeps at least one turn.

    Args:
        stretches: the whole path, laid out.
        cut: how much of it the sample keeps.
        decode: token ids to text, special tokens kept.
        on_recomputed: what becomes of turns whose rows were computed again.
        untrained: turns whose tokens carry no loss, since their model is not trained.
        acknowledged: turns whose tokens carry no loss, since a trainer has them from an earlier collect.

    Raises:
        AssemblyError: turns lack rows that others of the path have.
    """
    masked = mask_path(stretches, cut, on_recomputed=on_recomputed, untrained=untrained, acknowledged=acknowledged)
    kept, first = stretches[: cut.turns], masked.first_prompt
    logprobs_R = np.zeros(cut.tokens - first, dtype=np.float64)
    for stretch in kept:
        stop = min(stretch.kept, cut.tokens)
        logprobs_R[stretch.sampled - first : stop - first] = stretch.turn.completion.logprobs[: stop - stretch.sampled]
    decoded = _decode_response(kept, cut, decode)
    sample = Sample(
        tokens=_join_tokens(kept)[: cut.tokens].astype(np.int64),
        loss_mask=(masked.sampled_R & (masked.reasons_R == 0)).astype(np.uint8),
        rollout_log_probs=logprobs_R,
        response=decoded.text,
        status=SampleStatus.TRUNCATED if cut.is_inside else _STATUS[kept[-1].turn.completion.finish_reason],
        rollout_routed_experts=_collect_rows(kept, cut.tokens - 1),
        rollout_indexer_topk=_collect_indexer(kept, cut.tokens - 1),
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


def _collect_rows(kept: Sequence[Stretch], rows: int) -> NDArray[np.integer[Any]] | None:
    patches = [stretch.turn.completion.rows for stretch in kept]
    present = [patch for patch in patches if patch is not None]
    if not present:
        return None
    if len(present) != len(patches):
        raise AssemblyError(
            f"turn {kept[patches.index(None)].turn.id} has no routing rows, other turns of its path have",
            turn=int(kept[patches.index(None)].turn.id),
        )
    return assemble_rows(present, [stretch.stop for stretch in kept]).cut(0, rows).experts_RLK


def _find_bad_from(kept: Sequence[Stretch]) -> int | None:
    """Find the first bad row of the path. A payload that replaced all earlier rows replaced their faults as well."""
    bad: int | None = None
    for stretch in kept:
        completion = stretch.turn.completion
        if completion.rows is not None and len(completion.rows) == stretch.stop - 1:
            bad = None
        own = completion.marks.get("bad_rows_from")
        if own is not None:
            bad = own if bad is None else min(bad, own)
    return bad


def _collect_indexer(kept: Sequence[Stretch], rows: int) -> NDArray[np.int32] | None:
    """Join the indexer's rows of the kept turns, which together cover the whole path."""
    held = [stretch.turn.completion.indexer_rows for stretch in kept]
    pieces = list_pieces(held, [stretch.stop for stretch in kept])
    if pieces:
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces))[:rows]
    if any(each is not None for each in held):
        last = kept[-1].turn
        raise AssemblyError(f"turn {last.id} has no indexer rows, earlier turns of its path have", turn=int(last.id))
    return None


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
