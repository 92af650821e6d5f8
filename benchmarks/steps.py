"""The pure parts of a turn, each as steps that can be done one after the other and measured.

``PARTS[name](talk, count)`` prepares everything that is not the part's own and gives ``count`` steps. The last rows
are the floor: what would be left if only the bytes themselves were read and copied.
"""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_bytes
from typing import TypeAlias

import orjson

from benchmarks.conversation import SHAPE, Conversation, parse
from turnkeeper.access import Grant, Right, authorize
from turnkeeper.bench.rows import build_rows
from turnkeeper.channels import PackedIds
from turnkeeper.channels.routing import Patch, RoutingRows, RowsRequest, plan_rows, take_patch
from turnkeeper.core import Completion, fold
from turnkeeper.core.event import ReplyDelivered, SessionOpened, TurnCommitted
from turnkeeper.core.tokens import join_ids
from turnkeeper.dialects import build_reply
from turnkeeper.engines import GenerateRequest, build_completion, check_generation, choose_versions
from turnkeeper.engines.reply import ReplyBody
from turnkeeper.engines.sglang.chat import parse_chat_reply, render_chat_body
from turnkeeper.http.headers import list_session_keys
from turnkeeper.ids import SessionId, TurnId
from turnkeeper.jsontypes import encode_json
from turnkeeper.samples import CollectOptions, collect, load_hooks, view_session
from turnkeeper.service.sessions import KeyRing
from turnkeeper.service.turns import resolve_request
from turnkeeper.service.turns.prompt import render_pending
from turnkeeper.store import Durability, SessionOpening
from turnkeeper.store.database import open_database
from turnkeeper.store.folder import ROWS
from turnkeeper.store.jobs import AppendEvents
from turnkeeper.store.rowfile import RowFiles
from turnkeeper.store.tail import SessionTail, Tail
from turnkeeper.store.writer import SlotWriter, Ticket

Step: TypeAlias = Callable[[], object]
Prepare: TypeAlias = Callable[[Conversation, int], list[Step]]

_ADMIN_KEY = "bench"
_SESSION_ID = SessionId("0" * 32)
_CHUNK_BYTES = 1 << 18
"""As much as comes from a socket at a time."""


def tell_anybody(_: Conversation, count: int) -> list[Step]:
    """See that a server without keys takes its caller for the admin, and let the request pass."""
    return [_admit([], {"authorization": "Bearer unused"})] * count


def tell_agent(_: Conversation, count: int) -> list[Step]:
    """Read the key of a request, find out that it is the session's, and let the request pass."""
    return [_admit([_ADMIN_KEY], {"x-api-key": "left-over-from-elsewhere"})] * count


def _admit(admin_keys: list[str], headers: dict[str, str]) -> Step:
    ring = KeyRing(admin_keys, token_bytes)
    issued = ring.issue(Grant(session_id=_SESSION_ID, scopes=frozenset({Right.TURN})))
    sent = {"authorization": f"Bearer {issued.text}", **headers}
    kept = {_SESSION_ID: issued.kept}

    def step() -> None:
        authorize(Right.TURN, ring.identify(list_session_keys(sent), kept.get), _SESSION_ID)

    return step


def read_body(talk: Conversation, count: int) -> list[Step]:
    """Parse the agent's request and check its fields."""
    return [partial(parse, talk.write_body()) for _ in range(count)]


def look_up(talk: Conversation, count: int) -> list[Step]:
    """Digest every message, find the turn that the request goes on from, begin."""
    session = talk.session

    def step(body: bytes) -> Step:
        call = parse(body)

        def find() -> None:
            resolved = resolve_request(call.request, {}, session)
            session.abandon(session.begin(resolved.request, at=0.0, query=resolved.query), at=0.0)

        return find

    return [step(talk.write_body()) for _ in range(count)]


