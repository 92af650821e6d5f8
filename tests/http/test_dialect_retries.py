"""Retries as agents send them, in every dialect.

1. A request that says it is a retry gets the stored reply, streamed or not, whatever bookkeeping changed: one id, one
   engine call, one turn.
2. The same words without a mark of a retry are a sample of their own.
"""

import json
from typing import Any

import pytest

from agentkit import AGENTS
from httpkit import Reply, running_site
from turnkeeper.dialects import parse_events

NOISE: dict[str, list[dict[str, Any]]] = {
    "chat": [{"user": "a", "stream_options": {"include_usage": True}}, {"user": "b"}],
    "messages": [
        {"metadata": {"user_id": "a"}, "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=a;"}]},
        {"system": [{"type": "text", "text": "x-anthropic-billing-header: cch=b;"}]},
    ],
    "responses": [{"client_metadata": {"turn": "a"}, "prompt_cache_key": "a"}, {"client_metadata": {"turn": "b"}}],
}
"""What a client sends with the first try, and with the second."""


PLACES = {"chat": ["id"], "messages": ["message", "id"], "responses": ["response", "id"]}
"""Where the first event of a stream says the reply's id."""


def read_id(dialect: str, reply: Reply) -> str:
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return reply.json()["id"]
    value: Any = json.loads(next(iter(parse_events(reply.body))).data)
    for key in PLACES[dialect]:
        value = value[key]
    return value


@pytest.mark.parametrize("dialect", AGENTS)
@pytest.mark.parametrize("streams", [(True, False), (False, True), (True, True)], ids=["cut", "streamed", "again"])
@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "unmarked"])
async def test_a_retry_gets_the_stored_reply(dialect: str, streams: tuple[bool, bool], is_marked: bool) -> None:
    async with running_site(use_session_server="v2") as site:
        agent = AGENTS[dialect](site, await site.create())
        agent.say("hi")
        first = await agent.ask(max_tokens=9, **NOISE[dialect][0], stream=streams[0])
        agent.headers = {"x_stainless_retry_count": "1"} if is_marked else {}
        again = await agent.ask(max_tokens=9, **NOISE[dialect][1], stream=streams[1])
        assert (read_id(dialect, first) == read_id(dialect, again)) == is_marked
        assert len(site.engine.generations) == (1 if is_marked else 2)
        nodes = (await site.call("GET", agent.session)).json()["metadata"]["tree"]["nodes"]
        assert len(nodes) == (1 if is_marked else 2)
