"""Arithmetic tasks.

1. The same arguments give the same tasks; ids are unique.
2. A task's steps evaluate to each other and to its answer, and its question names the operands.
3. No held-out task shares a sentence (numbers struck out) or an operand pair with any training task.
4. `calculate` is exact, and answers everything else with a line that says it is an error.
5. A final text solves a task if its last number is the answer.
"""

import re
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.phrasings import TRAINING
from training.tasks import training_tasks
from turnkeeper.demo.phrasings import HELD_OUT, Phrasings
from turnkeeper.demo.tasks import Task, calculate, held_out_tasks, is_held_out_pair, is_solved


@cache
def draw_training() -> tuple[Task, ...]:
    return training_tasks(4000, seed=1)


@cache
def draw_held_out() -> tuple[Task, ...]:
    return held_out_tasks(4000, seed=1)


@pytest.fixture(params=[draw_training, draw_held_out], ids=["training", "held-out"])
def tasks(request: pytest.FixtureRequest) -> tuple[Task, ...]:
    return request.param()


def _sentence(task: Task) -> str:
    return re.sub(r"\d+", "#", task.question)


def _pairs(task: Task) -> list[frozenset[str]]:
    return [frozenset(re.findall(r"\d+", step)) for step in task.steps]


def test_the_same_arguments_give_the_same_tasks() -> None:
    assert training_tasks(50, seed=7) == training_tasks(50, seed=7)
    assert training_tasks(50, seed=7) != training_tasks(50, seed=8)
    assert held_out_tasks(50, seed=7)[:20] == held_out_tasks(20, seed=7)
    assert len({task.id for task in (*draw_training(), *draw_held_out())}) == 8000


def test_steps_lead_to_the_answer(tasks: tuple[Task, ...]) -> None:
    for task in tasks:
        value: int | None = None
        for step in task.steps:
            left, sign, right = step.split()
            assert value is None or int(left) == value
            results = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}
            quotient, rest = divmod(int(left), int(right)) if sign == "/" else (results[sign], 0)
            assert rest == 0
            value = quotient
        assert task.answer == str(value)
        assert 0 <= int(task.answer) <= 99_999


def test_questions_name_every_operand_that_is_not_a_result(tasks: tuple[Task, ...]) -> None:
    for task in tasks:
        needed = [*re.findall(r"\d+", task.steps[0]), *(step.split()[2] for step in task.steps[1:])]
        assert sorted(re.findall(r"\d+", task.question)) == sorted(needed)


def test_tasks_are_varied(tasks: tuple[Task, ...]) -> None:
    assert {len(task.steps) for task in tasks} == {1, 2}
    assert {step.split()[1] for task in tasks for step in task.steps} == set("+-*/")
    assert {len(number) for task in tasks for number in re.findall(r"\d+", task.question)} == {1, 2, 3}
    assert len({_sentence(task) for task in tasks}) > 400


def test_no_drawn_held_out_task_shares_a_sentence_or_a_pair_with_training() -> None:
    assert not {_sentence(task) for task in draw_held_out()} & {_sentence(task) for task in draw_training()}
    trained = {pair for task in draw_training() for pair in _pairs(task)}
    assert not trained & {pair for task in draw_held_out() for pair in _pairs(task)}


def _sentences(phrasings: Phrasings) -> set[str]:
    """Every sentence that can come out, numbers struck out."""
    found: set[str] = set()
    for sign in phrasings.nouns:
        for frame in phrasings.frames + phrasings.chained_frames:
            for then in (
                [then for thens in phrasings.follow_ups.values() for then in thens] if "{then}" in frame else [""]
            ):
                wordings = phrasings.nouns[sign] if "{np}" in frame else phrasings.orders[sign]
                for words in wordings:
                    text = frame.format(np=words, imp=words, Imp=words[0].upper() + words[1:], then=then)
                    found.add(re.sub(r"\{\w\}|\d+", "#", text))
    return found


def test_no_held_out_sentence_can_be_worded_in_training() -> None:
    trained, held_out = _sentences(TRAINING), _sentences(HELD_OUT)
    assert {_sentence(task) for task in draw_training()} <= trained
    assert {_sentence(task) for task in draw_held_out()} <= held_out
    assert not trained & held_out


@given(st.integers(0, 99_999), st.integers(0, 999))
def test_a_pair_belongs_to_one_side_in_either_order(left: int, right: int) -> None:
    assert is_held_out_pair(left, right) == is_held_out_pair(right, left)


def test_one_pair_in_five_is_held_out() -> None:
    share = sum(is_held_out_pair(left, right) for left in range(300) for right in range(left, 300)) / (300 * 301 / 2)
    assert share == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("37 * 12", "444"),
        ("444 + 5", "449"),
        ("-3+1", "-2"),
        ("(1 + 2) * -3", "-9"),
        ("7 - 2 - 1", "4"),
        ("1.5 * 2", "3"),
        ("1 / 8", "0.125"),
        ("-1 / 3", "-0.333333"),
        ("0.1 + 0.2", "0.3"),
        ("9" * 90 + " * " + "9" * 90, str((10**90 - 1) ** 2)),
    ],
)
def test_calculate_is_exact(expression: str, result: str) -> None:
    assert calculate(expression) == result


@given(st.integers(-999, 999), st.sampled_from("+-*/"), st.integers(-999, 999))
@settings(max_examples=60)
def test_calculate_agrees_with_fractions(left: int, sign: str, right: int) -> None:
    if sign == "/" and right == 0:
        return
    operations = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}
    exact = operations[sign](Fraction(left), Fraction(right))
    assert abs(Fraction(calculate(f"{left} {sign} {right}")) - exact) <= Fraction(1, 2_000_000)


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "",
            "   ",
            "12 +",
            "2 ** 9",
            "7 // 2",
            "1 (2)",
            "0777",
            "1 / 0",
            "((((",
            "1..2",
            ".",
            "abs(1)",
            "1e9",
            "1\n+1",
        ),
        *("abs(1)", "1e9", "1\n+1", "__import__('os')", "x" * 300, "1" * 201, "(" * 150, "２ + ２"),
    ],
)
def test_calculate_answers_other_input_with_an_error(expression: str) -> None:
    assert calculate(expression).startswith("error: ")


@given(st.text("0123456789.+-*/() ", max_size=40))
@settings(max_examples=100)
def test_calculate_answers_anything(expression: str) -> None:
    assert re.fullmatch(r"error: .+|-?\d+(\.\d+)?", calculate(expression))


@pytest.mark.parametrize(
    ("text", "solved"),
    [
        ("The answer is 449.", True),
        ("449", True),
        ("37 * 12 is 444, and 5 more is 449.", True),
        ("449 is more than 444.", False),
        ("The answer is 4490.", False),
        ("The answer is -449.", False),
        ("The answer is 449.5", False),
        ("No idea.", False),
        ("", False),
    ],
)
def test_the_last_number_of_the_final_text_decides(text: str, solved: bool) -> None:
    task = Task(id="t", question="Add 5 to 37 times 12.", steps=("37 * 12", "444 + 5"), answer="449")
    assert is_solved(task, text) is solved
