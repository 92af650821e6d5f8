"""Which cases are measured: those that the budget speaks of, or all of them."""

from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.util import find_spec

from turnkeeper.bench.load.workload import LONG, SHORT, Talk
from turnkeeper.choices import HistoryKind, PauseMode, TokenizerBackend


class Rows(StrEnum):
    """Which routing rows the engine sends with a turn."""

    NONE = "none"
    """No routing replay."""
    INCREMENTAL = "incremental"
    """Those that the turn adds."""
    FULL = "full"
    """Those of the whole path, every turn."""


ADMIN_KEY = "bench"
"""The admin's, where sessions have keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to measure."""

    sessions: int
    rows: Rows = Rows.NONE
    talk: Talk = SHORT
    model: str = "Qwen3-30B-A3B"
    history: HistoryKind = HistoryKind.LINEAR
    is_streamed: bool = False
    tokenizer: TokenizerBackend = TokenizerBackend.TOKENIZERS
    """Which library encodes, from the first turn on."""
    turns: int | None = None
    """Turns of each session; None for all of the conversation's."""
    runs: int = 1
    """How often it is measured, each time with new sessions; medians count."""
    delay_s: float = 0.0
    """How long the mock takes for a generation."""
    think_s: float = 0.0
    """The mean time an agent thinks before a turn."""
    has_keys: bool = False
    """Whether each session has a key of its own, which its agent sends."""

    @property
    def name(self) -> str:
        """Says what is special about it."""
        parts = [f"{self.talk.name}", f"R3 {self.rows}", f"{self.sessions} session{'s' if self.sessions > 1 else ''}"]
        parts += [self.model] if self.model != "Qwen3-30B-A3B" else []
        parts += ["tree"] if self.history is HistoryKind.TREE else []
        parts += ["stream"] if self.is_streamed else []
        parts += [self.tokenizer] if self.tokenizer is not TokenizerBackend.TOKENIZERS else []
        parts += [f"{self.turns} turns"] if self.turns is not None else []
        parts += ["thinking agents"] if self.think_s else []
        parts += ["keys"] if self.has_keys else []
        return ", ".join(parts)

    @property
    def turns_each(self) -> int:
        """Turns that each session takes."""
        return self.turns or self.talk.turns

    @property
    def server_flags(self) -> tuple[str, ...]:
        """The flags with which the session server is started."""
        version = "v2" if self.history is HistoryKind.TREE else "v1"
        mode = PauseMode.RETRACT if self.rows is Rows.FULL else PauseMode.IN_PLACE
        flags = ("--use-session-server", version, "--pause-generation-mode", mode.value)
        flags += ("--tokenizer-backend", self.tokenizer.value)
        flags += ("--api-key", ADMIN_KEY) if self.has_keys else ()
        return flags if self.rows is Rows.NONE else (*flags, "--use-rollout-routing-replay")


RUNS = 5
"""Runs of a case whose medians are shown."""

FAST: tuple[Case, ...] = tuple(
    replace(case, runs=RUNS, tokenizer=TokenizerBackend.FASTOKENS)
    for case in (
        Case(sessions=1),
        Case(sessions=16),
        Case(sessions=16, turns=12, delay_s=0.5, think_s=0.5),
        Case(sessions=1, rows=Rows.INCREMENTAL),
        Case(sessions=1, rows=Rows.FULL),
    )
    if find_spec("fastokens")
)
"""What the fast tokenizer changes; nothing where it is not installed."""

QUICK: tuple[Case, ...] = (
    Case(sessions=1, runs=RUNS),
    Case(sessions=1, runs=RUNS, has_keys=True),
    Case(sessions=16, runs=RUNS),
    Case(sessions=16, turns=12, delay_s=0.5, think_s=0.5, runs=RUNS),
    Case(sessions=64, turns=6, runs=RUNS),
    Case(sessions=256, turns=3, runs=RUNS),
    Case(sessions=1, runs=RUNS, is_streamed=True),
    Case(sessions=1, runs=RUNS, history=HistoryKind.TREE),
    Case(sessions=1, runs=RUNS, rows=Rows.INCREMENTAL),
    Case(sessions=16, turns=10, runs=RUNS, rows=Rows.INCREMENTAL),
    Case(sessions=1, runs=RUNS, rows=Rows.FULL),
    Case(sessions=1, runs=RUNS, rows=Rows.INCREMENTAL, model="GLM-4.7"),
    Case(sessions=1, runs=RUNS, talk=LONG),
    Case(sessions=1, runs=RUNS, talk=LONG, rows=Rows.INCREMENTAL),
    *FAST,
)
"""About six minutes on two quiet cores."""


def list_all() -> tuple[Case, ...]:
    """List every combination that says something of its own; more than half an hour."""
    closed = [
        Case(sessions=sessions, rows=rows, runs=RUNS if sessions <= 16 else 1)
        for rows in Rows
        for sessions in ((1, 16, 64, 256) if rows is not Rows.FULL else (1, 16))
    ]
    opened = [
        Case(sessions=16, turns=12, rows=rows, delay_s=0.5, think_s=0.5, runs=RUNS)
        for rows in (Rows.NONE, Rows.INCREMENTAL)
    ]
    shapes = [Case(sessions=1, rows=rows, model="GLM-4.7", runs=RUNS) for rows in (Rows.INCREMENTAL, Rows.FULL)]
    kinds = [
        Case(sessions=sessions, rows=rows, history=history, is_streamed=is_streamed, runs=RUNS)
        for history, is_streamed in ((HistoryKind.TREE, False), (HistoryKind.LINEAR, True))
        for rows in (Rows.NONE, Rows.INCREMENTAL)
        for sessions in (1, 16)
    ]
    long = [Case(sessions=1, talk=LONG, rows=rows, runs=RUNS if rows is not Rows.FULL else 1) for rows in Rows]
    return (*closed, *opened, *shapes, *kinds, *long, *FAST)
