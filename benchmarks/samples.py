"""What samples and routing rows of a long session cost: ``python -m benchmarks.samples``.

A session of 20 turns and 32768 tokens with 48 layers x top-8 of 128 experts is built, then collected and written; its
rows are decoded as increments and as one whole payload. Every figure is the smallest and the median of several runs
on one thread, in milliseconds. The text of a sample is not decoded: that is the tokenizer's cost.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
from rich.console import Console
from rich.table import Table

from turnkeeper.channels.routing import RoutingRows, RoutingShape, encode_rows, plan_rows, take_patch
from turnkeeper.core import Completion, FinishReason, Linear, Prompt, Session, TurnRequest, VersionSpan
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.jsontypes import Message
from turnkeeper.samples import CollectOptions, SamplesPayload, collect, decode_samples, load_hooks, view_session

SHAPE = RoutingShape(layers=48, topk=8, experts=128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured step."""

    name: str
    runs_ms: tuple[float, ...]

    @property
    def least_ms(self) -> float:
        """The fastest run."""
        return min(self.runs_ms)

    @property
    def median_ms(self) -> float:
        """The run in the middle."""
        return median(self.runs_ms)


def build_rows(tokens: int, seed: int = 0) -> RoutingRows:
    """Valid rows of a path of so many tokens: distinct experts in every row of a layer."""
    first = np.random.default_rng(seed).integers(0, SHAPE.experts, size=(tokens - 1, SHAPE.layers, 1))
    steps = np.arange(SHAPE.topk) * 3
    return RoutingRows(experts_RLK=((first + steps) % SHAPE.experts).astype(np.uint8))


def build_session(tokens: int, turns: int, rows: RoutingRows | None) -> Session:
    """A linear session whose turns grow its path evenly, three of four tokens sampled."""
    session = Session.open(Linear())
    history: list[Message] = []
    length = 0
    for turn in range(turns):
        stop = tokens * (turn + 1) // turns
        sampled = (stop - length) * 3 // 4
        history.append({"role": "user", "content": f"question {turn}"})
        pending = session.begin(TurnRequest(messages=tuple(history)), at=float(turn))
        message: Message = {"role": "assistant", "content": f"answer {turn}"}
        completion = Completion(
            ids=freeze_ids(np.arange(stop - sampled, stop) % 150_000),
            logprobs=-np.random.default_rng(turn).random(sampled),
            message=message,
            finish_reason=FinishReason.STOP,
            versions=(VersionSpan(version="1", start=0, stop=sampled),),
            channels={"routed_experts": rows.cut(max(0, length - 1), stop - 1)} if rows else {},
        )
        prompt = Prompt(trim=0, ids=freeze_ids(np.arange(length, stop - sampled) % 150_000))
        session.mark_delivered(session.commit(pending, prompt=prompt, completion=completion, at=float(turn)).id, at=0.0)
        history.append(message)
        length = stop
    return session


def measure(name: str, step: Callable[[], object], runs: int) -> Figure:
    """Time a step."""
    times: list[float] = []
    for _ in range(runs):
        started = perf_counter()
        step()
        times.append((perf_counter() - started) * 1e3)
    return Figure(name=name, runs_ms=tuple(times))


def run(tokens: int = 32_768, turns: int = 20, runs: int = 5) -> list[Figure]:
    """Measure every step."""
    rows = build_rows(tokens)
    session, bare = build_session(tokens, turns, rows), build_session(tokens, turns, None)
    options = CollectOptions(hooks=load_hooks())

    def gather(told: Session) -> SamplesPayload:
        collection = collect(
            view_session(told),
            session_metadata={},
            session_ledger=told.ledger,
            decode=lambda ids: "",
            options=options,
        )
        return collection.encode()

    def take(payload: str, use_addition_r3: bool) -> None:
        request = plan_rows(parent_tokens=parent, common_prefix=parent, use_addition_r3=use_addition_r3)
        held = [rows.cut(0, request.held_rows)]
        take_patch(payload, request=request, shape=SHAPE, prompt_tokens=tokens - 1, completion_tokens=1, held=held)

    parent = tokens * (turns - 1) // turns
    whole, increment = encode_rows(rows), encode_rows(rows.cut(parent - 1, tokens - 1))
    joined = gather(session).to_bytes()
    return [
        measure("collect and write, no routing rows", lambda: sum(map(len, gather(bare).iter_chunks())), runs),
        measure("collect and write, with routing rows", lambda: sum(map(len, gather(session).iter_chunks())), runs),
        measure("decode a samples payload", lambda: decode_samples(joined), runs),
        measure("take a turn's rows from an increment", lambda: take(increment, True), runs),
        measure("take a turn's rows from a whole payload", lambda: take(whole, False), runs),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and show; without arguments those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samples", description=__doc__)
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens of the session")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5, help="runs of each step")
    options = parser.parse_args(arguments)
    table = Table(title=f"{options.tokens} tokens, {options.turns} turns, 48 layers x top-8 of 128 experts")
    for name in ("step", "least ms", "median ms"):
        table.add_column(name, justify="left" if name == "step" else "right")
    for figure in run(options.tokens, options.turns, options.runs):
        table.add_row(figure.name, f"{figure.least_ms:.1f}", f"{figure.median_ms:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
