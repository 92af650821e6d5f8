"""Play held-out tasks on the package's own numpy model, many at once, by plain sampling at temperature 1.

    python -m training.play --tasks 400 --seeds 5 [--checkpoint DIR] [--noise 0.05]

This is the agent loop in token ids alone: no server, no parsing beyond the tool call's expression.
"""

import argparse
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from training.episodes import system_text
from turnkeeper.tiny.cache import SequenceKV
from turnkeeper.tiny.checkpoint import derive_weights, read_weights, shipped_checkpoint
from turnkeeper.tiny.model import Chunk, TinyModel, softmax
from turnkeeper.tiny.tasks import Task, calculate, held_out_tasks, is_solved

MAX_TURNS = 6
MAX_TURN_TOKENS = 80


@dataclass(slots=True, kw_only=True)
class Game:
    """One task being played."""

    task: Task
    kv: SequenceKV
    ids: list[int]
    """Not yet forwarded."""
    turn: list[int] = field(default_factory=list[int])
    """What the model has sampled in the running turn."""
    turns: int = 0
    final_text: str | None = None


def play_tasks(model: TinyModel, tokenizer: Tokenizer, tasks: tuple[Task, ...], seed: int) -> list[str]:
    """The final text of each task, empty when the agent got none within the limits."""
    rng = np.random.default_rng(seed)
    start = model.new_kv()
    model.forward([Chunk(ids=_encode(tokenizer, system_text()), kv=start)])
    games: list[Game] = []
    for task in tasks:
        kv = model.new_kv(512)
        kv.copy_prefix(start, start.length)
        question = f"<|im_start|>user\n{task.question}<|im_end|>\n<|im_start|>assistant\n"
        games.append(Game(task=task, kv=kv, ids=list(_encode(tokenizer, question))))
    end = model.shape.eos_token_id
    while running := [game for game in games if game.final_text is None]:
        logits = model.forward([Chunk(ids=np.array(game.ids, np.int32), kv=game.kv) for game in running]).logits
        for game, token in zip(running, _sample(logits, rng), strict=True):
            game.turn.append(int(token))
            game.ids = [int(token)]
            if token == end or len(game.turn) >= MAX_TURN_TOKENS:
                _end_turn(game, tokenizer)
    return [game.final_text or "" for game in games]


def _end_turn(game: Game, tokenizer: Tokenizer) -> None:
    text = tokenizer.decode(game.turn)
    call = re.search(
        r'<tool_call>\n\{"name": "calculate", "arguments": \{"expression": "(.*?)"\}\}\n</tool_call>', text
    )
    game.turns += 1
    if call is None or game.turns >= MAX_TURNS:
        game.final_text = "" if call else text.rpartition("</think>")[2]
        return
    reply = f"\n<|im_start|>user\n<tool_response>\n{calculate(call[1])}\n</tool_response><|im_end|>\n"
    game.ids.extend(_encode(tokenizer, f"{reply}<|im_start|>assistant\n"))
    game.turn = []


def _encode(tokenizer: Tokenizer, text: str) -> NDArray[np.int32]:
    return np.array(tokenizer.encode(text).ids, np.int32)


def _sample(logits: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int64]:
    cumulated = softmax(logits).astype(np.float64).cumsum(axis=-1)
    draws = rng.random(len(logits)) * cumulated[:, -1]
    return (cumulated < draws[:, None]).sum(axis=-1)


def _batches(tasks: tuple[Task, ...], size: int = 100) -> Iterator[tuple[Task, ...]]:
    for start in range(0, len(tasks), size):
        yield tasks[start : start + size]


def main() -> None:
    """Play and print the share of solved tasks for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--checkpoint", type=Path, default=shipped_checkpoint())
    parser.add_argument("--noise", type=float, default=0.0, help="play the weights that derive_weights makes")
    parser.add_argument("--show", type=int, default=0, help="how many failures to print")
    args = parser.parse_args()
    shape, weights = read_weights(args.checkpoint)
    model = TinyModel(shape, derive_weights(weights, 1, args.noise) if args.noise else weights)
    tokenizer = Tokenizer.from_file(str(args.checkpoint / "tokenizer.json"))
    rates: list[float] = []
    for seed in range(args.seeds):
        began = time.monotonic()
        tasks = held_out_tasks(args.tasks, seed)
        texts = [text for batch in _batches(tasks) for text in play_tasks(model, tokenizer, batch, seed)]
        solved = [is_solved(task, text) for task, text in zip(tasks, texts, strict=True)]
        rates.append(sum(solved) / len(solved))
        by_steps = [
            np.mean([ok for task, ok in zip(tasks, solved, strict=True) if len(task.steps) == steps])
            for steps in (1, 2)
        ]
        print(
            f"seed {seed}: solved {rates[-1]:.3f} of {len(tasks)} (one step {by_steps[0]:.3f}, two steps "
            f"{by_steps[1]:.3f}), {time.monotonic() - began:.0f} s",
            flush=True,
        )
        failures = [(task, text) for task, text, ok in zip(tasks, texts, solved, strict=True) if not ok]
        for task, text in failures[: args.show]:
            print(f"  {task.question!r} {task.steps} -> {text!r}")
    print(f"mean {np.mean(rates):.3f}, {args.tasks * args.seeds} tasks")


if __name__ == "__main__":
    main()
