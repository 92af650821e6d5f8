"""Arithmetic tasks for an agent with a calculator: what the embedded engine's model can do.

A task is played by an agent loop: the system prompt with the tool, the question, then the assistant's tool call,
the tool's reply, and so on until the assistant answers in text. A task of two steps needs a second call with the
result of the first.

Training and held-out tasks share neither sentences (see `turnkeeper.demo.phrasings`) nor operand pairs: a pair
``{left, right}`` of any step belongs to one of the two sides for good, decided by a hash of its numbers. Only the
held-out side ships; the training side is in ``training/tasks.py`` of the repository.

The module knows neither tokens nor the model.
"""

import ast
import operator
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from turnkeeper.demo.phrasings import HELD_OUT, Arithmetic, Phrasings
from turnkeeper.jsontypes import JsonObject

SYSTEM_PROMPT = "You are a careful assistant. Use the calculator for every step, then give the answer."
"""The system message the model was trained with."""

CALCULATOR_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Evaluate one arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
"""The one tool of the tasks, in the form of chat completions."""

MAX_EXPRESSION_CHARS = 200
MAX_RESULT = 99_999
"""No step of a task has a larger result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSide:
    """One of the two disjoint sets of tasks: what the model was trained on, or what is held out."""

    name: str
    """Begins the ids of the tasks, and seeds their draws together with the seed."""
    phrasings: Phrasings
    two_step_share: float
    """The share of tasks that need a second call."""
    is_held_out: bool
    """Whether its operand pairs are the held-out ones, see `is_held_out_pair`."""


HELD_OUT_SIDE = TaskSide(name="held-out", phrasings=HELD_OUT, two_step_share=0.7, is_held_out=True)
"""Held-out tasks lean to two steps, so that rollouts have more turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One question and what solves it."""

    id: str
    question: str
    steps: tuple[str, ...]
    """The expressions of a right solution in order, each as ``left sign right``."""
    answer: str
    """The result of the last step, as the calculator writes it."""


def held_out_tasks(count: int, seed: int) -> tuple[Task, ...]:
    """Draw tasks of the held-out side; equal arguments give equal tasks."""
    return draw_tasks(HELD_OUT_SIDE, count, seed)


def draw_tasks(side: TaskSide, count: int, seed: int) -> tuple[Task, ...]:
    """Draw tasks of one side; equal arguments give equal tasks."""
    rng = random.Random(f"{side.name} {seed}")
    return tuple(_draw_task(rng, side, task_id=f"{side.name}-{seed}-{index}") for index in range(count))


def is_held_out_pair(left: int, right: int) -> bool:
    """Return True if the operand pair, in either order, belongs to the held-out side, as one pair in five does."""
    low, high = sorted((left, right))
    return ((low * 1_000_003) ^ (high * 998_244_353)) // 128 % 5 == 0


def is_solved(task: Task, final_text: str) -> bool:
    """Return True if the last number of the assistant's final text is the answer."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", final_text)
    return bool(numbers) and numbers[-1] == task.answer


def calculate(expression: str) -> str:
    """Evaluate an expression of numbers, ``+ - * /`` and brackets, exactly.

    Returns:
        The result: whole numbers as digits, others rounded to six decimals. For what it cannot evaluate a line
        that starts with ``error:``; a tool's reply is text in either case, so nothing is raised.
    """
    if len(expression) > MAX_EXPRESSION_CHARS:
        return f"error: the expression has more than {MAX_EXPRESSION_CHARS} characters"
    if not re.fullmatch(r"[0-9.+\-*/() ]+", expression):
        return "error: an expression holds only numbers, + - * / and brackets"
    try:
        value = _evaluate(ast.parse(expression.strip(), mode="eval").body)
    except ZeroDivisionError:
        return "error: division by zero"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "error: this is not an arithmetic expression"
    return _render_number(value)


_SIGNS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _evaluate(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as value):
            return Fraction(str(value))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SIGNS:
            return _SIGNS[type(op)](_evaluate(left), _evaluate(right))
        case _:
            raise ValueError(ast.dump(node))


def _render_number(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    millionths = round(value * 10**6)
    whole, rest = divmod(abs(millionths), 10**6)
    return f"{'-' if millionths < 0 else ''}{whole}.{rest:06}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    left: int
    operation: Arithmetic
    right: int

    @property
    def expression(self) -> str:
        return f"{self.left} {self.operation} {self.right}"

    @property
    def result(self) -> int:
        return int(calculate(self.expression))


def _draw_task(rng: random.Random, side: TaskSide, *, task_id: str) -> Task:
    steps = [_draw_first_step(rng, is_held_out=side.is_held_out)]
    if rng.random() < side.two_step_share:
        steps.append(_draw_second_step(rng, steps[0].result, is_held_out=side.is_held_out))
    return Task(
        id=task_id,
        question=_word_question(rng, side.phrasings, steps),
        steps=tuple(step.expression for step in steps),
        answer=str(steps[-1].result),
    )


def _draw_first_step(rng: random.Random, *, is_held_out: bool) -> _Step:
    operation = rng.choice(tuple(Arithmetic))
    while True:
        left, right = _draw_number(rng, 3), _draw_number(rng, 2 if operation is Arithmetic.MULTIPLY else 3)
        if operation is Arithmetic.DIVIDE:  # that it comes out even
            left, right = max(2, right % 100) * (left % 100 or 1), max(2, right % 100)
        if operation is Arithmetic.SUBTRACT:
            left, right = max(left, right), min(left, right)
        if left <= 999 and is_held_out_pair(left, right) == is_held_out:
            return _Step(left=left, operation=operation, right=right)


def _draw_second_step(rng: random.Random, left: int, *, is_held_out: bool) -> _Step:
    while True:
        operation = rng.choice(tuple(Arithmetic))
        right = _draw_number(rng, 3 if operation is Arithmetic.ADD else 2)
        if operation is Arithmetic.DIVIDE and (right == 1 or left % right):
            continue
        if operation is Arithmetic.SUBTRACT and right > left:
            continue
        if operation is Arithmetic.MULTIPLY and left * right > MAX_RESULT:
            continue
        if is_held_out_pair(left, right) == is_held_out:
            return _Step(left=left, operation=operation, right=right)


def _draw_number(rng: random.Random, max_digits: int) -> int:
    """Draw a number of 1 to ``max_digits`` digits, each length as likely as the others."""
    digits = rng.randint(1, max_digits)
    return rng.randint(10 ** (digits - 1), 10**digits - 1)


def _word_question(rng: random.Random, phrasings: Phrasings, steps: list[_Step]) -> str:
    first = steps[0]
    frame = rng.choice(phrasings.chained_frames if len(steps) > 1 else phrasings.frames)
    noun = rng.choice(phrasings.nouns[first.operation]).format(a=first.left, b=first.right)
    order = rng.choice(phrasings.orders[first.operation]).format(a=first.left, b=first.right)
    then = ""
    if len(steps) > 1:
        then = rng.choice(phrasings.follow_ups[steps[1].operation]).format(c=steps[1].right)
    return frame.format(np=noun, imp=order, Imp=order[:1].upper() + order[1:], then=then)
