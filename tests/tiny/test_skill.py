"""What the shipped weights can do, played through the engine's scheduler by plain sampling at temperature 1.

1. They solve between 70 % and 82 % of held-out tasks: good enough that rollouts end, bad enough that rewards vary.
2. Rollouts of one task differ.
3. Weights derived from them still solve many tasks.
"""

import pytest
from tokenizers import Tokenizer

from training.play import Played, play_tasks
from turnkeeper.demo.tasks import held_out_tasks
from turnkeeper.tiny.checkpoint import TinyCheckpoint, derive_weights, read_weights, shipped_checkpoint

CHECKPOINT = read_weights(shipped_checkpoint())
TOKENIZER = Tokenizer.from_file(str(shipped_checkpoint() / "tokenizer.json"))


def _share(played: list[Played]) -> float:
    return sum(one.is_solved for one in played) / len(played)


def test_plain_sampling_solves_three_held_out_tasks_in_four() -> None:
    tasks = held_out_tasks(300, seed=1)
    played = play_tasks(CHECKPOINT, TOKENIZER, tasks, seed=1)
    assert len(played) == len(tasks)
    assert 0.70 <= _share(played) <= 0.82
    used_the_tool = [one.turns > 1 for one in played if one.is_solved]
    assert sum(used_the_tool) > 0.9 * len(used_the_tool)


def test_rollouts_of_a_task_differ() -> None:
    tasks = held_out_tasks(1, seed=5) * 16
    played = play_tasks(CHECKPOINT, TOKENIZER, tasks, seed=1)
    assert len({one.final_text for one in played}) > 1


@pytest.mark.parametrize("seed", [1, 2])
def test_derived_weights_still_solve_many_tasks(seed: int) -> None:
    derived = TinyCheckpoint(shape=CHECKPOINT.shape, weights=derive_weights(CHECKPOINT.weights, seed))
    assert _share(play_tasks(derived, TOKENIZER, held_out_tasks(60, seed=seed), seed=seed)) > 0.4
