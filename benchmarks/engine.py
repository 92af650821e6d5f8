"""How fast the embedded engine is: tokens a second by batch size, on one core.

::

    python -m benchmarks.engine [--weights DIR] [--repeats 5]

Whole steps of the scheduler are measured, with sampling, stop checks and text, not the forward alone. What a step
costs hardly depends on what the weights say, so without a checkpoint seeded ones will do.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from turnkeeper.tiny.checkpoint import read_weights, shipped_checkpoint
from turnkeeper.tiny.model import TinyModel, TinyShape, init_weights
from turnkeeper.tiny.scheduler import EngineRequest, SamplingParams, Scheduler, Update, Vocabulary, WeightStamp

PROMPT_TOKENS = 256
OUTPUT_TOKENS = 256
GOALS = {8: 600, 32: 900}
"""Tokens a second that the engine promises, by batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One batch size, measured."""

    batch: int
    prefill_tokens_s: float
    decode_tokens_s: float
    """The median of the repeats."""

    slowest_tokens_s: float
    """The slowest repeat's decode."""


def measure(model: TinyModel, batch: int, repeats: int) -> Speed:
    """Run `batch` requests of equal length from beginning to end, `repeats` times."""
    prefills: list[float] = []
    decodes: list[float] = []
    for repeat in range(repeats):
        scheduler = _build_scheduler(model, batch)
        rng = np.random.default_rng(repeat)
        for index in range(batch):
            prompt = rng.integers(10, model.shape.vocab_size, PROMPT_TOKENS, np.int32)
            params = SamplingParams(max_new_tokens=OUTPUT_TOKENS, ignore_eos=True)
            scheduler.submit(EngineRequest(rid=str(index), prompt_ids=prompt, params=params), _ignore)
        started = time.perf_counter()
        for _ in range(-(-batch * PROMPT_TOKENS // scheduler.prefill_tokens)):
            scheduler.step()
        prefilled = time.perf_counter()
        steps = 0
        while scheduler.running_count == batch:
            scheduler.step()
            steps += 1
        prefills.append(batch * PROMPT_TOKENS / (prefilled - started))
        decodes.append(batch * steps / (time.perf_counter() - prefilled))
    return Speed(
        batch=batch,
        prefill_tokens_s=median(prefills),
        decode_tokens_s=median(decodes),
        slowest_tokens_s=min(decodes),
    )


def render_table(speeds: Sequence[Speed]) -> Table:
    """The figures as a table."""
    table = Table(title=f"embedded engine, {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens a request, one core")
    for heading in ("batch", "decode tokens/s", "slowest repeat", "goal", "prefill tokens/s"):
        table.add_column(heading, justify="right")
    for speed in speeds:
        goal = str(GOALS.get(speed.batch, ""))
        figures = (speed.decode_tokens_s, speed.slowest_tokens_s)
        table.add_row(
            str(speed.batch), *(f"{figure:,.0f}" for figure in figures), goal, f"{speed.prefill_tokens_s:,.0f}"
        )
    return table


def main(
    weights: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Checkpoint folder; seeded weights without.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs a batch size; the median counts.")] = 5,
) -> None:
    """Measure the embedded engine; the exit status is 1 when it misses a goal."""
    shape, arrays = read_weights(weights) if weights else (TinyShape(), init_weights(TinyShape(), 0))
    model = TinyModel(shape, arrays)
    speeds = [measure(model, batch, repeats) for batch in (1, 8, 32)]
    Console().print(render_table(speeds))
    if any(speed.decode_tokens_s < GOALS.get(speed.batch, 0) for speed in speeds):
        raise typer.Exit(1)


def _build_scheduler(model: TinyModel, batch: int) -> Scheduler:
    vocabulary = Vocabulary(Tokenizer.from_file(str(shipped_checkpoint() / "tokenizer.json")))
    return Scheduler(
        model,
        vocabulary,
        stop_ids=[model.shape.eos_token_id],
        max_batch=batch,
        stamp=WeightStamp(version="bench", source=""),
    )


def _ignore(update: Update) -> None:
    pass


if __name__ == "__main__":
    typer.run(main)
