"""The hot route: an agent's turn, in any dialect, streamed or not.

::

    body -> dialect -> sessions.begin_turn -> (engine) -> reply rendered -> turn recorded -> bytes written -> confirmed

Everything that can be refused without the engine is refused before a status line is sent. A stream's status line is
held back for ``--stream-header-delay``: whatever fails before has its real status; heartbeats follow after it.
"""

import contextlib
from dataclasses import dataclass, replace
from functools import partial

from turnkeeper.core.tokens import freeze_ids
from turnkeeper.core.turn import TurnRequest
from turnkeeper.dialects import AgentCall, Dialect, ParseContext, ReplyStream, StreamStart
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.dialects.repetition import ReadRequest
from turnkeeper.errors import AuthenticationError, SessionNotFoundError
from turnkeeper.headers import JSON_HEADERS, STREAM_HEADERS
from turnkeeper.http.backend import Backend
from turnkeeper.http.exchange import Exchange
from turnkeeper.http.failure import convert_error, tell_caller
from turnkeeper.http.headers import read_marks, select_harness_headers, select_trace_headers
from turnkeeper.http.reading import read_call
from turnkeeper.logs import add_ids
from turnkeeper.service.service import SessionService
from turnkeeper.service.turns import ClientGoneError, Waiter

_RESPONSE_ID_BYTES = 16
"""The random bytes of the id of a response."""


@dataclass(frozen=True, slots=True)
class TurnHandler:
    """Takes the turns of one dialect, with the session in the path or behind the key."""

    backend: Backend
    dialect: Dialect

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request."""
        session_id = find_session_id(exchange, self.backend.sessions)
        add_ids(session=session_id)
        read = await read_call(
            exchange,
            self.backend.options,
            self.dialect,
            partial(build_context, self.backend, session_id),
            partial(self.backend.sessions.find_known, session_id),
        )
        call = read.call
        with self.backend.requests.count():  # a place is taken once the body is there, not while it comes
            exchange.watch(self.backend.spawn)
            response_id = self.dialect.build_response_id(self.backend.token_bytes(_RESPONSE_ID_BYTES).hex())
            request = self._complete(read, exchange)
            waiter = await self.backend.sessions.begin_turn(session_id, request, response_id, read.query, read.body)
            exchange.call_when_gone(waiter.hang_up)
            answer = self._stream if call.wants_stream else self._reply
            try:
                await answer(exchange, call, waiter)
            except ClientGoneError:
                waiter.hang_up()  # a write may meet the closed connection before the watch does
                raise

    @staticmethod
    def _complete(read: ReadRequest, exchange: Exchange) -> TurnRequest:
        """Add to the request of the dialect what HTTP headers say of it."""
        return replace(
            read.call.request,
            messages=read.messages,
            headers=select_harness_headers(exchange.headers),
            trace=select_trace_headers(exchange.headers, exchange.request_id),
            retry=read_marks(exchange.headers),
            wants_text=read.call.wants_stream,
        )

    async def _reply(self, exchange: Exchange, call: AgentCall, waiter: Waiter) -> None:
        waiter.expect(call.render_reply)
        waiter.close(was_written=await exchange.respond(200, await waiter.wait(), JSON_HEADERS))

    async def _stream(self, exchange: Exchange, call: AgentCall, waiter: Waiter) -> None:
        start = StreamStart(
            response_id=waiter.response_id, created_s=waiter.created_s, prompt_tokens=waiter.prompt_tokens
        )
        stream = call.open_stream(start)
        waiter.expect(stream.finish)
        options = self.backend.options
        patience_s = options.stream_header_delay_s
        while not waiter.is_over:
            text = await waiter.wait_for_text(patience_s)
            if waiter.is_over:
                break  # the rest was rendered with the reply, text that was not yet handed on included
            await _start_stream(exchange)
            events = stream.extend(reasoning=text.reasoning, content=text.content) if text else stream.heartbeat()
            await exchange.write(events)
            patience_s = options.stream_heartbeat_s
        await self._finish(exchange, stream, waiter)

    async def _finish(self, exchange: Exchange, stream: ReplyStream, waiter: Waiter) -> None:
        try:
            body = await waiter.wait()
        except Exception as error:
            if not exchange.is_started or isinstance(error, ClientGoneError):
                raise
            explained = convert_error(error)
            self.backend.report_failure(exchange, explained, self.dialect)
            await exchange.finish(stream.fail(tell_caller(explained, exchange)))
            return
        with contextlib.suppress(ClientGoneError):  # the last part meets the closed connection as well
            await _start_stream(exchange)
        waiter.close(was_written=await exchange.finish(body))


async def _start_stream(exchange: Exchange) -> None:
    """Send status and headers of a stream, unless they were sent before."""
    if not exchange.is_started:
        await exchange.start(200, STREAM_HEADERS.items())


def build_context(backend: Backend, session_id: str) -> ParseContext:
    """Gather what a dialect may know beyond the body."""
    return ParseContext(
        decode_token=lambda token_id: backend.tokenizer.decode(freeze_ids([token_id])),
        spell_token=backend.tokenizer.spell,
        forward_fields=backend.options.forward_fields,
        on_image=backend.options.on_image,
        find_reply=backend.sessions.find_replies(session_id),
    )


def find_session_id(exchange: Exchange, sessions: SessionService) -> str:
    """Find the session of a request: by its path, else by the session that its key opens, else by an id sent as a key.

    Raises:
        SessionNotFoundError: the path names no session, and a turn would not open it.
        AuthenticationError: no key, or no session behind it.
    """
    session_id = exchange.path_params.get("session_id")
    if session_id is not None:
        return sessions.get_turn_session_id(session_id)  # before the body is read
    if exchange.caller.grants:
        return exchange.caller.grants[0].session_id
    keys = exchange.caller.other_keys
    for key in keys:
        with contextlib.suppress(SessionNotFoundError):
            return sessions.get_turn_session_id(key)
    raise AuthenticationError(
        "the key names no session" if keys else "a key that names a session is missing",
        hint="send the session id as Authorization: Bearer or x-api-key",
    )


@dataclass(frozen=True, slots=True)
class TokenCountHandler:
    """Counts the tokens of the prompt that a turn would have, and changes nothing."""

    backend: Backend
    dialect: Dialect

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request."""
        session_id = find_session_id(exchange, self.backend.sessions)
        read = await read_call(
            exchange,
            self.backend.options,
            self.dialect,
            partial(build_context, self.backend, session_id),
            partial(self.backend.sessions.find_known, session_id),
        )
        request = replace(read.call.request, messages=read.messages)
        count = await self.backend.sessions.count_tokens(session_id, request, read.query)
        await exchange.respond(200, encode_json({"input_tokens": count}), JSON_HEADERS)
