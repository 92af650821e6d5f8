"""What an engine may send that would break a conversation later.

1. A lone surrogate in a reply becomes U+FFFD before it is recorded; its replay still matches.
2. A trainer that ends a step aborts everything: all turns in flight end at once, none with a second engine call.
"""

import asyncio

from httpkit import running_site
from servicekit import user
from turnkeeper.jsontypes import JsonObject
from turnkeeper.testing import ScriptedEngine, ScriptedReply


def break_an_emoji(reply: JsonObject) -> None:
    reply["choices"][0]["message"]["content"] = "a\ud83d b"


async def test_half_an_emoji_does_not_end_a_conversation() -> None:
    async with running_site(ScriptedEngine([ScriptedReply(text="x", edit=break_an_emoji)])) as site:
        session = await site.create()
        first = await site.chat(session, [user("a")])
        message = first.json()["choices"][0]["message"]
        assert (first.status, message["content"]) == (200, "a\ufffd b")
        assert (await site.chat(session, [user("a"), message, user("b")])).status == 200
        entry = site.find_entry(session.removeprefix("/sessions/"))
        assert [turn.parent for turn in entry.session.forest.turns] == [None, 0]
        assert (await site.call("GET", session)).status == 200


async def test_aborting_everything_ends_many_turns_at_once() -> None:
    engine = ScriptedEngine(default=ScriptedReply(wait=asyncio.Event()))
    async with running_site(engine) as site:
        sessions = [await site.create() for _ in range(64)]
        turns = [asyncio.create_task(site.chat(session, [user("a")])) for session in sessions]
        await engine.wait_for_generations(64)
        assert (await site.call("POST", "/engine/abort")).status == 200
        ended = await asyncio.gather(*turns)
        assert {(turn.status, turn.headers["x-should-retry"]) for turn in ended} == {(503, "false")}
        assert len(engine.generations) == 64
