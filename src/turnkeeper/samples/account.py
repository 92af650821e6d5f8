"""The accounting of a session's sampled tokens, each of which is counted once.

A token may stand in several samples, since leaves share turns: it counts as what is best for it anywhere, in the
order of ``_RANKED``, last is best. Knows only committed turns; what abandoned calls sampled is the session's to add.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnkeeper.core import DropReason, Label, Ledger, MaskReason
from turnkeeper.ids import TurnId
from turnkeeper.samples.assemble import MASK_REASONS, AssembledPath, MaskedPath
from turnkeeper.samples.sample import Sample
from turnkeeper.samples.view import SessionView

_TRAINABLE = "trainable"
_RANKED: tuple[DropReason | MaskReason | str, ...] = (
    DropReason.NOT_PICKED,
    DropReason.SUPERSEDED,
    DropReason.UNDELIVERED,
    DropReason.AFTER_TRUNCATION,
    DropReason.OVER_MAX_SEQ_LEN,
    DropReason.JUNCTION_TRIM,
    MaskReason.SHARED_ELSEWHERE,
    MaskReason.HOOK,
    MaskReason.OFFPOLICY,
    MaskReason.NOT_REPLAYABLE,
    MaskReason.ROWS_RECOMPUTED,
    MaskReason.BAD_ROWS,
    MaskReason.ACKNOWLEDGED,
    _TRAINABLE,
)
_RANK = {fate: rank for rank, fate in enumerate(_RANKED)}
_MASK_RANKS = np.array([_RANK[_TRAINABLE], *(_RANK[reason] for reason in MASK_REASONS)], dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptSample:
    """A sample that goes to the trainer, with its path and the reasons of its masked tokens."""

    assembled: AssembledPath
    sample: Sample
    reasons_R: NDArray[np.uint8]
    """Shape [R]: codes of ``MASK_REASONS`` where a sampled token carries no loss; 0 elsewhere."""


def mark_reasons(finished: Iterable[tuple[AssembledPath, Sample]]) -> tuple[KeptSample, ...]:
    """Find the reason of each masked token.

    What the assembly masked keeps its reason. What a hook masked is ``shared_elsewhere`` where the same token trains
    in another sample, else ``hook``.
    """
    pairs = tuple(finished)
    if not any(_find_masked_by_hook(assembled, sample).any() for assembled, sample in pairs):
        return tuple(KeptSample(assembled=path, sample=sample, reasons_R=path.reasons_R) for path, sample in pairs)
    trained: dict[TurnId, NDArray[np.bool_]] = {}
    for assembled, sample in pairs:
        for at, stretch in enumerate(assembled.stretches[: assembled.cut.turns]):
            mask = sample.loss_mask[assembled.find_kept(at)].astype(np.bool_)
            seen = trained.setdefault(stretch.turn.id, np.zeros(len(stretch.turn.completion.ids), dtype=np.bool_))
            seen[: len(mask)] |= mask
    return tuple(_mark(assembled, sample, trained) for assembled, sample in pairs)


def _find_masked_by_hook(assembled: AssembledPath, sample: Sample) -> NDArray[np.bool_]:
    return assembled.sampled_R & (sample.loss_mask == 0) & (assembled.reasons_R == 0)


def _mark(assembled: AssembledPath, sample: Sample, trained: Mapping[TurnId, NDArray[np.bool_]]) -> KeptSample:
    reasons_R = assembled.reasons_R.copy()
    by_hook = _find_masked_by_hook(assembled, sample)
    for at, stretch in enumerate(assembled.stretches[: assembled.cut.turns]):
        place = assembled.find_kept(at)
        elsewhere = trained[stretch.turn.id][: place.stop - place.start]
        shared, hook = (MASK_REASONS.index(each) + 1 for each in (MaskReason.SHARED_ELSEWHERE, MaskReason.HOOK))
        reasons_R[place] = np.where(by_hook[place], np.where(elsewhere, shared, hook), reasons_R[place])
    return KeptSample(assembled=assembled, sample=sample, reasons_R=reasons_R)


def account(
    view: SessionView,
    kept: Iterable[tuple[MaskedPath, NDArray[np.uint8]]],
    empty: Iterable[tuple[TurnId, ...]] = (),
) -> tuple[Ledger, ...]:
    """Count every sampled token of the committed turns.

    Args:
        view: the session.
        kept: the path of each sample that goes to the trainer, with the reasons of its masked tokens.
        empty: paths of which the length limit leaves nothing.

    Returns:
        One ledger for each turn, in commit order, without ``sampled``, which is the session's own term.
    """
    fates = {
        turn.id: np.full(len(turn.completion.ids), _RANK[_find_drop(view, turn.id)], dtype=np.uint8)
        for turn in view.turns
    }
    for path in empty:
        for turn in path:
            np.maximum(fates[turn], _RANK[DropReason.OVER_MAX_SEQ_LEN], out=fates[turn])
    for path, reasons_R in kept:
        _raise_fates(fates, path, reasons_R)
    return tuple(_count(fate) for fate in fates.values())


def _count(fate: NDArray[np.uint8]) -> Ledger:
    counts = np.bincount(fate, minlength=len(_RANKED)).tolist()
    found = {fate: count for fate, count in zip(_RANKED, counts, strict=True) if count}
    return Ledger(
        trainable=found.get(_TRAINABLE, 0),
        masked={fate: count for fate, count in found.items() if isinstance(fate, MaskReason)},
        dropped={fate: count for fate, count in found.items() if isinstance(fate, DropReason)},
    )


def _find_drop(view: SessionView, turn: TurnId) -> DropReason:
    """Find the reason why a turn is in no sample."""
    if turn in view.undelivered:
        return DropReason.UNDELIVERED
    return DropReason.SUPERSEDED if view.labels[turn] is Label.SUPERSEDED else DropReason.NOT_PICKED


def _raise_fates(fates: Mapping[TurnId, NDArray[np.uint8]], path: MaskedPath, reasons_R: NDArray[np.uint8]) -> None:
    for at, stretch in enumerate(path.stretches):
        fate = fates[stretch.turn.id]
        place = path.find_kept(at) if at < path.cut.turns else slice(0, 0)
        inside, held = place.stop - place.start, stretch.kept - stretch.sampled
        ranks = np.empty(len(fate), dtype=np.uint8)
        ranks[:inside] = _MASK_RANKS[reasons_R[place]]
        ranks[inside:held] = _RANK[path.cut.reason] if path.cut.reason else 0
        ranks[held:] = _RANK[DropReason.JUNCTION_TRIM]
        np.maximum(fate, ranks, out=fate)
