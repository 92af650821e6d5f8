"""The routes that are served beside turns, one handler each: sessions, samples, probes, engines, pass-through.

A handler parses, calls the backend and renders; what it raises becomes a response in one place.
"""

import asyncio
from urllib.parse import quote

from turnkeeper.access import refuse_reward
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.engines import RelayRequest
from turnkeeper.headers import JSON_HEADERS, RECEIPT, REQUEST_ID
from turnkeeper.http.backend import Backend
from turnkeeper.http.bodies import parse_forward, parse_pause_request, parse_receipt, parse_samples_request
from turnkeeper.http.exchange import Exchange
from turnkeeper.http.queries import parse_session_flags, parse_session_query
from turnkeeper.http.reading import read_control_object, receive_turn_body
from turnkeeper.ids import SessionId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.metrics.metrics import CONTENT_TYPE
from turnkeeper.passthrough import find_passage
from turnkeeper.service.sessions import parse_new_session

SAMPLES_HEADERS = {"content-type": "application/octet-stream"}


class Routes:
    """The handlers over one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._sessions = backend.sessions
        self._options = backend.options

    async def create_session(self, exchange: Exchange) -> None:
        """Answer ``POST /sessions``."""
        new = parse_new_session(await self._read_object(exchange))
        if new.session_id is not None:  # a server that was killed behind the opening may not have answered it
            await self._sessions.recall([new.session_id])
        created = self._sessions.create(new)
        await self._sessions.settle(created.id)
        await _send_json(exchange, {"session_id": created.id} | ({"key": created.key} if created.key else {}))

    async def list_sessions(self, exchange: Exchange) -> None:
        """Answer ``GET /sessions``."""
        page = await self._sessions.list_sessions(parse_session_query(exchange.query))
        await _send_json(exchange, {**page, "worker": self._backend.health.place.to_json()})

    async def get_session(self, exchange: Exchange) -> None:
        """Answer ``GET /sessions/{id}``; ``HEAD`` tells whether there is such a session."""
        session_id = exchange.path_params["session_id"]
        if exchange.method == "HEAD":
            self._sessions.get_session_id(session_id)
            await exchange.respond(200)
            return
        flags = parse_session_flags(exchange.query)
        body = await self._sessions.describe(
            session_id,
            with_rows=flags["rows"],
            with_branches=flags["branches"],
            is_admin=exchange.caller.is_admin,
        )
        await exchange.respond(200, body, JSON_HEADERS)

    async def delete_session(self, exchange: Exchange) -> None:
        """Answer ``DELETE /sessions/{id}``."""
        session_id = exchange.path_params["session_id"]
        self._sessions.delete(session_id)
        await self._sessions.settle(SessionId(session_id))
        await exchange.respond(204)

    async def collect_samples(self, exchange: Exchange) -> None:
        """Answer ``POST /sessions/{id}/samples``."""
        session_id = self._sessions.get_session_id(exchange.path_params["session_id"])  # before the body is read
        request = parse_samples_request(await self._read_object(exchange))
        if request.has_reward:
            refuse_reward(exchange.caller)
        payload = await self._sessions.collect(
            session_id,
            max_seq_len=request.max_seq_len,
            agent_metadata=request.metadata,
            rewards=request.rewards,
            since=request.since,
        )
        receipt = {} if payload.receipt is None else {RECEIPT: payload.receipt}
        await exchange.start(200, {**SAMPLES_HEADERS, "content-length": str(payload.size_bytes), **receipt}.items())
        for chunk in payload.iter_chunks():
            await exchange.write(chunk)
        await exchange.finish()

    async def acknowledge_samples(self, exchange: Exchange) -> None:
        """Answer ``POST /sessions/{id}/ack``."""
        session_id = self._sessions.get_session_id(exchange.path_params["session_id"])  # before the body is read
        receipt = await self._sessions.acknowledge(session_id, parse_receipt(await self._read_object(exchange)))
        await _send_json(exchange, receipt.to_json())

    async def relay(self, exchange: Exchange) -> None:
        """Pass any other route of a session through to its engine."""
        session_id = self._sessions.get_session_id(exchange.path_params["session_id"])
        path = self._find_passage(exchange)  # before the body is read
        others = (pair for pair in exchange.header_items if pair[0] != REQUEST_ID)
        call = RelayRequest(
            method=exchange.method,
            path=quote(f"/{path}"),
            query=exchange.query,
            headers=(*others, (REQUEST_ID, exchange.request_id)),
            body=await receive_turn_body(exchange, self._options),
            session_id=session_id,
        )
        with self._backend.requests.count():
            reply = await self._backend.relay.send(session_id, call, is_admin=exchange.caller.is_admin)
        await exchange.respond(reply.status, reply.body, dict(reply.headers))

    def _find_passage(self, exchange: Exchange) -> str:
        options, path = self._options, exchange.path_params["path"]
        return find_passage(
            exchange.method, path, opened=options.pass_through, allow_unrecorded=options.allow_unrecorded
        )

    async def probe(self, exchange: Exchange) -> None:
        """Answer ``GET`` and ``HEAD`` of the paths that clients probe before they begin."""
        self._check_session(exchange)
        await _send_json(exchange, {"status": "ok"})

    async def health(self, exchange: Exchange) -> None:
        """Answer ``GET /health``: with a 503 while the server drains, so that load balancers send nothing new."""
        status = 503 if self._backend.health.is_draining else 200
        await _send_json(exchange, self._backend.health.describe(is_admin=exchange.caller.is_admin), status)

    async def ready(self, exchange: Exchange) -> None:
        """Answer ``GET /ready``: with a 503 while a turn that is sent now cannot be served."""
        readiness = self._backend.health.decide_readiness()
        await _send_json(exchange, readiness.to_json(), 200 if readiness.reason is None else 503)

    async def metrics(self, exchange: Exchange) -> None:
        """Answer ``GET /metrics``; a thread writes them, so that turns go on meanwhile."""
        self._backend.metrics.refresh()
        body = await asyncio.to_thread(self._backend.metrics.encode)
        await exchange.respond(200, body, {"content-type": CONTENT_TYPE})

    async def pause_engines(self, exchange: Exchange) -> None:
        """Answer ``POST /engine/pause``."""
        request = parse_pause_request(await self._read_object(exchange))
        await _send_json(exchange, await self._backend.control.pause(request.mode, forward=request.forward))

    async def continue_engines(self, exchange: Exchange) -> None:
        """Answer ``POST /engine/continue``."""
        forward = parse_forward(await self._read_object(exchange))
        await _send_json(exchange, await self._backend.control.resume(forward=forward))

    async def abort_turns(self, exchange: Exchange) -> None:
        """Answer ``POST /engine/abort``."""
        await _send_json(exchange, {"sessions": self._sessions.abort_all()})

    async def _read_object(self, exchange: Exchange) -> JsonObject:
        return await read_control_object(exchange, self._options)

    def _check_session(self, exchange: Exchange) -> None:
        if "session_id" in exchange.path_params:
            self._sessions.get_session_id(exchange.path_params["session_id"])


async def _send_json(exchange: Exchange, value: JsonObject, status: int = 200) -> None:
    await exchange.respond(status, encode_json(value), JSON_HEADERS)
