"""Play held-out tasks on the embedded engine, many at once, by plain sampling at temperature 1.

    python -m training.play --tasks 400 --seeds 5 [--checkpoint DIR] [--noise 0.05]

This is the agent loop in token ids alone: the engine's scheduler without its server, and no parsing beyond the
tool call's expression.
"""

import argparse
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from training.episodes import system_text
from turnkeeper.demo.tasks import Task, calculate, held_out_tasks, is_solved
from turnkeeper.tiny.checkpoint import TinyCheckpoint, derive_weights, read_weights, shipped_checkpoint
from turnkeeper.tiny.model import TinyModel
from turnkeeper.tiny.scheduler import (
    Delta,
    EngineRequest,
    FinishKind,
    Result,
    SamplingParams,
    Scheduler,
    Vocabulary,
    WeightStamp,
)

MAX_TURNS = 6
MAX_TURN_TOKENS = 80
TOOL_CALL = re.compile(r'<tool_call>\n\{"name": "calculate", "arguments": \{"expression": "(.*?)"\}\}\n</tool_call>')


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How a task went."""

    task: Task
    final_text: str
    """Empty when the agent got none within the limits."""
    turns: int
    tokens: int
    """How many were sampled."""

    @property
    def is_solved(self) -> bool:
        """Whether the final text gives the answer."""
        return is_solved(self.task, self.final_text)


class _Game:
    """One task being played: submits a turn, and the next one when its result comes."""

    def __init__(self, task: Task, scheduler: Scheduler, tokenizer: Tokenizer, seed: int) -> None:
        self._task, self._scheduler, self._tokenizer, self._seed = task, scheduler, tokenizer, seed
        self._ids: list[int] = []
        self._turns = 0
        self._tokens = 0
        self.played: Played | None = None
        start = f"{system_text()}<|im_start|>user\n{task.question}<|im_end|>\n"
        self._submit(start)

    def _submit(self, text: str) -> None:
        self._ids.extend(self._tokenizer.encode(f"{text}<|im_start|>assistant\n").ids)
        params = SamplingParams(max_new_tokens=MAX_TURN_TOKENS, seed=self._seed + self._turns)
        prompt = np.array(self._ids, np.int32)
        rid = f"{self._task.id}-{self._turns}"
        self._scheduler.submit(EngineRequest(rid=rid, prompt_ids=prompt, params=params), self._take)

    def _take(self, update: Delta | Result) -> None:
        assert isinstance(update, Result), "nothing is streamed"
        self._ids.extend(update.tokens.ids)
        self._turns += 1
        self._tokens += len(update.tokens.ids)
        call = TOOL_CALL.search(update.text)
        is_over = update.finish.kind is not FinishKind.STOP or self._turns == MAX_TURNS
        if call is None or is_over:
            final_text = "" if is_over else update.text.rpartition("</think>")[2]
            self.played = Played(task=self._task, final_text=final_text, turns=self._turns, tokens=self._tokens)
            return
        reply = f"<tool_response>\n{calculate(call[1])}\n</tool_response>"
        self._submit(f"\n<|im_start|>user\n{reply}<|im_end|>\n")


def play_tasks(
    checkpoint: TinyCheckpoint, tokenizer: Tokenizer, tasks: tuple[Task, ...], *, seed: int, max_batch: int = 64
) -> list[Played]:
    """Play each task once; the seed decides all draws, whatever else is in the batch."""
    scheduler = Scheduler(
        TinyModel(checkpoint.shape, checkpoint.weights),
        Vocabulary(tokenizer),
        stop_ids=[checkpoint.shape.eos_token_id],
        max_batch=max_batch,
        stamp=WeightStamp(version="default", source=""),
    )
    games = [
        _Game(task, scheduler, tokenizer, seed * 1_000_000 + index * MAX_TURNS) for index, task in enumerate(tasks)
    ]
    while scheduler.has_work:
        scheduler.step()
    return [game.played for game in games if game.played is not None]


def main() -> None:
    """Play and print the share of solved tasks for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--checkpoint", type=Path, default=shipped_checkpoint())
    parser.add_argument("--noise", type=float, default=0.0, help="play the weights that derive_weights makes")
    parser.add_argument("--show", type=int, default=0, help="how many failures to print")
    args = parser.parse_args()
    checkpoint = read_weights(args.checkpoint)
    if args.noise:
        derived = derive_weights(checkpoint.weights, seed=1, scale=args.noise)
        checkpoint = TinyCheckpoint(shape=checkpoint.shape, weights=derived)
    tokenizer = Tokenizer.from_file(str(args.checkpoint / "tokenizer.json"))
    rates: list[float] = []
    for seed in range(args.seeds):
        began = time.monotonic()
        played = play_tasks(checkpoint, tokenizer, held_out_tasks(args.tasks, seed), seed=seed)
        rates.append(_solved_share(played))
        by_steps = [_solved_share([one for one in played if len(one.task.steps) == steps]) for steps in (1, 2)]
        print(
            f"seed {seed}: solved {rates[-1]:.3f} of {len(played)} (one step {by_steps[0]:.3f}, two steps "
            f"{by_steps[1]:.3f}), {sum(one.tokens for one in played)} tokens, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        for one in [one for one in played if not one.is_solved][: args.show]:
            print(f"  {one.task.question!r} {one.task.steps} -> {one.final_text!r}")
    print(f"mean {np.mean(rates):.3f}, {args.tasks * args.seeds} tasks")


def _solved_share(played: list[Played]) -> float:
    return sum(one.is_solved for one in played) / len(played)


if __name__ == "__main__":
    main()
