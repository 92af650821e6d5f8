"""The training side of the arithmetic tasks: other sentences and other operand pairs than the held-out side."""

from training.phrasings import TRAINING
from turnkeeper.demo.tasks import Task, TaskSide, draw_tasks

TRAINING_SIDE = TaskSide(name="training", phrasings=TRAINING, two_step_share=0.5, is_held_out=False)


def training_tasks(count: int, seed: int) -> tuple[Task, ...]:
    """Draw tasks of the training side; equal arguments give equal tasks."""
    return draw_tasks(TRAINING_SIDE, count, seed)
