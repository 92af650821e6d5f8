"""What rendering costs: ``python -m benchmarks.rendering``.

A session of 2000 turns is rendered turn by turn: what a turn costs must not grow with what came before it. Then a
session of 34,000 tokens is rendered whole, compared with its stored ids, and read back by the parser. Where the fast
tokenizer is installed, it and `tokenizers` encode the same texts, each of them new to both. Texts are source files;
figures are milliseconds on one thread. The exit status is 1 when a goal is missed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, quantiles
from time import perf_counter, strftime, thread_time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import turnkeeper
from turnkeeper.bench.server import find_checkpoint
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.core.tokens import TokenIds
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering import ParentContext, Renderer, build_renderer, parse_completion
from turnkeeper.rendering.checks import check_encoder
from turnkeeper.rendering.tokenization import Encoder, FallbackEncoder
from turnkeeper.service.encoding import limit_libraries

TURNS = 2000
WINDOW = 100
"""How many turns at each end are laid side by side."""
TOKENS = 34_000
PIECE = 4_500
"""Characters of source in what one turn adds, about 1,350 tokens of a real vocabulary."""
GROWTH_GOAL = 1.25
"""What a turn at the end may cost against one at the beginning; noise included."""
COMPARE_GOAL_MS = 40.0
LOOK: JsonObject = {
    "type": "function",
    "function": {"name": "look", "description": "Look at a file.", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured step."""

    name: str
    value_ms: float
    goal_ms: float | None = None
    """What it must not exceed; None where nothing is asked."""

    @property
    def is_met(self) -> bool:
        """Whether it keeps its goal."""
        return self.goal_ms is None or self.value_ms <= self.goal_ms