def render_suffix(talk: Conversation, count: int) -> list[Step]:
    """Render and tokenize what the turn adds."""
    return [partial(render_pending, talk.renderer, talk.begin(talk.write_body()).pending) for _ in range(count)]


def write_request(talk: Conversation, count: int) -> list[Step]:
    """Join the prompt's ids, decide what the engine is asked for, and write its request."""

    def step(body: bytes) -> Step:
        begun = talk.begin(body)
        prompt = render_pending(talk.renderer, begun.pending)
        return lambda: render_chat_body(begun.plan(talk.renderer, prompt).engine_request)

    return [step(talk.write_body()) for _ in range(count)]


def read_reply(talk: Conversation, count: int) -> list[Step]:
    """Parse the engine's reply and check its numbers."""
    begun = talk.begin(talk.write_body())
    request = begun.plan(talk.renderer, render_pending(talk.renderer, begun.pending)).engine_request
    return [partial(_complete, talk.engine.answer(len(request.prompt_ids)), request) for _ in range(count)]


def _complete(reply: bytes, request: GenerateRequest) -> Completion:
    generation = parse_chat_reply(ReplyBody.read(reply), "http://mock")
    check_generation(generation, request)
    versions = choose_versions(generation, is_abort_mode=True, started_version="1", is_disturbed=False)
    return build_completion(generation, prompt_tokens=len(request.prompt_ids), versions=versions)


def commit(talk: Conversation, count: int) -> list[Step]:
    """Record the turn, each time in a session of its own."""

    def step(body: bytes) -> Step:
        session = fold(talk.session.events)
        begun = talk.begin(body, session)
        prompt = render_pending(talk.renderer, begun.pending)
        request = begun.plan(talk.renderer, prompt).engine_request
        completion = _complete(talk.engine.answer(len(request.prompt_ids)), request)

        def record() -> None:
            turn = session.commit(begun.pending, prompt=prompt, completion=completion, at=0.0)
            session.mark_delivered(turn.id, at=0.0)

        return record

    return [step(talk.write_body()) for _ in range(count)]


def store(talk: Conversation, count: int) -> list[Step]:
    """Store the turn with the delivery of the one before, as one group: encoded, its rows written, committed."""
    return _store(talk, count, rows=None)


def store_rows(talk: Conversation, count: int) -> list[Step]:
    """Store the turn with the routing rows that it adds."""
    patch = _take_rows(talk, 1, is_whole=False)[0]()
    assert isinstance(patch, Patch)
    return _store(talk, count, rows=patch.rows)


def _store(talk: Conversation, count: int, *, rows: RoutingRows | None) -> list[Step]:
    folder = Path(tempfile.mkdtemp())
    (folder / ROWS).mkdir()
    connection, _ = open_database(folder, Durability.PROCESS)
    writer = SlotWriter(connection, RowFiles(folder / ROWS), row_durability=Durability.PROCESS)
    opened = talk.session.events[0]
    assert isinstance(opened, SessionOpened)
    tail = SessionTail(_SESSION_ID, 1, Tail(changed_at=0.0))
    writer.write([Ticket(AppendEvents(tail, [SessionOpening(event=opened, ttl_s=60.0)]), None)])
    last = talk.session.forest.turns[-1]
    completion = replace(last.completion, channels={} if rows is None else {"routed_experts": rows})

    def close() -> None:
        writer.close()
        shutil.rmtree(folder)

    weakref.finalize(tail, close)

    def step(number: int) -> Step:
        turn = TurnCommitted(at=1.0, turn=replace(last, id=TurnId(number), completion=completion))
        delivered = ReplyDelivered(at=1.0, turn_id=TurnId(number))
        jobs = [AppendEvents(tail, [delivered], is_awaited=False), AppendEvents(tail, [turn])]
        return lambda: writer.write([Ticket(job, None) for job in jobs])

    return [step(number) for number in range(count)]


