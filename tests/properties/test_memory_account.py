"""What sessions take in memory, as the account has it.

1. Whatever happens, a session's account is the sum of its parts, each as if it were measured anew; the account of all
   sessions is the sum of theirs, never negative, and nothing once they are deleted.
2. Whatever an agent or a trainer can make grow makes the account grow by at least as much.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servicekit import Kit, Turn, assistant, build_kit, user
from turnkeeper.errors import EngineError, TurnkeeperError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.sessions import MemoryAccount, SessionEntry
from turnkeeper.service.sessions.footprint import Part, measure_session
from turnkeeper.testing import settle

SIZE = 100_000


@dataclass(slots=True)
class Play:
    """A few sessions, and what may happen to them."""

    kit: Kit
    account: MemoryAccount
    sessions: dict[str, list[JsonObject]] = field(default_factory=dict[str, list[JsonObject]])
    flights: list[Turn] = field(default_factory=list[Turn])

    def pick(self, number: int) -> str:
        return list(self.sessions)[number % len(self.sessions)]

    async def create(self, number: int) -> None:
        self.sessions[self.kit.create(metadata={"task": "x" * number}, temperature=number / 100)] = []

    async def take(self, number: int, messages: list[JsonObject], **fields: Any) -> None:
        """A whole turn, whatever else is in flight."""
        turn = await self.kit.begin(self.pick(number), messages, **fields)
        if not turn.waiting.done():
            self.kit.engine.answer(-1, text=f"a{number}")
        await turn.read()

    async def say(self, number: int) -> None:
        history = self.sessions[self.pick(number)]
        parts = {"role": "user", "content": [{"type": "text", "text": "p" * number}]}
        asked = [*history, user("q" * number) if number % 2 else parts]
        fields: JsonObject = {"chat_template_kwargs": {"k": "v" * (number % 3)}, "temperature": 1 + number / 1000}
        await self.take(number, asked, key="k" * number, **fields)
        self.sessions[self.pick(number)] = [*asked, assistant(f"a{number}")] if number % 4 else history

    async def call_tools(self, number: int) -> None:
        tool = {"type": "function", "function": {"name": f"f{number % 2}", "description": "d" * number}}
        headers = {"session-id": "h" * number}
        await self.take(number, [user("t" * number)], tools=[tool], headers=headers)

    async def begin(self, number: int) -> None:
        turn = await self.kit.begin(self.pick(number), [user("f" * number)], stream=True)
        self.flights.append(turn)
        if number % 2 and self.kit.engine.waiting:
            self.kit.engine.waiting[-1].stream("text")

    async def retry(self, number: int) -> None:
        self.flights.append(await self.kit.begin(self.pick(number), [user("f" * number)], retry=1))

    async def end(self, number: int) -> None:
        if self.flights and number % 3 == 0:
            await self.flights.pop().hang_up()
            await self.kit.clock.advance(10)
        elif self.kit.engine.waiting and number % 3 == 1:
            self.kit.engine.fail(EngineError("broke off", url="http://engine"))
        elif self.kit.engine.waiting:
            self.kit.engine.answer(text="late")

    async def read(self, number: int) -> None:
        await self.kit.service.describe(self.pick(number))
        if number % 2:
            await self.kit.service.collect(self.pick(number))

    async def delete(self, number: int) -> None:
        session_id = self.pick(number)
        del self.sessions[session_id]
        self.kit.service.delete(session_id)
        if not self.sessions:
            await self.create(number)

    async def expire(self, number: int) -> None:
        if number % 5 == 0:
            await self.kit.clock.advance(10_000)
            self.kit.service.sweep()
            left = {each["session_id"] for each in (await self.kit.service.list_sessions())["sessions"]}
            self.sessions = {each: said for each, said in self.sessions.items() if each in left}
            await self.create(number)

    def list_entries(self) -> list[SessionEntry]:
        return [self.kit.find_entry(each) for each in self.sessions]


ACTS: tuple[Callable[[Play, int], Any], ...] = (
    Play.create,
    Play.say,
    Play.say,
    Play.call_tools,
    Play.begin,
    Play.retry,
    Play.end,
    Play.read,
    Play.delete,
    Play.expire,
)


def check(play: Play) -> None:
    entries = play.list_entries()
    for entry in entries:
        assert entry.held == measure_session(entry), entry.id
        assert min(entry.held.values()) >= 0
        assert entry.size_bytes == sum(entry.held.values())
    assert play.account.used_bytes == sum(entry.size_bytes for entry in entries)
    assert play.account.spilled_bytes == 0


@settings(max_examples=40)
@given(acts=st.lists(st.tuples(st.sampled_from(ACTS), st.integers(1, 40)), min_size=5, max_size=25))
def test_a_sessions_account_is_the_sum_of_its_parts(acts: list[tuple[Callable[[Play, int], Any], int]]) -> None:
    async def run() -> None:
        kit = build_kit(use_session_server="v2", on_abort="resume")
        first = kit.create()
        play = Play(kit=kit, account=kit.find_entry(first).memory, sessions={first: []})
        for act, number in acts:
            with contextlib.suppress(TurnkeeperError):  # such as a request that ends with an assistant message
                await act(play, number)
            await settle()
            check(play)
        for session_id in play.sessions:
            kit.service.delete(session_id)
        await settle()
        assert (play.account.used_bytes, play.account.spilled_bytes, play.account.movable) == (0, 0, {})

    asyncio.run(run())


BIG = "x" * SIZE
WIDE = "\U0001f600" + "x" * (SIZE // 4)
"""One character makes all of them four bytes wide."""
TOOL = {"type": "function", "function": {"name": "f", "description": BIG, "parameters": {}}}
GROWING: dict[str, tuple[Part, JsonObject]] = {
    "a message": (Part.TURNS, {"messages": [user(BIG)]}),
    "a message in parts": (Part.TURNS, {"messages": [{"role": "user", "content": [{"type": "text", "text": BIG}]}]}),
    "many messages": (Part.TURNS, {"messages": [user("x")] * (SIZE // 100)}),
    "tool arguments": (
        Part.TURNS,
        {
            "messages": [
                user("a"),
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "f", "arguments": f'{{"a": "{BIG}"}}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "b"},
            ]
        },
    ),
    "reasoning": (
        Part.TURNS,
        {"messages": [user("a"), {"role": "assistant", "content": "b", "reasoning_content": BIG}, user("c")]},
    ),
    "a tool": (Part.TOOLS, {"tools": [TOOL]}),
    "template arguments": (Part.TURNS, {"chat_template_kwargs": {"x": BIG}}),
    "the model's name": (Part.TURNS, {"model": BIG}),
    "a field that is passed on": (Part.TURNS, {"response_format": {"type": "json_schema", "json_schema": {"x": BIG}}}),
    "stop strings": (Part.TURNS, {"stop": [BIG]}),
    "an idempotency key": (Part.TURNS, {"key": BIG}),
    "a harness header": (Part.TURNS, {"headers": {"session-id": BIG}}),
    "a message with an emoji": (Part.TURNS, {"messages": [user(WIDE)]}),
    "a part with an emoji": (Part.TURNS, {"messages": [{"role": "user", "content": [{"type": "text", "text": WIDE}]}]}),
    "a model's name with an emoji": (Part.TURNS, {"model": WIDE}),
    "a stop string with an emoji": (Part.TURNS, {"stop": [WIDE]}),
    "a tool with an emoji": (Part.TOOLS, {"tools": [{"type": "function", "function": {"name": "f", WIDE: 1}}]}),
    "template arguments with an emoji": (Part.TURNS, {"chat_template_kwargs": {"x": WIDE}}),
}


@pytest.mark.parametrize(("part", "fields"), GROWING.values(), ids=GROWING.keys())
async def test_what_an_agent_sends_makes_the_account_grow(part: Part, fields: JsonObject) -> None:
    kit = build_kit()
    session_id = kit.create()
    entry = kit.find_entry(session_id)
    before, used = entry.held[part], entry.memory.used_bytes
    await kit.say(session_id, **{"messages": [user("hi")], **fields})
    assert entry.held[part] - before >= SIZE
    assert entry.memory.used_bytes - used >= SIZE
    kit.service.delete(session_id)
    assert entry.memory.used_bytes == 0


async def test_what_a_trainer_sends_makes_the_account_grow() -> None:
    kit = build_kit()
    entry = kit.find_entry(kit.create(metadata={"task": BIG}))
    assert entry.held[Part.SETTINGS] >= SIZE


async def test_a_request_in_flight_counts_until_it_ends() -> None:
    kit = build_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user(BIG)])
    entry = kit.find_entry(session_id)
    assert entry.held[Part.IN_FLIGHT] >= SIZE
    kit.engine.answer()
    await turn.read()
    assert entry.held[Part.IN_FLIGHT] == 0


async def test_joined_paths_and_differences_count_once_they_are_there() -> None:
    kit = build_kit()
    session_id = kit.create()
    said = [user("a"), {"role": "assistant", "content": "  <think>b" * 500}, user("c")]
    await kit.say(session_id, said)
    await kit.service.collect(session_id)
    entry = kit.find_entry(session_id)
    assert entry.held[Part.PATHS] >= 4 * entry.session.forest.turns[-1].path_tokens
    assert entry.held[Part.MISMATCHES] > 0


async def test_calls_that_are_given_up_count() -> None:
    kit = build_kit()
    session_id = kit.create()
    entry = kit.find_entry(session_id)
    before = entry.held[Part.EVENTS]
    for number in range(10):
        await (await kit.begin(session_id, [user(str(number))])).hang_up()
        await kit.clock.advance(5)
    assert entry.held[Part.EVENTS] - before >= 10 * 100
