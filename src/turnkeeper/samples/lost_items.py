"""Turns of which a store has lost items of a side channel, as where the machine ended before they were on the medium.

A turn is kept without them, and its sample follows ``--on-bad-rows``: no sample, or no loss from the first of them on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from turnkeeper.channels import CHANNELS, ItemRun, Items
from turnkeeper.channels.routing.channel import BAD_FROM
from turnkeeper.core import Turn
from turnkeeper.errors import AssemblyError, StoreRecordError
from turnkeeper.ids import TurnId
from turnkeeper.samples.view import SessionView, Stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class LostItems:
    """The items that a turn has lost."""

    channel: str
    """The first channel of which it has lost items."""
    reason: str


def find_lost(view: SessionView) -> Mapping[TurnId, LostItems]:
    """Find the turns whose stored items are not those that were stored.

    Items are read for it once, where an earlier process stored them.
    """
    found = ((turn.id, _find_lost(turn)) for turn in view.turns)
    return {turn_id: lost for turn_id, lost in found if lost is not None}


def _find_lost(turn: Turn) -> LostItems | None:
    for name, items in turn.completion.channels.items():
        reason = _explain_loss(items)
        if reason:
            return LostItems(channel=name, reason=reason)
    return None


def _explain_loss(items: Items) -> str:
    try:
        for run in items.runs:
            run.check()
    except StoreRecordError as error:
        return error.message
    return ""


def mask_lost(view: SessionView, lost: Mapping[TurnId, LostItems]) -> SessionView:
    """Return the view with zeros for lost items, and with a mark that from the first of them on rows are bad."""
    return replace(view, turns=tuple(_mask(turn) if turn.id in lost else turn for turn in view.turns))


def _mask(turn: Turn) -> Turn:
    completion = turn.completion
    known: int | None = completion.marks.get(BAD_FROM)
    firsts = [] if known is None else [known]
    channels = dict(completion.channels)
    for name, items in completion.channels.items():
        if _explain_loss(items):
            channels[name] = CHANNELS[name].restore([ItemRun(np.zeros(run.shape, run.dtype)) for run in items.runs])
            firsts.append(max(0, turn.path_tokens - 1 - len(items.runs[0])))
    marks = {**completion.marks, BAD_FROM: min(firsts)}
    return replace(turn, completion=replace(completion, channels=channels, marks=marks))


def refuse_lost(path: Sequence[Stretch], lost: Mapping[TurnId, LostItems]) -> None:
    """Refuse to make a sample of a path of which a turn has lost items.

    Raises:
        AssemblyError: names the first such turn.
    """
    for stretch in path:
        if (items := lost.get(stretch.turn.id)) is not None:
            raise AssemblyError(
                f"the {items.channel} of turn {stretch.turn.id} are lost: {items.reason}",
                hint="--on-bad-rows mask keeps the sample, without loss from the first of them on",
                turn=int(stretch.turn.id),
            )
