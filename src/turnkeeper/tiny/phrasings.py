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
        Operation.ADD: (
            "{a} plus {b}",
            "{a} + {b}",
            "the sum of {a} and {b}",
            "the total of {a} and {b}",
            "{a} and {b} together",
            "{a} and {b} added up",
            "{a} added to {b}",
            "{a} with {b} added",
            "the result of adding {a} to {b}",
        ),
        Operation.SUBTRACT: (
            "{a} minus {b}",
            "{a} - {b}",
            "the difference of {a} and {b}",
            "{a} less {b}",
            "{a} with {b} taken off",
            "{a} with {b} subtracted",
            "{b} subtracted from {a}",
            "{b} taken away from {a}",
            "the result of subtracting {b} from {a}",
        ),
        Operation.MULTIPLY: (
            "{a} times {b}",
            "{a} * {b}",
            "the product of {a} and {b}",
            "{a} multiplied by {b}",
            "{a} and {b} multiplied",
            "{a} groups of {b}",
            "the result of multiplying {a} by {b}",
        ),
        Operation.DIVIDE: (
            "{a} divided by {b}",
            "{a} / {b}",
            "the quotient of {a} and {b}",
            "{a} over {b}",
            "{a} split by {b}",
            "{a} shared among {b}",
            "the result of dividing {a} by {b}",
        ),
    },
    orders={
        Operation.ADD: (
            "add {a} and {b}",
            "add {a} to {b}",
            "add up {a} and {b}",
            "put {a} and {b} together",
            "take {a} and add {b}",
            "increase {a} by {b}",
            "work out {a} plus {b}",
            "find the sum of {a} and {b}",
        ),
        Operation.SUBTRACT: (
            "subtract {b} from {a}",
            "take {b} away from {a}",
            "take {a} and subtract {b}",
            "take {b} off {a}",
            "reduce {a} by {b}",
            "start at {a} and take away {b}",
            "work out {a} minus {b}",
            "find the difference of {a} and {b}",
        ),
        Operation.MULTIPLY: (
            "multiply {a} by {b}",
            "multiply {a} and {b}",
            "take {a} times {b}",
            "take {a} and multiply it by {b}",
            "scale {a} by {b}",
            "work out {a} times {b}",
            "find the product of {a} and {b}",
        ),
        Operation.DIVIDE: (
            "divide {a} by {b}",
            "split {a} into {b} equal parts",
            "take {a} and divide it by {b}",
            "share {a} among {b}",
            "cut {a} into {b} parts",
            "work out {a} over {b}",
            "find the quotient of {a} and {b}",
        ),
    },
    follow_ups={
        Operation.ADD: (
            "add {c}",
            "add {c} to the result",
            "add {c} to that",
            "add {c} to it",
            "add {c} more",
            "put {c} on top of that",
            "increase it by {c}",
            "increase the result by {c}",
            "take that plus {c}",
        ),
        Operation.SUBTRACT: (
            "subtract {c}",
            "subtract {c} from the result",
            "subtract {c} from it",
            "take away {c}",
            "take {c} from that",
            "take {c} off",
            "reduce it by {c}",
            "reduce the result by {c}",
            "take that minus {c}",
        ),
        Operation.MULTIPLY: (
            "multiply by {c}",
            "multiply the result by {c}",
            "multiply that by {c}",
            "multiply it by {c}",
            "scale it by {c}",
            "scale the result by {c}",
            "take that times {c}",
        ),
        Operation.DIVIDE: (
            "divide by {c}",
            "divide the result by {c}",
            "divide that by {c}",
            "divide it by {c}",
            "split that into {c} parts",
            "share it among {c}",
            "share the result among {c}",
            "take that over {c}",
        ),
    },
    frames=(
        "What is {np}?",
        "What's {np}?",
        "So what is {np}?",
        "How much is {np}?",
        "Calculate {np}.",
        "Please calculate {np}.",
        "Compute {np}.",
        "Could you compute {np}?",
        "Tell me {np}.",
        "Please tell me {np}, thank you.",
        "Could you tell me what {np} is?",
        "Please work out {np}.",
        "Work out {np} for me.",
        "Can you find {np}?",
        "Find {np}.",
        "I need {np}.",
        "I want {np}, please.",
        "Give me {np}, please.",
        "Can you give me {np}?",
        "What do you get for {np}?",
        "What would {np} be?",
        "I would like to know {np}.",
        "Hello! What is {np}?",
        "Hello, could you find {np}?",
        "Hi. I have to know {np}.",
        "Here is a question: what is {np}?",
        "{Imp}.",
        "{Imp} and tell me the result.",
        "{Imp} for me.",
        "Please {imp}.",
        "Please {imp} for me.",
        "Can you {imp}?",
        "Could you {imp} for me?",
        "I want you to {imp}.",
        "I need to {imp}.",
        "Now {imp}.",
        "Hello, {imp}, thank you.",
        "Hello! Can you {imp}?",
        "Hi. Could you please {imp}?",
        "Here is what I need: {imp}.",
        "Help me to {imp}, please.",
    ),
    chained_frames=(
        "{Imp}, then {then}.",
        "{Imp} and {then}.",
        "{Imp}. Then {then}.",
        "{Imp}. Now {then}.",
        "First {imp}, then {then}.",
        "First {imp}. After that {then}.",
        "Please {imp} and then {then}.",
        "Please {imp}, and after that {then}, thank you.",
        "Can you {imp}? Then {then}, please.",
        "Could you {imp}, then {then}?",
        "Hello! Please {imp}. Then {then}.",
        "I want you to {imp} and then {then}.",
        "What is {np}? Now {then}.",
        "What do you get for {np}? Then {then}.",
        "Compute {np}, then {then}.",
        "Calculate {np}. After that, {then}.",
        "Start with {np}. After that {then}.",
        "Take {np}, then {then}.",
        "I need {np}. Then {then}.",
        "I want {np}, and after that {then}.",
        "Work out {np} and {then}.",
        "Find {np} and then {then}, please.",
        "Hello, find {np}. Now {then}.",
        "Give me {np}. Then {then}.",
    ),
)

