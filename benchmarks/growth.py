"""How costs grow with a session: ``python -m benchmarks.growth``.

* What `GET /sessions/{id}` says of a session's tokens, as a forecast and as the whole collect that would say the same.
* A turn that asks what all earlier turns asked (best-of-n in one session), committed, and why it is no extension.
* The text of a reply handed on in deltas of one token.

Every figure is the fastest of several runs on one thread, in milliseconds, at each size.
"""

import argparse
from collections.abc import Callable, Sequence
from time import perf_counter

from rich.console import Console
from rich.table import Table

from benchmarks.samples import build_session
from turnkeeper.core import Completion, FinishReason, Prompt, Session, Tree, TurnRequest, VersionSpan
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.dialects import DIALECTS, ParseContext, StreamStart
from turnkeeper.errors import EngineError
from turnkeeper.samples import CollectOptions, collect, forecast, load_hooks, view_session

SIZES = (10, 100, 1000)
_TURN_TOKENS = 32


def forecast_session(session: Session) -> None:
    """What `GET` does for the accounting."""
    options = CollectOptions(hooks=load_hooks())
    forecast(view_session(session), session_ledger=session.ledger, options=options, max_seq_len=None)


def collect_session(session: Session) -> None:
    """A whole collect; its text is not decoded."""
    options = CollectOptions(hooks=load_hooks())
    view, ledger = view_session(session), session.ledger
    collect(view, session_metadata={}, session_ledger=ledger, decode=lambda _: "", options=options)


def ask_again(session: Session, times: int) -> None:
    """So many equal questions, one after the other."""
    request = TurnRequest(messages=({"role": "user", "content": "roll the dice"},))
    for number in range(times):
        pending = session.begin(request, at=0.0)
        completion = Completion(
            ids=freeze_ids([number + 1]),
            logprobs=freeze_ids([0]).astype("float64"),
            message={"role": "assistant", "content": f"{number}"},
            finish_reason=FinishReason.STOP,
            versions=(VersionSpan(version="1", start=0, stop=1),),
        )
        session.commit(pending, prompt=Prompt(trim=0, ids=freeze_ids([1, 2, 3])), completion=completion, at=0.0)


def stream_deltas(name: str, deltas: int) -> None:
    """A streamed reply of so many deltas, thinking first, in one dialect."""
    dialect = next(each for each in DIALECTS if each.name == name)
    said = {"input": "a"} if name == "responses" else {"messages": [{"role": "user", "content": "a"}]}
    call = dialect.parse_request({**said, "max_tokens": 9, "stream": True}, ParseContext(decode_token=str))
    stream = call.open_stream(StreamStart(response_id=dialect.build_response_id("0" * 32)))
    for _ in range(deltas):
        stream.extend(reasoning="some ", content="")
    for _ in range(deltas):
        stream.extend(reasoning="", content="words ")
    stream.fail(EngineError("enough"))


def measure(prepare: Callable[[], Session], step: Callable[[Session], object], runs: int) -> float:
    """The fastest run of a step, in milliseconds."""
    best = float("inf")
    for _ in range(runs):
        session = prepare()
        started = perf_counter()
        step(session)
        best = min(best, perf_counter() - started)
    return best * 1e3


def run(sizes: Sequence[int] = SIZES, runs: int = 3) -> dict[str, list[float]]:
    """Every step at every size."""
    linear = {size: build_session(size * _TURN_TOKENS, size, None) for size in sizes}
    return {
        "forecast, turns in a row": [measure(lambda size=size: linear[size], forecast_session, runs) for size in sizes],
        "collect, turns in a row": [measure(lambda size=size: linear[size], collect_session, runs) for size in sizes],
        "equal questions": [
            measure(lambda: Session.open(Tree()), lambda session, size=size: ask_again(session, size), runs)
            for size in sizes
        ],
        **{
            f"{2 * _TURN_TOKENS} streamed deltas for each turn, {dialect.name}": [
                measure(
                    lambda: Session.open(Tree()),
                    lambda _, size=size, name=dialect.name: stream_deltas(name, _TURN_TOKENS * size),
                    runs,
                )
                for size in sizes
            ]
            for dialect in DIALECTS
        },
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs: int = parser.parse_args().runs
    table = Table("milliseconds", *(f"{size} turns" for size in SIZES), title="How costs grow")
    for name, figures in run(runs=runs).items():
        table.add_row(name, *(f"{figure:.2f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
