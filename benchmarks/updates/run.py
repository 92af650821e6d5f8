"""A run: the engines, and for each case a session server and its rounds."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from benchmarks.updates.case import Case
from benchmarks.updates.judge import MISSED, Verdict, judge
from benchmarks.updates.replay import Weights
from benchmarks.updates.rounds import (
    SERVER_OPTIONS,
    Load,
    Round,
    Stage,
    TraceReader,
    play_round,
    write_checkpoints,
)
from turnkeeper.demo.stack import ENGINES, MAX_BATCH, running_engines, running_server

TRIES = 4
"""How often a round is played at most that an update missed: on a busy machine its turns can end before the pause."""

Note: TypeAlias = Callable[[Round, Verdict], None]
"""Gets each round, judged."""


@asynccontextmanager
async def running_stage(folder: Path, *, max_batch: int = MAX_BATCH) -> AsyncGenerator[Stage]:
    """Run the engines; traces and logs go to the folder.

    Args:
        folder: where they go.
        max_batch: the places of each engine; a load has more agents than both have places.

    Raises:
        ProcessError: an engine did not start.
    """
    checkpoints = write_checkpoints(folder)
    traces = tuple(TraceReader(folder / f"engine-{index}.trace.jsonl") for index in range(ENGINES))
    async with running_engines(folder, checkpoint=checkpoints[0], max_batch=max_batch) as urls:
        yield Stage(engine_urls=urls, checkpoints=checkpoints, traces=traces)


async def run_case(
    stage: Stage,
    case: Case,
    folder: Path,
    *,
    repeats: int,
    load: Load,
    weights: Weights,
    seconds: float = float("inf"),
    on_round: Note,
) -> None:
    """Play a case's rounds, each judged before the next.

    Args:
        stage: the engines.
        case: what is compared.
        folder: for the session server's log.
        repeats: rounds at most.
        load: how much is played in each.
        weights: remembered over cases.
        seconds: no round begins later than this after the first.
        on_round: gets each round.

    Raises:
        TurnkeeperError: the session server did not start, or an engine refused an update.
    """
    log = folder / f"server-{case.name.replace(', ', '-')}.log"
    options = [*SERVER_OPTIONS, *case.options]
    started = time.monotonic()
    async with running_server(
        log, stage.engine_urls, mode=case.mode, checkpoint=stage.checkpoints[0], options=options
    ) as server:
        for number in range(repeats):
            if time.monotonic() - started > seconds:
                break
            await _play_until_met(stage, case, server.url, number=number, load=load, weights=weights, on_round=on_round)


async def _play_until_met(
    stage: Stage, case: Case, url: str, *, number: int, load: Load, weights: Weights, on_round: Note
) -> None:
    """Play a round, and again where the update met no turn and nothing else is wrong."""
    for left in reversed(range(TRIES)):
        played = await play_round(stage, case, url, number=number, load=load)
        verdict = await asyncio.to_thread(judge, played, weights)
        if verdict.problems != (MISSED,) or not left:
            on_round(played, verdict)
            return
