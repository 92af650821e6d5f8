"""The appends that a session may meet, as data: what ``turnkeeper verify`` runs on a checkpoint."""

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
"""The reasoning of the conversations below, to find again in their renderings."""
CUT = " is not finish"
"""Where a cut completion ends: behind a letter, so that no merge spans the cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendCase:
    """Messages that are appended to a sampled path."""

    id: str
    """A few words, unique."""
    history: Sequence[Message]
    """The path; its last message was sampled."""
    appended: Sequence[Message]
    """What the next request adds."""
    cut: Message | None = None
    """The whole message out of whose text the sampled one was cut; None where it ended by itself."""
    has_stop: bool = True
    """Whether the stop token was sampled."""


class IdStyle(StrEnum):
    """How the tool calls of the cases are numbered: some templates are particular about it."""

    NAMED = "functions.look:{number}"
    """As Kimi writes them itself."""
    PLAIN = "call{number:05}"
    """Nine letters and digits, as Mistral demands."""


def say(role: str, text: str) -> Message:
    """A message of anybody but the assistant."""
    return {"role": role, "content": text}


def reply(text: str, thought: str, *calls: JsonObject) -> Message:
    """An assistant's message."""
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
    """The cases with tools."""
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
    """A message whose call is cut off in its arguments."""
    call = _call(style, 0)
    call["function"] = {"name": "look", "arguments": f'{{"at": "The place{CUT}ed."}}'}
    return reply("", THOUGHTS[0], call)


def build_cut_case(whole: Message, said: str) -> AppendCase:
    """The case of a message whose unfinished call is its text.

    Args:
        whole: the message with the finished call.
        said: the family's spelling of the call up to the cut, opening marker included.
    """
    return _cut("a tool call", whole, reply(said, THOUGHTS[0]))


def build_one_tool_cycle(style: IdStyle) -> Sequence[Message]:
    """A conversation in which no template has a reason to drop anything."""
    first = (say("system", "Be brief."), *_ASKED, reply("", THOUGHTS[0], _call(style, 0)), _result(style, 0))
    second = reply("Now two.", THOUGHTS[1], _call(style, 1), _call(style, 2))
    return (*first, second, _result(style, 1), _result(style, 2))


def build_two_tool_cycles(style: IdStyle) -> Sequence[Message]:
    """One in which many drop earlier thinking."""
    return (*build_one_tool_cycle(style), reply("Nothing.", THOUGHTS[2]), _MORE)