def write_answer(talk: Conversation, count: int) -> list[Step]:
    """Write the agent's reply."""
    call = parse(talk.write_body())
    completion = talk.session.forest.turns[-1].completion
    return [lambda: call.render_reply(build_reply(completion, talk.tokens)) for _ in range(count)]


def collect_samples(talk: Conversation, count: int) -> list[Step]:
    """Make the session's sample and its bytes; without decoding its text and comparing its messages."""
    options = CollectOptions(hooks=load_hooks())

    def step() -> int:
        view = view_session(talk.session)
        ledger = talk.session.ledger
        found = collect(view, session_metadata={}, session_ledger=ledger, decode=lambda ids: "", options=options)
        return sum(map(len, found.encode().iter_chunks()))

    return [step] * count


def take_increment(talk: Conversation, count: int) -> list[Step]:
    """Decode the routing rows that a turn adds."""
    return _take_rows(talk, count, is_whole=False)


def take_whole(talk: Conversation, count: int) -> list[Step]:
    """Decode the routing rows of the whole path, keep the new ones, compare the others with those held."""
    return _take_rows(talk, count, is_whole=True)


def _take_rows(talk: Conversation, count: int, *, is_whole: bool) -> list[Step]:
    pending = talk.begin(talk.write_body()).pending
    held_tokens = len(pending.parent_path_ids)
    prompt_tokens = held_tokens + len(render_pending(talk.renderer, pending).ids)
    asked = plan_rows(parent_tokens=held_tokens, common_prefix=held_tokens, use_addition_r3=not is_whole)
    first = asked.payload_start
    payload = b"".join(build_rows(SHAPE, seed=1).cut(first, prompt_tokens - first))
    held: list[RoutingRows] = []
    if is_whole:
        everything = plan_rows(parent_tokens=0, common_prefix=0, use_addition_r3=True)
        held = [_take(payload, everything, prompt_tokens, []).rows.cut(0, asked.held_rows)]
    return [partial(_take, payload, asked, prompt_tokens, held)] * count


def _take(payload: bytes, asked: RowsRequest, prompt_tokens: int, held: list[RoutingRows]) -> Patch:
    packed, text = PackedIds(), memoryview(payload)
    for start in range(0, len(text), _CHUNK_BYTES):
        packed.feed(text[start : start + _CHUNK_BYTES])
    packed.finish()
    return take_patch(packed, request=asked, shape=SHAPE, prompt_tokens=prompt_tokens, completion_tokens=1, held=held)


def parse_bare(talk: Conversation, count: int) -> list[Step]:
    """Parse the agent's request, and nothing else."""
    return [partial(orjson.loads, talk.write_body()) for _ in range(count)]


def parse_bare_reply(talk: Conversation, count: int) -> list[Step]:
    """Parse the engine's reply, and nothing else."""
    return [partial(orjson.loads, talk.engine.answer(talk.tokens)) for _ in range(count)]


def copy_ids(talk: Conversation, count: int) -> list[Step]:
    """Copy the ids of the path, and their text."""
    ids = talk.session.forest.path_ids(talk.session.forest.turns[-1].id)
    text = encode_json(ids)
    return [lambda: (join_ids([ids]), b"".join([text, b","]))] * count


PARTS: Mapping[str, Prepare] = {
    "tell who calls, no keys": tell_anybody,
    "tell who calls, keys": tell_agent,
    "read the body": read_body,
    "look up the history": look_up,
    "render and tokenize the suffix": render_suffix,
    "write the request": write_request,
    "read the reply": read_reply,
    "commit": commit,
    "store": store,
    "store with rows": store_rows,
    "write the answer": write_answer,
    "take rows, increment": take_increment,
    "take rows, whole": take_whole,
    "collect samples": collect_samples,
    "floor: parse the body": parse_bare,
    "floor: parse the reply": parse_bare_reply,
    "floor: copy the ids": copy_ids,
}
"""By name, in the order of a turn."""
