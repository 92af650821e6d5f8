"""A conversation in the middle, without a server: a session of so many tokens whose next turn has not begun.

It came about as in a server: request read, history looked up, prompt rendered, the mock's reply read, turn recorded.
"""

from turnkeeper.bench.mock import MockEngine, build_canned
from turnkeeper.bench.rows import build_rows
from turnkeeper.bench.text import TokenRuler
from turnkeeper.bench.workload import MODELS, SHORT, TOOLS, Speaker, build_replies
from turnkeeper.core import Completion, Linear, PendingTurn, Session, Turn
from turnkeeper.core.tokens import TokenIds
from turnkeeper.dialects import AgentCall, ParseContext
from turnkeeper.dialects.chat import CHAT
from turnkeeper.dialects.jsonbody import parse_object
from turnkeeper.engines import GenerateRequest, build_completion, check_generation, choose_versions
from turnkeeper.engines.reply import ReplyBody
from turnkeeper.engines.sglang.chat import parse_chat_reply
from turnkeeper.jsontypes import JsonObject, Message, encode_json
from turnkeeper.rendering import Renderer
from turnkeeper.service.prompt import join_prompt, render_pending
from turnkeeper.service.request import ResolvedRequest, resolve_request

SHAPE = MODELS["Qwen3-30B-A3B"]
_HISTORY_SEED, _NEXT_SEED = 1, 2
_REPLIES = 8


class Scene:
    """A session, and what may come next: at all lengths of the history the same."""

    def __init__(self, renderer: Renderer, tokens: int) -> None:
        """Talk until the path has so many tokens; it is at most a turn longer."""
        tokenizer = renderer.tokenizer
        ruler = TokenRuler(tokenizer)
        canned = [build_canned(reply) for reply in build_replies(tokenizer, SHORT, _HISTORY_SEED, _REPLIES)]
        self.tokens = tokens
        self.renderer = renderer
        self.session = Session.open(Linear())
        self._mock = MockEngine(replies=canned, rows=build_rows(SHAPE, _HISTORY_SEED))
        self._speaker = Speaker(SHORT, ruler, _HISTORY_SEED)
        self._messages: list[Message] = self._speaker.open()
        while self._take_turn().path_tokens < tokens:
            self._messages += self._speaker.answer(self._messages[-1])
        self._speaker = Speaker(SHORT, ruler, _NEXT_SEED)

    def write_body(self) -> bytes:
        """The next request, each time with another result of the tool."""
        return self._write([*self._messages, *self._speaker.answer(self._messages[-1])])

    def begin(self, body: bytes, session: Session | None = None) -> PendingTurn:
        """Begin the turn that a body asks for."""
        session = session or self.session
        resolved = resolve(parse(body), session)
        return session.begin(resolved.request, at=0.0, query=resolved.query)

    def answer(self, prompt_tokens: int, fields: JsonObject | None = None) -> bytes:
        """What the engine answers to a prompt of that length."""
        body = encode_json({"bench_prompt_tokens": prompt_tokens, **(fields or {})})
        return b"".join(self._mock.answer(b"/v1/chat/completions", body))

    def _take_turn(self) -> Turn:
        pending = self.begin(self._write(self._messages))
        prompt = render_pending(self.renderer, pending)
        request = build_request(pending, join_prompt(pending, prompt))
        completion = complete(self.answer(len(request.prompt_ids)), request)
        turn = self.session.commit(pending, prompt=prompt, completion=completion, at=0.0)
        self.session.mark_delivered(turn.id, at=0.0)
        self._messages.append(completion.message)
        return turn

    @staticmethod
    def _write(messages: list[Message]) -> bytes:
        return encode_json({"messages": messages, "model": "bench", "tools": list(TOOLS), "max_tokens": 4096})


def parse(body: bytes) -> AgentCall:
    """Read a request."""
    return CHAT.parse_request(parse_object(body), ParseContext(decode_token=str))


def resolve(call: AgentCall, session: Session) -> ResolvedRequest:
    """Find the turn that a request goes on from, and work out the request's digest."""
    return resolve_request(call.request, {}, session)


def build_request(pending: PendingTurn, prompt_ids: TokenIds) -> GenerateRequest:
    """The engine call of a turn."""
    request = pending.request
    return GenerateRequest(
        rid="bench",
        session_id="bench",
        prompt_ids=prompt_ids,
        messages=pending.messages,
        tools=request.tools,
        sampling=request.sampling,
    )


def complete(reply: bytes, request: GenerateRequest) -> Completion:
    """Read and check a reply."""
    generation = parse_chat_reply(ReplyBody.read(reply), "bench")
    check_generation(generation, request)
    versions = choose_versions(generation, is_abort_mode=True, started_version="1", is_disturbed=False)
    return build_completion(generation, prompt_tokens=len(request.prompt_ids), versions=versions)
