"""A conversation whose next turn has not begun, held with the session service over a mock, without sockets.

Every turn of the history goes through `turnkeeper.service.turns`, as in a server. The parts of the next turn are then
measured one by one, over the session that the service holds.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from turnkeeper.bench.load.text import TokenRuler
from turnkeeper.bench.load.workload import MODELS, SHORT, TOOLS, Speaker, build_replies
from turnkeeper.bench.mock import MockEngine, build_canned
from turnkeeper.bench.rows import build_rows
from turnkeeper.config.load import load
from turnkeeper.config.resolve import resolve
from turnkeeper.core import PendingTurn, Prompt, Session
from turnkeeper.dialects import CHAT, AgentCall, ParseContext, parse_object
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
from turnkeeper.engines.reply import ReplyBody
from turnkeeper.engines.sglang.chat import parse_chat_reply
from turnkeeper.ids import SessionId
from turnkeeper.jsontypes import Message, encode_json
from turnkeeper.rendering import Renderer
from turnkeeper.server.base import Dependencies
from turnkeeper.server.build import ServerParts, join_server
from turnkeeper.service.sessions import NewSession
from turnkeeper.service.turns import GenerationPlan, ResolvedRequest, plan_generation, resolve_request

SHAPE = MODELS["Qwen3-30B-A3B"]
CONFIG = resolve(load({"hf_checkpoint": "bench", "backend_url": "http://mock"}))
_HISTORY_SEED, _NEXT_SEED = 1, 2
_REPLIES = 8


class MockedEngine:
    """Implements `turnkeeper.engines.Engine` with the replies of the bench's mock, without a connection."""

    def __init__(self, mock: MockEngine) -> None:
        self.mock = mock

    def answer(self, prompt_tokens: int) -> bytes:
        """Write the reply to a prompt of that length, as the engine spells it."""
        body = encode_json({"bench_prompt_tokens": prompt_tokens})
        return b"".join(self.mock.answer(b"/v1/chat/completions", body))

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        """Answer with the next canned reply."""
        return parse_chat_reply(ReplyBody.read(self.answer(len(request.prompt_ids))), "http://mock")

    async def relay(self, call: RelayRequest) -> RelayReply:
        """Answer nothing: no turn relays a call."""
        return RelayReply(status=404, headers=(), body=b"")

    async def abort(self, rid: str) -> None:
        """Do nothing: a canned reply takes no time."""

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        """Report one engine that serves."""
        return (EngineStatus(url="http://mock", state=EngineState.SERVING, weight_version="1"),)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class Conversation:
    """A session that is at most a turn longer than asked for, and requests that go on from it.

    At every length of the history the requests add equally much.
    """

    def __init__(self, tokens: int, renderer: Renderer, engine: MockedEngine, session: Session) -> None:
        self.tokens = tokens
        self.renderer = renderer
        self.engine = engine
        self.session = session
        self._messages = session.forest.path_messages(session.forest.turns[-1].id)
        self._speaker = Speaker(SHORT, TokenRuler(renderer.tokenizer), _NEXT_SEED)

    @classmethod
    def hold(cls, renderer: Renderer, tokens: int) -> "Conversation":
        """Let an agent talk with a session service until the path has so many tokens."""
        return asyncio.run(_hold(renderer, tokens))

    def write_body(self) -> bytes:
        """Write the next request, each time with another result of the tool."""
        return _write([*self._messages, *self._speaker.answer(self._messages[-1])])

    def begin(self, body: bytes, session: Session | None = None) -> "BegunTurn":
        """Begin the turn that a body asks for."""
        session = session or self.session
        resolved = resolve_request(parse(body).request, {}, session)
        return BegunTurn(session, resolved, session.begin(resolved.request, at=0.0, query=resolved.query))


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """A turn whose prompt has not been rendered."""

    session: Session
    resolved: ResolvedRequest
    pending: PendingTurn

    def plan(self, renderer: Renderer, prompt: Prompt) -> GenerationPlan:
        """Decide what the engine is asked for, as the service does."""
        return plan_generation(
            self.session,
            self.pending,
            self.resolved,
            prompt,
            messages=renderer.place(self.pending.messages),
            session_id=SessionId("bench"),
            rid="bench",
            limit_tokens=None,
            trace=self.resolved.request.trace,
            config=CONFIG,
        )


def parse(body: bytes) -> AgentCall:
    """Read a request."""
    return CHAT.parse_request(parse_object(body), ParseContext(decode_token=str))


async def _hold(renderer: Renderer, tokens: int) -> Conversation:
    canned = build_replies(renderer.tokenizer, SHORT, _HISTORY_SEED, _REPLIES)
    engine = MockedEngine(MockEngine(replies=list(map(build_canned, canned)), rows=build_rows(SHAPE, _HISTORY_SEED)))
    parts = join_server(
        CONFIG,
        renderer=renderer,
        checkpoint_config={},
        client=EngineClient(),
        connect=lambda wrap: wrap("http://mock", engine),
        dependencies=Dependencies.real(),
    )
    session_id = parts.backend.sessions.create(NewSession()).id
    (session,) = (entry.session for entry in parts.registry)
    speaker = Speaker(SHORT, TokenRuler(renderer.tokenizer), _HISTORY_SEED)
    messages = speaker.open()
    while await _take_turn(parts, session_id, messages) < tokens:
        messages = [*session.forest.path_messages(session.forest.turns[-1].id)]
        messages += speaker.answer(messages[-1])
    return Conversation(tokens, renderer, engine, session)


async def _take_turn(parts: ServerParts, session_id: SessionId, messages: Sequence[Message]) -> int:
    """Ask and wait for the reply; how many tokens the path then has."""
    call = parse(_write(messages))
    response_id = CHAT.build_response_id(parts.backend.token_bytes(16).hex())
    waiter = await parts.backend.sessions.begin_turn(session_id, call.request, response_id)
    waiter.expect(call.render_reply)
    await waiter.wait()
    waiter.close(was_written=True)
    (entry,) = parts.registry
    return entry.session.forest.turns[-1].path_tokens


def _write(messages: Sequence[Message]) -> bytes:
    return encode_json({"messages": messages, "model": "bench", "tools": list(TOOLS), "max_tokens": 4096})
