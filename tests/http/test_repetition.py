"""Requests over HTTP that repeat the one before them.

1. Of a conversation that goes on only the new messages are read, in every turn, and its samples are one path.
2. A request whose history was edited is read as a whole, and the session goes on from there.
3. A request to count tokens knows as much.
"""

from typing import Any

import pytest

from httpkit import Site, running_site
from turnkeeper.dialects import CHAT, MESSAGES, AgentCall, ParseContext
from turnkeeper.dialects.chat.dialect import ChatDialect
from turnkeeper.dialects.messages.dialect import MessagesDialect
from turnkeeper.jsontypes import JsonObject


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each parsed request had."""
    counts: list[int] = []
    for kind, dialect in ((ChatDialect, CHAT), (MessagesDialect, MESSAGES)):
        parse = dialect.parse_request

        def parse_and_count(self: Any, body: JsonObject, context: ParseContext, parse: Any = parse) -> AgentCall:
            counts.append(len(body["messages"]))
            return parse(body, context)

        monkeypatch.setattr(kind, "parse_request", parse_and_count)
    return counts


def user(text: str) -> JsonObject:
    return {"role": "user", "content": text}


async def say(site: Site, session: str, messages: list[JsonObject]) -> list[JsonObject]:
    """One turn; the messages with its reply."""
    reply = await site.chat(session, messages)
    assert reply.status == 200
    return [*messages, reply.json()["choices"][0]["message"]]


async def test_only_new_messages_are_read(read: list[int]) -> None:
    async with running_site() as site:
        session = await site.create()
        messages: list[JsonObject] = []
        for number in range(4):
            messages = await say(site, session, [*messages, user(f"question {number}")])
        entry = site.find_entry(session.rpartition("/")[2])
        assert [turn.parent for turn in entry.session.forest.turns] == [None, 0, 1, 2]
        assert entry.session.forest.path_messages(entry.session.forest.turns[-1].id) == tuple(messages)
    assert read == [1, 2, 2, 2]


async def test_an_edited_history_is_read_as_a_whole(read: list[int]) -> None:
    async with running_site(use_session_server="v2") as site:
        session = await site.create()
        messages = await say(site, session, [user("a")])
        messages = await say(site, session, [*messages, user("b")])
        edited = await say(site, session, [messages[0], messages[1], user("c")])
        edited = await say(site, session, [*edited, user("d")])
        await say(site, session, [*edited, user("e")])
        forest = site.find_entry(session.rpartition("/")[2]).session.forest
        assert [turn.parent for turn in forest.turns] == [None, 0, 0, 2, 3]
    assert read == [1, 2, 3, 2, 2]


async def test_a_count_of_tokens_reads_new_messages_only(read: list[int]) -> None:
    async with running_site() as site:
        session = await site.create()
        body: JsonObject = {"model": "m", "max_tokens": 9, "messages": [user("a")]}
        reply = (await site.call("POST", f"{session}/v1/messages", body)).json()
        body["messages"] += [{"role": "assistant", "content": reply["content"]}, user("b")]
        counted = await site.call("POST", f"{session}/v1/messages/count_tokens", body)
        again = await site.call("POST", f"{session}/v1/messages/count_tokens", {"max_tokens": 9, **body})
        assert counted.json() == again.json()
    assert read[0] == 1
    assert read[1] == 2
