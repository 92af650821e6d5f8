"""A session in which everything happens that its views tell of, over a service without sockets.

::

    0  [system, user]         -> look("x")
    |- 1  + [result]          -> "done"          an extension
    |- 2  + [result]          -> "done again"    the same again: a retry that nobody marked
    3  [system, user, look('x' otherwise spelled), ...]   a root, since the matcher is strict
    4  [another system]       -> "a title"       a side request
    in flight: one turn behind 2 at the engine, one first prompt at the gate
"""

from dataclasses import dataclass

import orjson

from servicekit import Kit, assistant, build_kit, user
from turnkeeper.choices import PauseMode
from turnkeeper.jsontypes import JsonObject
from turnkeeper.views import ShownSession
from turnkeeper.views.server import read_answer

SYSTEM = {"role": "system", "content": "You look things up."}
CALL_ID = "call_1"


def look(arguments: str) -> JsonObject:
    function = {"name": "look", "arguments": arguments}
    called = {"id": CALL_ID, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [called]}


ASKED = [SYSTEM, user("What is x?")]
RESULT = {"role": "tool", "tool_call_id": CALL_ID, "content": "x is 7"}
CALLED = [*ASKED, look('{"key": "x"}'), RESULT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    kit: Kit
    session_id: str

    async def read(self) -> ShownSession:
        """The session as a server shows it."""
        body = await self.kit.service.describe(self.session_id, with_branches=True)
        return read_answer(orjson.loads(body))


async def say(kit: Kit, session_id: str, messages: list[JsonObject], seconds: float, **reply: object) -> None:
    """One turn that takes so long at the engine."""
    turn = await kit.begin(session_id, messages)
    await kit.clock.advance(seconds)
    kit.engine.answer(**reply)
    await turn.read()


async def tell_story(**options: object) -> Told:
    kit = build_kit(use_session_server="v2", session_message_matcher="strict", **options)
    session_id = kit.create(metadata={"task": "lookup-7", "step": 3})
    called = {"message": look('{"key": "x"}'), "finish_reason": "tool_calls", "text": "look x"}
    await say(kit, session_id, ASKED, 1.5, **called)
    await say(kit, session_id, CALLED, 0.25, text="done")
    await say(kit, session_id, CALLED, 0.5, text="done again")
    await say(kit, session_id, [*ASKED, look('{"key":"x"}'), RESULT], 0.75, text="done\x1b[31m")
    await say(kit, session_id, [{"role": "system", "content": "Write a title."}, user("x")], 1.0, text="a title")
    await kit.begin(session_id, [*CALLED, assistant("done again"), user("and y?")])
    await kit.clock.advance(40.0)
    await kit.backend.control.pause(PauseMode.ABORT, forward=False)
    await kit.begin(session_id, [user("new")])
    await kit.clock.advance(200.0)
    return Told(kit=kit, session_id=session_id)
