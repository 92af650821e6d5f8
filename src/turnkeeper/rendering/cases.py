"""The appends that a session may meet, as data: what ``turnkeeper verify`` runs on a checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass

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
"""The reasoning of the conversation below, to find again in its renderings."""
CUT = " is not finish"
"""Where a cut completion ends: behind a letter, so that no merge spans the cut."""


def _call(number: int) -> JsonObject:
    return {
        "id": f"functions.look:{number}",
        "type": "function",
        "function": {"name": "look", "arguments": f'{{"at": {number}}}'},
    }


def _result(number: int) -> Message:
    return {"role": "tool", "tool_call_id": f"functions.look:{number}", "name": "look", "content": f"result {number}"}


def _say(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _reply(text: str, thought: str, *calls: JsonObject) -> Message:
    message: JsonObject = {"role": "assistant", "content": text, "reasoning_content": thought}
    return {**message, "tool_calls": list(calls)} if calls else message


_QUESTION = (_say("system", "Be brief."), _say("user", "What is there?"))
_ASKED = (*_QUESTION, _reply("", THOUGHTS[0], _call(0)))
_ASKED_TWICE = (*_ASKED, _result(0), _reply("Now two.", THOUGHTS[1], _call(1), _call(2)))
_ANSWERED = (*_ASKED_TWICE, _result(1), _result(2), _reply("Nothing.", THOUGHTS[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
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


def _cut(kind: str, whole: Message, kept: Message) -> Case:
    return Case(
        id=f"cut inside {kind}",
        history=(*_QUESTION, kept),
        appended=(_say("user", "Go on."),),
        cut=whole,
        has_stop=False,
    )


CASES = (
    Case(id="tool result", history=_ASKED, appended=(_result(0),)),
    Case(id="two tool results", history=_ASKED_TWICE, appended=(_result(1), _result(2))),
    Case(id="tool result, then user", history=_ASKED, appended=(_result(0), _say("user", "Go on."))),
    Case(id="user", history=_ANSWERED, appended=(_say("user", "And now?"),)),
    Case(id="user after user", history=_ANSWERED, appended=(_say("user", "And now?"), _say("user", "Well?"))),
    Case(id="system", history=_ANSWERED, appended=(_say("system", "Be long."), _say("user", "And now?"))),
    Case(id="developer", history=_ANSWERED, appended=(_say("developer", "Be long."), _say("user", "And now?"))),
    Case(
        id="assistant given by the client",
        history=_ANSWERED,
        appended=(_say("user", "And now?"), _reply("Still nothing.", "a given thought"), _say("user", "Well?")),
    ),
    Case(id="no stop token", history=_ANSWERED, appended=(_say("user", "And now?"),), has_stop=False),
    _cut("text", _reply(f"The answer{CUT}ed.", THOUGHTS[0]), _reply(f"The answer{CUT}", THOUGHTS[0])),
    _cut("thinking", _reply("Yes.", f"The thought{CUT}ed."), _reply("", f"The thought{CUT}")),
)
"""Every case is run on every family. The cut inside a tool call has its own function: its text is the family's."""


def build_cut_call() -> Message:
    """A message whose call is cut off in its arguments."""
    call = _call(0)
    call["function"] = {"name": "look", "arguments": f'{{"at": "The place{CUT}ed."}}'}
    return _reply("", THOUGHTS[0], call)


def build_cut_case(said: str) -> Case:
    """The case of a message whose unfinished call is its text.

    Args:
        said: the family's spelling of the call up to the cut, opening marker included.
    """
    return _cut("a tool call", build_cut_call(), _reply(said, THOUGHTS[0]))


ONE_CYCLE = (*_ASKED_TWICE, _result(1), _result(2))
"""A conversation in which no template has a reason to drop anything."""
TWO_CYCLES = (*_ANSWERED, _say("user", "And now?"))
"""One in which many drop earlier thinking."""
