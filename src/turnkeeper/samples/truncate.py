"""The ends of samples: at the token budget, or at a turn that ended by length.

::

    path      | prompt 1 | completion 1 | prompt 2 | completion 2 |
    budget                       ^ inside a completion: cut there, the sample is truncated
    budget                                   ^ inside a prompt: cut back to the end of completion 1
    budget          ^ inside the first prompt: no sample

A longer budget only ever extends the sample of a shorter one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnkeeper.core import DropReason, FinishReason
from turnkeeper.ids import TurnId
from turnkeeper.samples.view import SessionView, Stretch, lay_out

_EXTENDABLE = (FinishReason.STOP, FinishReason.TOOL_CALLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The part of a path that its sample keeps."""

    turns: int
    """The number of turns; 0 where nothing fits."""
    tokens: int
    """The number of tokens; the last one is part of the last kept turn's completion."""
    is_inside: bool = False
    """True when the budget cuts the last kept completion short."""
    reason: DropReason | None = None
    """The reason why later sampled tokens of the path are left out; None when all are kept."""
    past_truncation: bool = False
    """True when the sample continues behind a turn that ended by length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPath:
    """A path, and the part of it that its sample keeps."""

    stretches: tuple[Stretch, ...]
    """The whole path."""
    cut: Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPaths:
    """The paths of a session that may become samples, by their leaves in commit order."""

    kept: Mapping[TurnId, CutPath]
    """The paths of which something is left."""
    empty: Mapping[TurnId, tuple[TurnId, ...]]
    """The turns of each path of which the budget leaves nothing."""


def cut_paths(view: SessionView, *, max_seq_len: int | None, past_truncation: bool) -> CutPaths:
    """Cut every path of a session that may become a sample.

    Args:
        view: the session as it stands.
        max_seq_len: the budget of one sample in tokens; None for none.
        past_truncation: True to continue behind a turn that ended by length (``--sample-past-truncation``).

    Raises:
        AssemblyError: a turn trims more of its parent than its parent sampled.
    """
    kept: dict[TurnId, CutPath] = {}
    empty: dict[TurnId, tuple[TurnId, ...]] = {}
    for leaf in view.leaves:
        path = view.trace(leaf)
        stretches = lay_out(path)
        cut = choose_cut(stretches, max_seq_len=max_seq_len, past_truncation=past_truncation)
        if cut.turns:
            kept[leaf] = CutPath(stretches=stretches, cut=cut)
        else:
            empty[leaf] = tuple(turn.id for turn in path)
    return CutPaths(kept=kept, empty=empty)


def choose_cut(stretches: Sequence[Stretch], *, max_seq_len: int | None, past_truncation: bool = False) -> Cut:
    """Decide where the sample of a path ends.

    Args:
        stretches: the path, laid out.
        max_seq_len: the budget in tokens, prompts and completions together; None for no budget.
        past_truncation: True to continue behind a turn that ended by length (``--sample-past-truncation``).
    """
    ended = [at for at, stretch in enumerate(stretches) if _ends_path(stretch)]
    first_end = ended[0] + 1 if ended else len(stretches)
    turns = len(stretches) if past_truncation else first_end
    is_past = past_truncation and first_end < turns
    for at, stretch in enumerate(stretches[:turns]):
        if max_seq_len is None or stretch.kept <= max_seq_len:
            continue
        is_inside = max_seq_len > stretch.sampled
        turns = at + is_inside
        return Cut(
            turns=turns,
            tokens=max_seq_len if is_inside else (stretches[at - 1].kept if at else 0),
            is_inside=is_inside,
            reason=DropReason.OVER_MAX_SEQ_LEN,
            past_truncation=is_past and turns > first_end,
        )
    reason = DropReason.AFTER_TRUNCATION if turns < len(stretches) else None
    return Cut(turns=turns, tokens=stretches[turns - 1].kept, reason=reason, past_truncation=is_past)


def _ends_path(stretch: Stretch) -> bool:
    return stretch.turn.completion.finish_reason not in _EXTENDABLE
