"""The appends that ``turnkeeper verify`` tries on a checkpoint, as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.jsontypes import JsonObject, Message

LOOK: JsonObject = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a place.",
        "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]},
    },
}
THOUGHTS = ("the first thought", "the second thought", "the third thought")
"""The reasoning of the conversations below, which is looked for in their renderings."""
CUT = " is not finish"
"""The text with which a completion that was cut short ends; it ends with a letter, so that no token spans the cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendCase:
    """A sampled path, and messages that are appended to it."""

    id: str
    """A few words that name the case."""
    history: Sequence[Message]
    """The messages of the path; the last one was sampled."""
    appended: Sequence[Message]
    """The messages that the next request adds."""
    cut: Message | None = None
    """The whole message of which the sampled one is the beginning; None where the sampled one ended by itself."""
    has_stop: bool = True
    """True when the stop token was sampled."""


class IdStyle(StrEnum):
    """The form of call ids, since some templates accept only one."""

    NAMED = "functions.look:{number}"
    """The form that Kimi gives to call ids."""
    PLAIN = "call{number:05}"
    """Nine letters and digits, which Mistral's templates demand."""


def say(role: str, text: str) -> Message:
    """Build a message of any role but assistant."""
    return {"role": role, "content": text}


def reply(text: str, thought: str, *calls: JsonObject) -> Message:
    """Build an assistant message."""
    message: JsonObject = {"role": "assistant", "content": text, "reasoning_content": thought}
    return {**message, "tool_calls": list(calls)} if calls else message


def _call(style: IdStyle, number: int) -> JsonObject:
    function = {"name": "look", "arguments": f'{{"at": {number}}}'}
    return {"id": style.format(number=number), "type": "function", "function": function}


def _result(style: IdStyle, number: int) -> Message:
    call_id = style.format(number=number)
    return {"role": "tool", "tool_call_id": call_id, "name": "look", "content": f"result {number}"}


_ASKED = (say("user", "What is there?"),)
_ANSWERED = (*_ASKED, reply("Nothing.", THOUGHTS[0]))
_MORE = say("user", "And now?")


def _cut(kind: str, whole: Message, kept: Message) -> AppendCase:
    return AppendCase(id=f"cut inside {kind}", history=(*_ASKED, kept), appended=(_MORE,), cut=whole, has_stop=False)


def _lead(*roles: str) -> AppendCase:
    head = [say(role, f"Be {manner}.") for role, manner in zip(roles, ("brief", "kind"), strict=True)]
    return AppendCase(id=f"{' and '.join(roles)} first", history=(*head, *_ANSWERED), appended=(_MORE,))


CASES_WITHOUT_TOOLS = (
    AppendCase(id="user", history=_ANSWERED, appended=(_MORE,)),
    AppendCase(id="user after user", history=_ANSWERED, appended=(_MORE, say("user", "Well?"))),
    AppendCase(id="system", history=_ANSWERED, appended=(say("system", "Be long."), _MORE)),
    AppendCase(id="developer", history=_ANSWERED, appended=(say("developer", "Be long."), _MORE)),
    AppendCase(id="system behind user", history=_ANSWERED, appended=(_MORE, say("system", "Be long."))),
    AppendCase(
        id="two developers",
        history=_ANSWERED,
        appended=(say("developer", "Be long."), say("developer", "Be kind."), _MORE),
    ),
    *(_lead(*roles) for roles in (("system", "system"), ("system", "developer"), ("developer", "developer"))),
    AppendCase(
        id="assistant given by the client",
        history=_ANSWERED,
        appended=(_MORE, reply("Still nothing.", "a given thought"), say("user", "Well?")),
    ),
    AppendCase(id="no stop token", history=_ANSWERED, appended=(_MORE,), has_stop=False),
    _cut("text", reply(f"The answer{CUT}ed.", THOUGHTS[0]), reply(f"The answer{CUT}", THOUGHTS[0])),
    _cut("thinking", reply("Yes.", f"The thought{CUT}ed."), reply("", f"The thought{CUT}")),
)
"""The cases without tools."""


def build_tool_cases(style: IdStyle) -> Sequence[AppendCase]:
    """Build the cases with tools."""
    called = (say("system", "Be brief."), *_ASKED, reply("", THOUGHTS[0], _call(style, 0)))
    called_twice = (*_ASKED, reply("Two.", THOUGHTS[1], _call(style, 1), _call(style, 2)))
    done = (*called, _result(style, 0), reply("Nothing.", THOUGHTS[2]))
    return (
        AppendCase(id="tool result", history=called, appended=(_result(style, 0),)),
        AppendCase(id="two tool results", history=called_twice, appended=(_result(style, 1), _result(style, 2))),
        AppendCase(id="tool result, then user", history=called, appended=(_result(style, 0), _MORE)),
        AppendCase(
            id="tool result, then system", history=called, appended=(_result(style, 0), say("system", "Be long."))
        ),
        AppendCase(id="user, tools before", history=done, appended=(_MORE,)),
    )


def build_cut_call(style: IdStyle) -> Message:
    """Build a message whose call will be cut short inside its arguments."""
    call = _call(style, 0)
    call["function"] = {"name": "look", "arguments": f'{{"at": "The place{CUT}ed."}}'}
    return reply("", THOUGHTS[0], call)


def build_cut_case(whole: Message, said: str) -> AppendCase:
    """Build the case of a message that ends inside a tool call, so that the unfinished call is part of its text.

    Args:
        whole: the message with the whole call.
        said: the call up to the cut as the family spells it, opening marker included.
    """
    return _cut("a tool call", whole, reply(said, THOUGHTS[0]))


def build_one_tool_cycle(style: IdStyle) -> Sequence[Message]:
    """Build a conversation of which no template drops anything: one user message, then calls and results."""
    first = (say("system", "Be brief."), *_ASKED, reply("", THOUGHTS[0], _call(style, 0)), _result(style, 0))
    second = reply("Now two.", THOUGHTS[1], _call(style, 1), _call(style, 2))
    return (*first, second, _result(style, 1), _result(style, 2))


def build_two_tool_cycles(style: IdStyle) -> Sequence[Message]:
    """Build a conversation of which many templates drop earlier thinking: a user message follows calls and results."""
    return (*build_one_tool_cycle(style), reply("Nothing.", THOUGHTS[2]), _MORE)
