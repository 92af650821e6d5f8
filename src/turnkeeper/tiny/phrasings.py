"""How the arithmetic tasks are worded: tables of sentences, one set for training and one that is held out.

A sentence is a *frame* around the wording of an operation. Wordings name their operands in letters: ``{a}`` and
``{b}`` are the left and the right operand of the call, ``{c}`` is the right operand of a second step. Frames hold
``{np}`` (a noun phrase), ``{imp}`` (an instruction) or ``{Imp}`` (the same at the start of a sentence), and in
tasks of two steps ``{then}``, the second instruction.

No held-out frame and no held-out wording is a training one, so a held-out sentence differs from every training
sentence even with its numbers struck out. Held-out sentences keep to words that training has used: what is tested
is the handling of new sentences, not of new words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Operation(StrEnum):
    """The sign of a calculator step."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrasings:
    """One set of sentences."""

    nouns: Mapping[Operation, tuple[str, ...]]
    """Noun phrases of one step, for ``{np}``."""
    orders: Mapping[Operation, tuple[str, ...]]
    """Instructions of one step, for ``{imp}``."""
    follow_ups: Mapping[Operation, tuple[str, ...]]
    """Instructions on the result of the step before, for ``{then}``."""
    frames: tuple[str, ...]
    """Questions of one step."""
    chained_frames: tuple[str, ...]
    """Questions of two steps."""


TRAINING = Phrasings(
    nouns={
        Operation.ADD: ("{a} plus {b}", "{a} + {b}", "the sum of {a} and {b}", "{a} and {b} together"),
        Operation.SUBTRACT: (
            "{a} minus {b}",
            "{a} - {b}",
            "the difference of {a} and {b}",
            "{a} less {b}",
            "{a} with {b} taken off",
        ),
        Operation.MULTIPLY: ("{a} times {b}", "{a} * {b}", "the product of {a} and {b}", "{a} multiplied by {b}"),
        Operation.DIVIDE: ("{a} divided by {b}", "{a} / {b}", "the quotient of {a} and {b}", "{a} over {b}"),
    },
    orders={
        Operation.ADD: ("add {a} and {b}", "add {a} to {b}", "add up {a} and {b}", "put {a} and {b} together"),
        Operation.SUBTRACT: ("subtract {b} from {a}", "take {b} away from {a}", "take {a} and subtract {b}"),
        Operation.MULTIPLY: ("multiply {a} by {b}", "multiply {a} and {b}", "take {a} times {b}"),
        Operation.DIVIDE: ("divide {a} by {b}", "split {a} into {b} equal parts", "take {a} and divide it by {b}"),
    },
    follow_ups={
        Operation.ADD: ("add {c}", "add {c} to the result", "add {c} to that", "put {c} on top of that"),
        Operation.SUBTRACT: ("subtract {c}", "subtract {c} from the result", "take away {c}", "take {c} from that"),
        Operation.MULTIPLY: (
            "multiply by {c}",
            "multiply the result by {c}",
            "multiply that by {c}",
            "take that times {c}",
        ),
        Operation.DIVIDE: (
            "divide by {c}",
            "divide the result by {c}",
            "divide that by {c}",
            "split that into {c} parts",
        ),
    },
    frames=(
        "What is {np}?",
        "How much is {np}?",
        "Calculate {np}.",
        "Compute {np}.",
        "Tell me {np}.",
        "Please work out {np}.",
        "Can you find {np}?",
        "I need {np}.",
        "Find {np}.",
        "Can you give me {np}?",
        "Could you compute {np}?",
        "Give me {np}, please.",
        "What do you get for {np}?",
        "I would like to know {np}.",
        "Hello! What is {np}?",
        "{Imp}.",
        "Please {imp}.",
        "Can you {imp}?",
        "I want you to {imp}.",
        "Could you {imp} for me?",
        "Hello, {imp} and tell me the result.",
    ),
    chained_frames=(
        "{Imp}, then {then}.",
        "First {imp}, then {then}.",
        "{Imp}. Then {then}.",
        "Please {imp} and then {then}.",
        "Can you {imp}? Then {then}, please.",
        "What is {np}? Now {then}.",
        "Compute {np}, then {then}.",
        "Start with {np}. After that {then}.",
        "I need {np}. Then {then}.",
        "I want {np}, and after that {then}.",
        "Work out {np} and {then}.",
    ),
)

HELD_OUT = Phrasings(
    nouns={
        Operation.ADD: ("the sum of {a} plus {b}", "{a} and then {b} together", "the result of {a} plus {b}"),
        Operation.SUBTRACT: (
            "the difference of {a} less {b}",
            "the result of {a} minus {b}",
            "{a} with {b} taken away",
        ),
        Operation.MULTIPLY: ("the product of {a} times {b}", "the result of {a} times {b}", "{a} multiplied with {b}"),
        Operation.DIVIDE: (
            "the quotient of {a} over {b}",
            "the result of {a} divided by {b}",
            "{a} split into {b} parts",
        ),
    },
    orders={
        Operation.ADD: ("add {a} and then {b}", "take {a} and add {b}", "put {a} on top of {b}"),
        Operation.SUBTRACT: ("take {b} from {a}", "take {a} and take away {b}", "work out {a} minus {b}"),
        Operation.MULTIPLY: ("multiply {a} with {b}", "take {a} and multiply it by {b}", "work out {a} times {b}"),
        Operation.DIVIDE: (
            "split {a} by {b}",
            "take {a} and split it into {b} parts",
            "divide {a} into {b} equal parts",
        ),
    },
    follow_ups={
        Operation.ADD: ("add {c} on top", "add to that {c}", "take the result plus {c}"),
        Operation.SUBTRACT: ("subtract {c} from that", "take {c} away from the result", "take the result minus {c}"),
        Operation.MULTIPLY: ("multiply it by {c}", "take the result times {c}", "multiply the result with {c}"),
        Operation.DIVIDE: ("divide it by {c}", "split the result into {c} parts", "split it into {c} equal parts"),
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
