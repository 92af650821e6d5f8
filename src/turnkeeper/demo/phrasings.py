"""How the arithmetic tasks are worded: the sentences that the shipped model has not been trained on.

A sentence is a *frame* around the wording of an operation. Wordings name their operands in letters: ``{a}`` and
``{b}`` are the left and the right operand of the call, ``{c}`` is the right operand of a second step. Frames hold
``{np}`` (a noun phrase), ``{imp}`` (an instruction) or ``{Imp}`` (an instruction at the start of a sentence), and in
tasks of two steps ``{then}``, the second instruction.

No held-out frame and no held-out wording is one of those in ``training/phrasings.py`` of the repository, so a held-out
sentence differs from every training sentence even with its numbers struck out. Held-out sentences use only words that
training has used: what is tested is the handling of new sentences, not of new words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Arithmetic(StrEnum):
    """The sign of a calculator step."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrasings:
    """One set of sentences."""

    nouns: Mapping[Arithmetic, tuple[str, ...]]
    """Noun phrases of one step, for ``{np}``."""
    orders: Mapping[Arithmetic, tuple[str, ...]]
    """Instructions of one step, for ``{imp}``."""
    follow_ups: Mapping[Arithmetic, tuple[str, ...]]
    """Instructions on the result of the step before, for ``{then}``."""
    frames: tuple[str, ...]
    """Questions of one step."""
    chained_frames: tuple[str, ...]
    """Questions of two steps."""


HELD_OUT = Phrasings(
    nouns={
        Arithmetic.ADD: ("the total of {a} plus {b}", "the result of {a} plus {b}", "{a} together with {b}"),
        Arithmetic.SUBTRACT: (
            "the difference of {a} less {b}",
            "the result of {a} minus {b}",
            "{a} with {b} taken away",
        ),
        Arithmetic.MULTIPLY: ("the product of {a} times {b}", "the result of {a} times {b}", "{a} multiplied with {b}"),
        Arithmetic.DIVIDE: ("the quotient of {a} over {b}", "the result of {a} divided by {b}", "{a} split among {b}"),
    },
    orders={
        Arithmetic.ADD: ("take {a} and add {b} to it", "find {a} plus {b}", "start at {a} and add {b}"),
        Arithmetic.SUBTRACT: ("take {a} and take away {b}", "find {a} minus {b}", "start at {a} and subtract {b}"),
        Arithmetic.MULTIPLY: ("multiply {a} with {b}", "find {a} times {b}", "take {a} and scale it by {b}"),
        Arithmetic.DIVIDE: ("split {a} into {b} parts", "find {a} over {b}", "take {a} and share it among {b}"),
    },
    follow_ups={
        Arithmetic.ADD: ("increase that by {c}", "add {c} more to the result", "take the result plus {c}"),
        Arithmetic.SUBTRACT: ("reduce that by {c}", "take {c} off the result", "take the result minus {c}"),
        Arithmetic.MULTIPLY: ("scale that by {c}", "multiply what you get by {c}", "take the result times {c}"),
        Arithmetic.DIVIDE: ("split it into {c} parts", "share that among {c}", "take the result over {c}"),
    },
    frames=(
        "Could you tell me {np}?",
        "Please give me {np}.",
        "What would you get for {np}?",
        "I want to know {np}.",
        "Work out {np}, please.",
        "Hello! Can you compute {np}?",
        "I need you to {imp}.",
        "{Imp}, please.",
        "Hello! Please {imp}.",
        "Now {imp} for me.",
    ),
    chained_frames=(
        "Start with {np}, then {then}.",
        "{Imp}, and after that {then}.",
        "Can you {imp} and then {then}?",
        "Find {np}. Now {then}.",
        "Please compute {np} and {then}.",
        "First {imp}. After that, {then}.",
    ),
)