class Texts:
    """Pieces of real source text, one after the other, never the same twice in a row."""

    def __init__(self) -> None:
        """Read the package's own sources."""
        root = Path(turnkeeper.__file__).parent
        self._source = "\n".join(path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py")))
        self._position = 0

    @property
    def size(self) -> int:
        """Characters in all of them."""
        return len(self._source)

    def take(self, size: int) -> str:
        """The next characters."""
        start = self._position % (len(self._source) - size)
        self._position += size
        return self._source[start : start + size]


def build_turn(texts: Texts, number: int) -> Sequence[Message]:
    """What one turn adds: a call, and its result."""
    call = {
        "id": f"functions.look:{number}",
        "type": "function",
        "function": {"name": "look", "arguments": f'{{"line": {number}}}'},
    }
    said: Message = {"role": "assistant", "content": texts.take(40), "tool_calls": [call]}
    result: Message = {"role": "tool", "tool_call_id": call["id"], "name": "look", "content": texts.take(400)}
    return said, result


def measure_turns(renderer: Renderer, turns: int = TURNS) -> list[float]:
    """The time of each turn's suffix, in milliseconds."""
    texts = Texts()
    history: list[Message] = [{"role": "user", "content": texts.take(400)}]
    prompt = renderer.render(history, [LOOK], {})
    times: list[float] = []
    for number in range(turns):
        said, result = build_turn(texts, number)
        history.append(said)
        stop = renderer.stop_token_ids[-1]
        completion = renderer.tokenizer.encode(f"{said['content']}{renderer.tokenizer.markers.get(stop, '')}")
        parent = ParentContext(
            messages=history,
            completion_ids=completion,
            prompt_ids=prompt.ids,
            chat_template_kwargs=prompt.chat_template_kwargs,
        )
        started = perf_counter()
        prompt = renderer.extend(parent, [result], [LOOK], {})
        times.append((perf_counter() - started) * 1e3)
        history.append(result)
    return times


def build_path(renderer: Renderer, tokens: int = TOKENS) -> tuple[list[Message], TokenIds]:
    """A conversation of at least so many tokens that ends in an answer, and its ids."""
    texts = Texts()
    messages: list[Message] = [{"role": "user", "content": texts.take(400)}]
    size, number = 0, 0
    while size < tokens:
        said, result = build_turn(texts, number)
        messages += [said, {**result, "content": texts.take(4000)}]
        size += len(renderer.tokenizer.encode(str(messages[-1]["content"])))
        number += 1
    messages.append({"role": "assistant", "content": "That was all."})
    text = renderer.text_renderer.render(
        messages, [LOOK], renderer.validate(messages, [LOOK], {}), add_generation_prompt=False
    )
    return messages, renderer.tokenizer.encode(text)


def time_ms(step: Callable[[], object], runs: int = 7) -> float:
    """The fastest of several runs."""
    times: list[float] = []
    for _ in range(runs):
        started = perf_counter()
        step()
        times.append((perf_counter() - started) * 1e3)
    return min(times)


def run(renderer: Renderer) -> list[Figure]:
    """Measure everything."""
    turns = measure_turns(renderer)
    first, last = (quantiles(part, n=4)[0] for part in (turns[:WINDOW], turns[-WINDOW:]))
    messages, ids = build_path(renderer)
    said = ids[-4000:]
    size = f"{len(ids):,} tokens"
    return [
        Figure(name=f"suffix of a turn, the first {WINDOW} (lower quartile)", value_ms=first),
        Figure(name=f"suffix of a turn, the last {WINDOW} of {TURNS:,}", value_ms=last, goal_ms=first * GROWTH_GOAL),
        Figure(
            name=f"compare {size} with their messages",
            value_ms=time_ms(lambda: renderer.compare(messages, [LOOK], {}, ids)),
            goal_ms=COMPARE_GOAL_MS,
        ),
        Figure(name=f"render {size} whole", value_ms=time_ms(lambda: renderer.render(messages, [LOOK], {}), runs=3)),
        Figure(
            name=f"parse a completion of {len(said):,} tokens",
            value_ms=time_ms(lambda: parse_completion(renderer.parser(), said)),
        ),
    ]


def compare_encoders(renderer: Renderer, tokenizer_json: bytes) -> list[Figure]:
    """What a turn's text costs by `tokenizers` and by the fast tokenizer; nothing where that is not installed."""
    if find_spec("fastokens") is None:
        return []
    from turnkeeper.rendering.tokenization.fast_encoder import FastEncoder  # not at the top: the package is optional

    started = perf_counter()
    fast = FastEncoder(tokenizer_json)
    loaded = perf_counter()
    mismatch = check_encoder(FallbackEncoder(fast, renderer.tokenizer.huggingface_encoder), renderer)
    verdict = "equal" if mismatch is None else "NOT equal"
    pieces = list_pieces()
    return [
        Figure(name="load fastokens", value_ms=(loaded - started) * 1e3),
        Figure(name=f"check it on every probe: {verdict}", value_ms=(perf_counter() - loaded) * 1e3),
        Figure(
            name=f"encode {PIECE:,} characters, tokenizers",
            value_ms=time_pieces(renderer.tokenizer.huggingface_encoder, pieces),
        ),
        Figure(name=f"encode {PIECE:,} characters, fastokens", value_ms=time_pieces(fast, pieces)),
    ]


def list_pieces() -> list[str]:
    """All sources once, in pieces as long as what a turn adds."""
    texts = Texts()
    return [texts.take(PIECE) for _ in range(texts.size // PIECE)]


def time_pieces(encoder: Encoder, pieces: Sequence[str]) -> float:
    """The mean CPU time of a piece, in milliseconds."""
    times: list[float] = []
    for piece in pieces:
        started = thread_time()
        encoder.encode(piece)
        times.append((thread_time() - started) * 1e3)
    return mean(times)


def main(
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoint folder; else Qwen3's where it was fetched, else the shipped one."),
    ] = None,
    tito_model: Annotated[str, typer.Option(metavar="NAME", help="Family of its chat format.")] = "qwen3",
) -> None:
    """Measure rendering; the exit status is 1 when it misses a goal."""
    limit_libraries()
    read = read_checkpoint(find_checkpoint(checkpoint))
    renderer = build_renderer(read, tito_model, format_time=strftime)
    figures = [*run(renderer), *compare_encoders(renderer, read.tokenizer_json)]
    table = Table("step", "ms", "goal", box=None, pad_edge=False, header_style="bold")
    for figure in figures:
        goal = "" if figure.goal_ms is None else f"{figure.goal_ms:.2f}"
        table.add_row(figure.name, f"{figure.value_ms:.2f}", goal)
    Console().print(table)
    if not all(figure.is_met for figure in figures):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