HELD_OUT = Phrasings(
    nouns={
        Operation.ADD: ("the total of {a} plus {b}", "the result of {a} plus {b}", "{a} together with {b}"),
        Operation.SUBTRACT: (
            "the difference of {a} less {b}",
            "the result of {a} minus {b}",
            "{a} with {b} taken away",
        ),
        Operation.MULTIPLY: ("the product of {a} times {b}", "the result of {a} times {b}", "{a} multiplied with {b}"),
        Operation.DIVIDE: ("the quotient of {a} over {b}", "the result of {a} divided by {b}", "{a} split among {b}"),
    },
    orders={
        Operation.ADD: ("take {a} and add {b} to it", "find {a} plus {b}", "start at {a} and add {b}"),
        Operation.SUBTRACT: ("take {a} and take away {b}", "find {a} minus {b}", "start at {a} and subtract {b}"),
        Operation.MULTIPLY: ("multiply {a} with {b}", "find {a} times {b}", "take {a} and scale it by {b}"),
        Operation.DIVIDE: ("split {a} into {b} parts", "find {a} over {b}", "take {a} and share it among {b}"),
    },
    follow_ups={
        Operation.ADD: ("increase that by {c}", "add {c} more to the result", "take the result plus {c}"),
        Operation.SUBTRACT: ("reduce that by {c}", "take {c} off the result", "take the result minus {c}"),
        Operation.MULTIPLY: ("scale that by {c}", "multiply what you get by {c}", "take the result times {c}"),
        Operation.DIVIDE: ("split it into {c} parts", "share that among {c}", "take the result over {c}"),
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
