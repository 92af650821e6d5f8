"""Many agents at once that hang up, retry, delete and meet faults, over real sockets; every choice comes from a seed.

1. Every reply that an agent read to its end is recorded, under its own id, in the session it was asked of.
2. Every session sums up, and shows and collects while others are at work.
3. Afterwards nothing is in flight; deleting everything empties every table; no task is left over.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from httpkit import Site, running_site
from servicekit import assistant, get_renderer, user
from traps.untouched import check_sound, get_entry
from turnkeeper.dialects import parse_events
from turnkeeper.testing import Phase, RecordedRequest, ScriptedEngine, ScriptedReply, settle

AGENTS = 100
TURNS = 3

FAULTS = (
    ScriptedReply(fault=Phase.HEADERS),
    ScriptedReply(fault=Phase.BODY),
    ScriptedReply(fault=Phase.TRUNCATED),
    ScriptedReply(status=429),
    ScriptedReply(status=500),
    ScriptedReply(body=b"<html>"),
    ScriptedReply(finish_reason="abort", ids=(9, 9), text=""),
    ScriptedReply(edit=lambda reply: reply.update(choices=[])),
)


@dataclass(slots=True)
class Waits:
    """Replies that are held back until somebody else was served."""

    events: list[asyncio.Event] = field(default_factory=list[asyncio.Event])

    def add(self) -> asyncio.Event:
        self.events.append(asyncio.Event())
        return self.events[-1]

    def release(self) -> None:
        for event in self.events:
            event.set()
        self.events.clear()


@dataclass(slots=True, kw_only=True)
class Agent:
    """One agent: a conversation that goes on whatever happens, and the ids of the replies that it has read."""

    site: Site
    draw: random.Random
    waits: Waits
    session: str
    read: set[str] = field(default_factory=set[str])
    is_deleted: bool = False
    statuses: set[int] = field(default_factory=set[int])

    async def play(self) -> None:
        messages: list[dict[str, Any]] = [user(f"{self.session[-6:]} begins")]
        for turn in range(TURNS):
            said = await self.take_turn(messages)
            if said is not None:
                messages = [*messages, assistant(said), user(f"then {turn}")]
            else:
                messages = [*messages[:-1], user(f"instead {turn}")]
            self.waits.release()
            if self.draw.random() < 0.05:
                deleted = await self.site.call("DELETE", self.session)
                self.statuses.add(deleted.status)
                self.is_deleted = True
            elif self.draw.random() < 0.2:
                self.statuses.add((await self.site.call("POST", f"{self.session}/samples")).status)

    async def take_turn(self, messages: list[dict[str, Any]]) -> str | None:
        """The turn's text, after up to three tries; None when there is none."""
        for retry in range(3):
            task = asyncio.create_task(self.ask(messages, retry))
            if self.draw.random() < 0.2:
                await settle(self.draw.randrange(60))
                task.cancel()
                if self.draw.random() < 0.5:
                    return None
            elif self.draw.random() < 0.1:
                twin = asyncio.create_task(self.ask(messages, retry + 1))
                await asyncio.gather(twin, return_exceptions=True)
            (said,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(said, str):
                return said
            if said is not None and not isinstance(said, asyncio.CancelledError):
                raise said
        return None

    async def ask(self, messages: list[dict[str, Any]], retry: int) -> str | None:
        is_stream = self.draw.random() < 0.5
        body = orjson.dumps({"messages": messages, "stream": is_stream})
        headers = {"x-stainless-retry-count": str(retry)}
        url = f"{self.site.url}{self.session}/v1/chat/completions"
        async with self.site.http.post(url, data=body, headers=headers) as response:
            content = await response.read()
        self.statuses.add(response.status)
        if response.status != 200:
            assert {"message", "type", "code", "param"} == set(orjson.loads(content)["error"])
            return None
        found = read_stream(content) if is_stream else read_reply(content)
        self.read |= found.keys()
        return next(iter(found.values()), None)


def read_reply(content: bytes) -> dict[str, str]:
    reply = orjson.loads(content)
    return {reply["id"]: reply["choices"][0]["message"]["content"]}


def read_stream(content: bytes) -> dict[str, str]:
    """Nothing where the stream ended in an error event."""
    events = list(parse_events(content))
    if events[-1].data != "[DONE]":
        assert "error" in orjson.loads(events[-1].data)
        return {}
    chunks = [orjson.loads(event.data) for event in events[:-1]]
    (response_id,) = {chunk["id"] for chunk in chunks}
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    return {response_id: "".join(deltas)}


@asynccontextmanager
async def running_crowd(seed: int, version: str) -> AsyncIterator[list[Agent]]:
    draw = random.Random(seed)
    waits = Waits()

    def respond(_: RecordedRequest) -> ScriptedReply:
        if draw.random() < 0.25:
            return draw.choice(FAULTS)
        return ScriptedReply(wait=waits.add() if draw.random() < 0.3 else None)

    engine = ScriptedEngine(default=respond, encode=lambda text: get_renderer().tokenizer.encode(text).tolist())
    options: dict[str, Any] = {"abort_grace": 0, "reconnect_grace": 0.001, "stream_header_delay": 0.01}
    async with running_site(engine, use_session_server=version, **options, stream_heartbeat=0.01) as site:
        sessions = [await site.create() for _ in range(AGENTS)]
        agents = [
            Agent(site=site, draw=random.Random(f"{seed}/{place}"), waits=waits, session=session)
            for place, session in enumerate(sessions)
        ]
        releasing = asyncio.create_task(release_for_ever(waits))
        await asyncio.gather(*(agent.play() for agent in agents))
        releasing.cancel()
        await asyncio.gather(releasing, return_exceptions=True)
        waits.release()
        yield agents


async def release_for_ever(waits: Waits) -> None:
    while True:
        for _ in range(20):
            await settle()
        waits.release()


async def at_rest(site: Site) -> None:
    """Until nothing is in flight."""
    async with asyncio.timeout(20):
        while any(
            not get_entry(site, f"/sessions/{each['session_id']}").is_idle
            for each in (await site.service.list_sessions())["sessions"]
        ):
            await settle()


@pytest.mark.parametrize(("seed", "version"), [(1, "v1"), (2, "v2")])
async def test_a_crowd_leaves_nothing_behind(seed: int, version: str) -> None:
    before = asyncio.all_tasks()
    async with running_crowd(seed, version) as agents:
        site = agents[0].site
        await at_rest(site)
        statuses = set().union(*(agent.statuses for agent in agents))
        assert {200, 204, 429, 502, 503} <= statuses
        assert 500 not in statuses
        for agent in agents:
            if agent.is_deleted:
                assert (await site.call("GET", agent.session)).status == 404
                continue
            turns = get_entry(site, agent.session).session.forest.turns
            assert agent.read <= {turn.completion.response_id for turn in turns}
            await check_sound(site, agent.session, turns=len(turns))
            assert (await site.call("DELETE", agent.session)).status == 204
        assert (await site.service.list_sessions())["sessions"] == []
        assert b"turnkeeper_session_bytes 0.0\n" in (await site.call("GET", "/metrics")).body
        async with asyncio.timeout(10):
            while site.engine.in_flight:
                await settle()
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()
