"""The forecast of a collect: the fate of a session's tokens, without making its samples.

No hook of a user is called, no token is decoded and no row is read: only where turns lie and what is masked is looked
at. The built-in pickers ``drop_retries`` and ``keep_siblings`` are followed to the letter, with the default
postprocessor; in place of any other picker the forecast takes ``drop_retries``. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnkeeper.choices import HistoryKind
from turnkeeper.core import Ledger, MaskReason
from turnkeeper.ids import TurnId
from turnkeeper.samples.account import account
from turnkeeper.samples.assemble import MaskedPath, encode_reason, mask_path
from turnkeeper.samples.collect import Collection, CollectOptions, DroppedLeaf, list_dropped
from turnkeeper.samples.hooks import keep_siblings
from turnkeeper.samples.rollback import Rollback, find_rollbacks
from turnkeeper.samples.truncate import cut_paths
from turnkeeper.samples.view import SessionView


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The fate of a session's tokens and leaves in a collect, or in the next one."""

    ledger: Ledger
    """The session's terms and those of the samples."""
    dropped_leaves: tuple[DroppedLeaf, ...]
    """The turns without children that end no sample, in commit order."""
    turn_ledgers: tuple[Ledger, ...]
    """The ledger of each turn in commit order, without ``sampled``."""

    @classmethod
    def of(cls, collection: Collection) -> "Outcome":
        """Take the outcome of a collect."""
        return cls(
            ledger=collection.ledger,
            dropped_leaves=collection.dropped_leaves,
            turn_ledgers=collection.turn_ledgers,
        )


def forecast(view: SessionView, *, session_ledger: Ledger, options: CollectOptions, max_seq_len: int | None) -> Outcome:
    """Forecast the outcome that a collect without metadata of its own would have now.

    Args:
        view: the session as it stands.
        session_ledger: what the session knows: tokens sampled, and what abandoned calls lost.
        options: the server's.
        max_seq_len: the budget of one sample in tokens; None for none.

    Raises:
        AssemblyError: turns do not make a sample.
    """
    rollbacks = find_rollbacks(view)
    found = cut_paths(view, max_seq_len=max_seq_len, past_truncation=options.past_truncation)
    picked = {
        leaf: mask_path(path.stretches, path.cut, masked_marks=options.masked_marks, untrained=view.untrained)
        for leaf, path in found.kept.items()
        if _is_picked(view, leaf, rollbacks, options)
    }
    kept = list(_train_once(picked[leaf] for leaf in sorted(picked)))
    turn_ledgers = account(view, kept, found.empty.values())
    return Outcome(
        ledger=sum(turn_ledgers, session_ledger),
        dropped_leaves=list_dropped(view, picked.keys(), rollbacks, found.empty),
        turn_ledgers=turn_ledgers,
    )


def _is_picked(view: SessionView, leaf: TurnId, rollbacks: Mapping[TurnId, Rollback], options: CollectOptions) -> bool:
    if view.history is HistoryKind.LINEAR:
        return True
    if options.hooks.picker.function is keep_siblings:
        return leaf not in view.undelivered
    return leaf not in rollbacks


def _train_once(paths: Iterable[MaskedPath]) -> Iterable[tuple[MaskedPath, NDArray[np.uint8]]]:
    """Mask what an earlier path holds, as the default postprocessor does; paths in the order of their leaves."""
    shared = encode_reason(MaskReason.SHARED_ELSEWHERE)
    claimed: dict[TurnId, int] = {}
    for path in paths:
        reasons_R = path.reasons_R.copy()
        for at, stretch in enumerate(path.stretches[: path.cut.turns]):
            place, turn_id = path.find_kept(at), stretch.turn.id
            length, before = place.stop - place.start, claimed.get(turn_id, 0)
            repeated = reasons_R[place.start : place.start + min(before, length)]
            repeated[repeated == 0] = shared
            claimed[turn_id] = max(before, length)
        yield path, reasons_R
