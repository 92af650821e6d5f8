"""A scripted engine: an ASGI application that speaks SGLang's wire and says what a test tells it to.

::

    engine = ScriptedEngine(script=[ScriptedReply(text="4"), ScriptedReply(fault=Phase.BODY)])
    async with running(engine) as url:
        ...                                      # point anything at url
    engine.generations[0].json["input_ids"]      # what it was sent, in order

A generate call takes the next entry of the script, and ``default`` once the script is used up; a call may also be
answered by a function of the request. The probe of a session server takes no entry and is recorded apart; it gets
``probe_reply``, an ordinary reply unless a test says otherwise. Nothing sleeps: a reply that shall take long waits for
an `asyncio.Event`.
Pausing, aborting and weight updates behave as SGLang's do, without weights: a paused engine holds new requests back,
``abort`` ends those in flight, and a version label is just a label.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson

from turnkeeper.fleet.route_check import PROBE_SESSION
from turnkeeper.jsontypes import JsonObject
from turnkeeper.testing.exchange import RecordedRequest, ScriptedAnswer, read_request, send_answer, serve_lifespan
from turnkeeper.testing.script import (
    DEFAULT_STOP_ID,
    MoeShape,
    ScriptedReply,
    ScriptedTokens,
    build_chat_reply,
    build_meta,
    build_sampled,
    build_stream,
    dump_reply,
)
from turnkeeper.tiny import wire

Respond = Callable[[RecordedRequest], ScriptedReply]
"""Makes the reply to a call from the call."""


@dataclass(slots=True, kw_only=True)
class _InFlight:
    """A generate call that has not been answered."""

    rid: str
    aborted: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedEngine:
    """The application; see the module's docstring. One instance is one engine."""

    def __init__(
        self,
        script: Iterable[ScriptedReply] = (),
        *,
        default: ScriptedReply | Respond | None = None,
        encode: Callable[[str], Sequence[int]] | None = None,
        stop_id: int = DEFAULT_STOP_ID,
        moe: MoeShape | None = None,
        weight_version: str = "default",
        context_length: int = 32768,
        is_incremental: bool = False,
    ) -> None:
        """Write the script.

        Args:
            script: the answers to the first generate calls, in the order in which the calls arrive.
            default: the answer to every later call, or a function that makes it; None gives ordinary replies.
            encode: spells a reply's text as ids, so that they decode to it; None makes ids up, one a byte.
            stop_id: ends the ids of replies that do not give their own.
            moe: sends routing rows of this shape to those who ask; None is a dense model, or a missing flag.
            weight_version: the label until an update gives another.
            context_length: longer prompts are refused as SGLang refuses them.
            is_incremental: events of a stream hold only what is new.
        """
        self.script = list(script)
        self.default = default if default is not None else ScriptedReply()
        self.weight_version = weight_version
        self.context_length = context_length
        self.moe = moe
        self.is_incremental = is_incremental
        self.requests: list[RecordedRequest] = []
        """Every request, in the order of arrival."""
        self.generations: list[RecordedRequest] = []
        """Those that generate, less those of `probes`."""
        self.probes: list[RecordedRequest] = []
        """Generate calls that a session server makes for itself."""
        self.probe_reply = ScriptedReply(text="", ids=[16, 17], finish_reason="length")
        """The answer to each of them."""
        self.control_answers: dict[str, tuple[int, bytes]] = {}
        """Status and body for other routes by path, instead of the engine's own answer."""
        self.on_request: Callable[[RecordedRequest], object] | None = None
        """Called with every request as it arrives."""
        self.hang_ups = 0
        """How many clients went away before their reply was due."""
        self.has_ready_route = True
        """Whether ``/ready`` exists; older engines have none."""
        self.authorization: str | None = None
        """What the header of every request must say; None lets everybody in."""
        self._encode = encode
        self._stop_id = stop_id
        self._arrived = asyncio.Condition()
        self._in_flight: list[_InFlight] = []
        self._running = asyncio.Event()
        self._running.set()
        self._control: dict[tuple[str, str], Callable[[JsonObject], ScriptedAnswer]] = {
            ("POST", wire.ABORT): self._on_abort,
            ("POST", wire.PAUSE): self._on_pause,
            ("POST", wire.CONTINUE): self._on_continue,
            ("POST", wire.FLUSH_CACHE): self._on_flush,
            ("POST", wire.UPDATE_WEIGHTS): self._on_update,
            ("POST", wire.UPDATE_VERSION): self._on_version,
            ("POST", wire.RELEASE_MEMORY): self._on_memory,
            ("POST", wire.RESUME_MEMORY): self._on_memory,
            ("GET", wire.MODEL_INFO): self._on_info,
            ("GET", wire.HEALTH): self._on_ready,
            ("GET", wire.READY): self._on_ready,
            ("GET", wire.MODELS): self._on_models,
        }

    @property
    def is_paused(self) -> bool:
        """True if new requests are held back."""
        return not self._running.is_set()

    @property
    def in_flight(self) -> int:
        """The number of generate calls that wait for their answer."""
        return len(self._in_flight)

    async def wait_for_generations(self, count: int) -> None:
        """Return once so many generate calls have arrived since the start."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.generations) >= count)

    async def wait_for_probes(self, count: int) -> None:
        """Return once so many probes have arrived since the start."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.probes) >= count)

    def pause(self, mode: str) -> None:
        """Hold new requests back; ``abort`` also ends those in flight."""
        if mode == "abort":
            self.abort()
        self._running.clear()

    def resume(self) -> None:
        """Let requests go on."""
        self._running.set()

    def abort(self, rid: str | None = None) -> None:
        """End the calls whose id starts so, as SGLang matches them; None ends all."""
        for call in self._in_flight:
            if rid is None or call.rid.startswith(rid):
                call.aborted.set()

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]):
        """Answer one request as an ASGI application."""
        if scope["type"] == "lifespan":
            await serve_lifespan(receive, send)
            return
        request = await read_request(scope, receive)
        self.requests.append(request)
        if self.on_request is not None:
            self.on_request(request)
        if self.authorization not in (None, request.header("authorization")):
            answer = ScriptedAnswer(status=401, body=b'{"error":"Unauthorized"}')
        elif request.method == "POST" and self.is_generation(request.path):
            answer = await self._generate(request, receive)
        else:
            answer = self.answer_control(request)
        await send_answer(answer, send)

    def is_generation(self, path: str) -> bool:
        """Return True if a route takes an entry of the script."""
        return path in (wire.CHAT, wire.GENERATE)

    def answer_control(self, request: RecordedRequest) -> ScriptedAnswer:
        """Answer a request to any other route."""
        if given := self.control_answers.get(request.path):
            return ScriptedAnswer(status=given[0], body=given[1])
        handler = self._control.get((request.method, request.path))
        if handler is None or (request.path == wire.READY and not self.has_ready_route):
            return ScriptedAnswer(status=404, body=b'{"detail":"Not Found"}')
        return handler(request.json)

    async def _generate(self, request: RecordedRequest, receive: Callable[[], Awaitable[Any]]) -> ScriptedAnswer:
        is_probe = str(request.json.get("rid") or request.header("x-smg-routing-key")).startswith(PROBE_SESSION)
        async with self._arrived:
            recorded = self.probes if is_probe else self.generations
            recorded.append(request)
            number = len(recorded)
            reply = self.probe_reply if is_probe else self._take_reply(request)
            self._arrived.notify_all()
        asked = self.read_asked(request)
        if refusal := self.refuse(request, asked):
            return refusal
        call = _InFlight(rid=str(asked.get("rid") or f"scripted-{number}"))
        self._in_flight.append(call)
        watch = asyncio.create_task(self._watch(call, receive))
        try:
            is_aborted = await self._wait(reply, call)
        finally:
            self._in_flight.remove(call)
            watch.cancel()
        return self._answer_generate(request, asked, reply, call.rid, number=number, is_aborted=is_aborted)

    def _take_reply(self, request: RecordedRequest) -> ScriptedReply:
        if self.script:
            return self.script.pop(0)
        return self.default if isinstance(self.default, ScriptedReply) else self.default(request)

    def refuse(self, request: RecordedRequest, asked: JsonObject) -> ScriptedAnswer | None:
        """Return the answer to a call that cannot be served; None for one that can."""
        problem = self.find_problem(asked)
        if problem is None:
            return None
        return ScriptedAnswer(status=400, body=orjson.dumps(wire.build_error(request.path, problem)))

    def find_problem(self, body: JsonObject) -> str | None:
        """Find the reason to refuse a generate call with a 400; None when it is not refused."""
        ids: object = body.get("input_ids")
        if not isinstance(ids, list) or not ids:
            return "neither input_ids nor messages"
        count = len(cast(list[object], ids))
        start: object = body.get("routed_experts_start_len", 0)
        return wire.explain_length(count, self.context_length) or wire.explain_rows_start(start, count)

    async def _watch(self, call: _InFlight, receive: Callable[[], Awaitable[Any]]) -> None:
        """Abort the call of a client that goes away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.hang_ups += 1
        call.aborted.set()

    async def _wait(self, reply: ScriptedReply, call: _InFlight) -> bool:
        """Wait until the reply is due; True if an abort came first."""
        for gate in (self._running, reply.wait):
            if gate is not None and not gate.is_set() and await _wait_either(call.aborted, gate):
                return True
        if self.is_paused:  # paused while it ran: frozen until the engine goes on
            return await _wait_either(call.aborted, self._running)
        return call.aborted.is_set()

    def _answer_generate(
        self,
        request: RecordedRequest,
        asked: JsonObject,
        reply: ScriptedReply,
        rid: str,
        *,
        number: int,
        is_aborted: bool,
    ) -> ScriptedAnswer:
        headers = tuple(reply.headers.items())
        if reply.body is not None or reply.status != 200:
            raw = b'{"error":{"message":"scripted"}}' if reply.body is None else reply.body
            return ScriptedAnswer(status=reply.status, body=raw, headers=headers, fault=reply.fault)
        text = reply.text if reply.text is not None else f"reply {number}"
        sampled = build_sampled(reply, text=text, encode=self._encode, stop_id=self._stop_id, is_aborted=is_aborted)
        meta = build_meta(asked, reply, sampled, rid=rid, version=self.weight_version, moe=self.moe)
        shown = replace(reply, text=text, tool_calls=() if is_aborted else reply.tool_calls)
        value = self.render(request, asked, shown, sampled, meta)
        if reply.edit is not None:
            reply.edit(value)
        stream = self.stream(request, value, reply.chunk_ids)
        if stream is not None:
            return ScriptedAnswer(
                body=stream, headers=(("content-type", "text/event-stream"), *headers), fault=reply.fault
            )
        return ScriptedAnswer(body=dump_reply(value), headers=headers, fault=reply.fault)

    def read_asked(self, request: RecordedRequest) -> JsonObject:
        """Read the call under SGLang's names: ``input_ids``, ``rid``, ``return_routed_experts``, ...

        A chat call without ids is rendered here, as a real engine does when a router dropped them.
        """
        if request.json.get("input_ids") or not request.json.get("messages"):
            return request.json
        text = "".join(str(message.get("content")) for message in request.json["messages"])
        return {**request.json, "input_ids": [16 + byte for byte in text.encode()]}

    def stream(self, request: RecordedRequest, value: JsonObject, chunk_ids: int) -> bytes | None:
        """Return the reply as an event stream, where one was asked for; None for a plain body."""
        if request.path != wire.GENERATE or not request.json.get("stream"):
            return None
        return build_stream(value, chunk_ids, is_incremental=self.is_incremental)

    def render(
        self,
        request: RecordedRequest,
        asked: JsonObject,
        reply: ScriptedReply,
        sampled: ScriptedTokens,
        meta: JsonObject,
    ) -> JsonObject:
        """Render the reply's body, as the route that was called spells it."""
        text = reply.text or ""
        if request.path == wire.GENERATE:
            return wire.build_generate_reply(text=text, ids=sampled.ids, meta_info=meta)
        return build_chat_reply(asked, reply, sampled, meta, text=text)

    # Control routes: what they do to the script's state, and what SGLang answers.

    def _on_abort(self, body: JsonObject) -> ScriptedAnswer:
        self.abort(None if body.get("abort_all") else str(body.get("rid", "")))
        return ScriptedAnswer()

    def _on_pause(self, body: JsonObject) -> ScriptedAnswer:
        self.pause(str(body.get("mode", "abort")))
        return _answer_json(wire.build_pause_reply("Generation paused."))

    def _on_continue(self, body: JsonObject) -> ScriptedAnswer:
        self.resume()
        return _answer_json(wire.build_pause_reply("Generation continued."))

    def _on_flush(self, body: JsonObject) -> ScriptedAnswer:
        is_idle = not self._in_flight or self.is_paused
        return ScriptedAnswer(status=200 if is_idle else 400, body=b"Cache flushed." if is_idle else b"Not idle.")

    def _on_update(self, body: JsonObject) -> ScriptedAnswer:
        self._set_version(body.get("weight_version"), aborts=bool(body.get("abort_all_requests", False)))
        return _answer_json(wire.build_update_reply("Succeeded to update model weights."))

    def _on_version(self, body: JsonObject) -> ScriptedAnswer:
        self._set_version(body.get("new_version"), aborts=bool(body.get("abort_all_requests", True)))
        return _answer_json(wire.build_update_reply("Succeeded to update the weight version."))

    def _set_version(self, label: object, *, aborts: bool) -> None:
        if aborts:
            self.abort()
        if label is not None:
            self.weight_version = str(label)

    def _on_memory(self, body: JsonObject) -> ScriptedAnswer:
        return ScriptedAnswer(status=400 if self._in_flight else 200)

    def _on_info(self, body: JsonObject) -> ScriptedAnswer:
        info = wire.build_model_info(
            model_path="scripted", weight_version=self.weight_version, context_length=self.context_length
        )
        return _answer_json(info)

    def _on_ready(self, body: JsonObject) -> ScriptedAnswer:
        return ScriptedAnswer(status=503 if self.is_paused else 200)

    def _on_models(self, body: JsonObject) -> ScriptedAnswer:
        return _answer_json(wire.build_model_list("scripted"))


def _answer_json(value: JsonObject) -> ScriptedAnswer:
    return ScriptedAnswer(body=orjson.dumps(value))


async def _wait_either(first: asyncio.Event, second: asyncio.Event) -> bool:
    """Wait for one of both; whether the first is set."""
    tasks = [asyncio.create_task(event.wait()) for event in (first, second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    return first.is_set()


@contextmanager
def unreachable_url() -> Generator[str]:
    """Yield a URL whose port refuses connections and stays taken until the block ends."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # bound and not listening
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"
