"""A session service for tests: the real one, over an engine that answers when it is told to.

::

    kit = build_kit(history="tree")
    session_id = kit.create()
    flight = await kit.begin(session_id, [user("hi")])       # the engine has been asked
    kit.engine.answer(text="hello")                          # and now it answers
    assert (await flight.body())["choices"]...

No sockets, no waiting: time stands still unless ``kit.clock`` is advanced.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.config.load import load
from turnkeeper.config.resolve import resolve
from turnkeeper.core import Session, TurnRequest
from turnkeeper.core import Turn as StoredTurn
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.core.turn import RetryMarks
from turnkeeper.dialects import CHAT, ParseContext
from turnkeeper.engines import (
    EngineClient,
    EngineState,
    EngineStatus,
    GenerateRequest,
    Generation,
    RelayReply,
    RelayRequest,
)
from turnkeeper.engines.engine import IdsSink
from turnkeeper.http.backend import Backend
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import Renderer, build_renderer
from turnkeeper.server.base import Dependencies
from turnkeeper.server.build import ServerParts, join_server
from turnkeeper.server.store import BuildKeeper
from turnkeeper.service.service import SessionService
from turnkeeper.service.sessions import MemoryKeeper, SessionEntry, parse_new_session
from turnkeeper.service.turns import StoreTurn, Waiter
from turnkeeper.telemetry import NoTracing, Report, Tracing
from turnkeeper.testing import ManualClock, settle
from turnkeeper.tiny.checkpoint import shipped_checkpoint

ENGINE_URL = "http://engine"


def user(text: str) -> JsonObject:
    return {"role": "user", "content": text}


def assistant(text: str) -> JsonObject:
    return {"role": "assistant", "content": text}


@cache
def get_renderer() -> Renderer:
    """The embedded engine's tokenizer and template, under the family whose format it speaks."""
    return build_renderer(read_checkpoint(shipped_checkpoint()), "qwen3")


@dataclass(slots=True, eq=False)
class Call:
    """One engine call that has arrived."""

    request: GenerateRequest
    reply: asyncio.Future[Generation]
    on_ids: IdsSink | None = None

    def stream(self, text: str) -> None:
        """Send the ids of some text before the reply is complete."""
        assert self.on_ids is not None
        self.on_ids(get_renderer().tokenizer.encode(text))


@dataclass(slots=True)
class FakeEngine:
    """Implements `Engine`; a call waits until the test answers it, or is answered at once by ``auto``."""

    calls: list[Call] = field(default_factory=list[Call])
    aborted: list[str] = field(default_factory=list[str])
    relayed: list[RelayRequest] = field(default_factory=list[RelayRequest])
    auto: str | None = None
    version: str | None = "v0"
    context_length: int | None = None
    state: EngineState = EngineState.SERVING

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        call = Call(request, asyncio.get_running_loop().create_future(), on_ids)
        self.calls.append(call)
        if self.auto is not None:
            return self.build(call, text=self.auto)
        return await call.reply

    async def relay(self, call: RelayRequest) -> RelayReply:
        self.relayed.append(call)
        return RelayReply(status=200, headers=(), body=b"{}")

    async def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        report = EngineStatus(
            url=ENGINE_URL, state=self.state, weight_version=self.version, context_length=self.context_length
        )
        return (report,)

    async def close(self) -> None:
        pass

    @property
    def waiting(self) -> list[Call]:
        """Calls without an answer."""
        return [call for call in self.calls if not call.reply.done()]

    def answer(self, index: int = 0, **fields: Any) -> None:
        """Answer a waiting call, the oldest unless told otherwise."""
        call = self.waiting[index]
        call.reply.set_result(self.build(call, **fields))

    def fail(self, error: Exception, index: int = 0) -> None:
        """Let a waiting call fail."""
        self.waiting[index].reply.set_exception(error)

    def build(self, call: Call, *, text: str = "ok", finish_reason: str = "stop", **changes: Any) -> Generation:
        """A sound reply: the ids of its text, and the stop token unless it was cut."""
        stop = (get_renderer().tokenizer.get_id("<|im_end|>"),) if finish_reason in ("stop", "tool_calls") else ()
        ids = freeze_ids([*get_renderer().tokenizer.encode(text).tolist(), *stop])
        sound: dict[str, Any] = {
            "message": assistant(text),
            "ids": ids,
            "logprobs": -np.arange(1, len(ids) + 1) / 8,
            "finish_reason": finish_reason,
            "prompt_tokens": len(call.request.prompt_ids),
            "completion_tokens": len(ids),
            "weight_version": self.version,
            "url": ENGINE_URL,
        }
        return Generation(**{**sound, **changes})


