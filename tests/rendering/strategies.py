"""Random conversations, as clients send them."""

from typing import Any

from hypothesis import strategies as st

from rendering.talk import assistant, call, system, tool, user
from turnkeeper.jsontypes import Message

texts = st.text(alphabet="ab1 .,\n{}\"'<>/é中😀", max_size=12)
spoken = texts.map(lambda text: f"s{text}e")
"""Texts that no template strips: what is stripped is not there to compare."""

values: st.SearchStrategy[Any] = st.one_of(
    spoken, st.integers(-9, 9), st.booleans(), st.none(), st.just(1.5), st.lists(st.integers(0, 3), max_size=2)
)
arguments = st.dictionaries(st.sampled_from(["at", "to", "with"]), values, max_size=3)


@st.composite
def cycles(draw: st.DrawFn) -> list[Message]:
    """A user message and what the assistant does about it: calls, results, at last an answer."""
    messages: list[Message] = [user(draw(spoken))]
    number = draw(st.integers(0, 9)) * 10
    for _ in range(draw(st.integers(0, 2))):
        calls = [call("look", draw(arguments), number + index) for index in range(draw(st.integers(1, 2)))]
        content = draw(st.one_of(st.just(""), spoken))
        messages.append(assistant(content, *calls, reasoning=draw(spoken)))
        messages += [tool(draw(spoken), number + index) for index in range(len(calls))]
        number += len(calls)
    messages.append(assistant(draw(spoken), reasoning=draw(spoken)))
    return messages


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """One to three cycles, sometimes with a system message before them and a question behind them."""
    head: list[Message] = [system(draw(spoken))] if draw(st.booleans()) else []
    middle = [message for cycle in draw(st.lists(cycles(), min_size=1, max_size=3)) for message in cycle]
    return [*head, *middle, user(draw(spoken))]