@dataclass(slots=True)
class Turn:
    """One agent's wait for a turn."""

    waiter: Waiter
    waiting: asyncio.Task[bytes]

    async def read(self) -> JsonObject:
        """The reply's body, read in full."""
        body = await self.waiting
        self.waiter.close(was_written=True)
        return json.loads(body)

    async def text(self) -> str:
        """The reply's content, read in full."""
        return (await self.read())["choices"][0]["message"]["content"]

    async def hang_up(self) -> None:
        """Close the connection before the reply."""
        self.waiter.hang_up()
        await settle()


@dataclass(slots=True, kw_only=True)
class Kit:
    """The service and everything around it."""

    parts: ServerParts
    engine: FakeEngine
    clock: ManualClock
    reports: list[Report]
    """What the server reported, in order."""

    @property
    def backend(self) -> Backend:
        """What the routes call."""
        return self.parts.backend

    @property
    def service(self) -> SessionService:
        """The sessions."""
        return self.parts.backend.sessions

    def find_entry(self, session_id: str) -> SessionEntry:
        """What the server holds of a session."""
        return self.parts.registry.get(session_id, self.clock.now())

    @property
    def context(self) -> ParseContext:
        """What dialects are told in tests."""
        return NO_CONTEXT

    def create(self, **body: Any) -> str:
        """Open a session."""
        return self.service.create(parse_new_session(body)).id

    async def begin(
        self,
        session_id: str,
        messages: list[JsonObject],
        *,
        retry: int = 0,
        key: str = "",
        headers: Mapping[str, str] | None = None,
        trace: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Turn:
        """Send a turn; returns once the engine has been asked, or whatever else comes of it at first."""
        request = build_request(messages, retry=retry, key=key, headers=headers, trace=trace, **fields)
        response_id = CHAT.build_response_id(self.backend.token_bytes(16).hex())
        waiter = await self.service.begin_turn(session_id, request, response_id)
        waiter.expect(CHAT.parse_request({"messages": messages, **fields}, NO_CONTEXT).render_reply)
        turn = Turn(waiter, asyncio.create_task(waiter.wait()))
        turn.waiting.add_done_callback(_take_error)  # not every test reads what it hung up on
        await settle()
        return turn

    async def say(self, session_id: str, messages: list[JsonObject], reply: str = "ok", **fields: Any) -> str:
        """A whole turn: sent, answered, read."""
        turn = await self.begin(session_id, messages, **fields)
        if self.engine.waiting:
            self.engine.answer(text=reply)
        return await turn.text()

    def look(self, session_id: str) -> Session:
        """The pure session."""
        return self.find_entry(session_id).session


def _take_error(task: asyncio.Task[bytes]) -> None:
    if not task.cancelled():
        task.exception()


NO_CONTEXT = ParseContext(decode_token=str)


def build_request(
    messages: list[JsonObject],
    *,
    retry: int = 0,
    key: str = "",
    headers: Mapping[str, str] | None = None,
    trace: Mapping[str, str] | None = None,
    **fields: Any,
) -> TurnRequest:
    """An agent's request."""
    call = CHAT.parse_request({"messages": messages, **fields}, NO_CONTEXT)
    marks = RetryMarks(retry_count=retry, key=key)
    return replace(call.request, wants_text=call.wants_stream, retry=marks, headers=headers or {}, trace=trace or {})


class FakeKeeper(MemoryKeeper):
    """Keeps nothing, and stores turns as a test says."""

    def __init__(self, store_turn: StoreTurn | None) -> None:
        self._store_turn = store_turn

    async def store_turn(self, entry: SessionEntry, turn: StoredTurn) -> None:
        """Do what the test says."""
        if self._store_turn is not None:
            await self._store_turn(entry, turn)


def build_kit(
    *,
    engine: FakeEngine | None = None,
    checkpoint_config: JsonObject | None = None,
    store_turn: StoreTurn | None = None,
    build_keeper: BuildKeeper | None = None,
    tracing: Tracing | None = None,
    clock: ManualClock | None = None,
    **options: Any,
) -> Kit:
    """A service with these options (attribute names of the flags), v1 unless told otherwise."""
    engine, clock, serial = engine or FakeEngine(), clock or ManualClock(), count(1)
    reports: list[Report] = []
    settings: Mapping[str, Any] = {"hf_checkpoint": "x", "backend_url": ENGINE_URL, **options}
    parts = join_server(
        resolve(load(settings)),
        renderer=get_renderer(),
        checkpoint_config=checkpoint_config or {},
        client=EngineClient(),
        connect=lambda wrap: wrap(ENGINE_URL, engine),
        dependencies=Dependencies(
            clock=clock,
            token_bytes=lambda size: next(serial).to_bytes(size, "big"),
            readers=[reports.append],
            tracing=tracing or NoTracing(),
        ),
        build_keeper=build_keeper or (lambda _: FakeKeeper(store_turn)),
    )
    return Kit(parts=parts, engine=engine, clock=clock, reports=reports)
