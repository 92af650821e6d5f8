"""What tests of the store share: random events of every form, and the spelling by which two values are compared."""

import contextlib
import dataclasses
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from channelkit import channels_of
from sessionkit import ask, assistant, completion_of, prompt_of, user
from turnkeeper.channels import ItemRun
from turnkeeper.channels.routing import RoutingRows
from turnkeeper.core import (
    Cause,
    Completion,
    DropReason,
    Explanation,
    FinishReason,
    Linear,
    PendingTurn,
    Prompt,
    Session,
    Tree,
    Turn,
    TurnRequest,
    VersionSpan,
)
from turnkeeper.core.event import ReplyDelivered, SessionClosed, SessionOpened, TokensDropped, TurnCommitted
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.core.turn import RetryMarks
from turnkeeper.ids import SessionId, TurnId
from turnkeeper.matching import DEFAULT_RULES, Difference, DifferenceKind, ReplyRules, Rewrite, RewriteKind
from turnkeeper.store import SessionOpening, SessionStore, StoredSession

TEXTS = st.text(max_size=6) | st.sampled_from(["\ud83d", "a\udc00", "\ud83d\ude00", "é", "😀"])
"""Texts, some with lone surrogates, which strangers' JSON may hold."""
INTS = st.integers() | st.sampled_from([2**63, -(2**63) - 1, 2**64, -(2**70)])
FLOATS = st.floats(width=64) | st.sampled_from([float("nan"), -0.0, 0.1])
TIMES = st.floats(0, 2e9)
COUNTS = st.integers(0, 2**40)
LEAVES = st.none() | st.booleans() | INTS | FLOATS | TEXTS
JSON = st.recursive(
    LEAVES,
    lambda values: (
        st.lists(values, max_size=3)
        | st.dictionaries(TEXTS, values, max_size=3)
        | st.lists(values, max_size=2).map(tuple)
    ),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(freeze_ids)
PATCHES = hnp.arrays(
    dtype=st.sampled_from([np.uint8, np.uint16]), shape=st.tuples(st.integers(0, 4), st.just(2), st.just(2))
)
INDEXER = hnp.arrays(dtype=np.int32, shape=st.tuples(st.integers(0, 3), st.just(1), st.just(3)))
TOOLS = st.lists(st.sampled_from([{"name": "a"}, {"name": "b", "x": [1.5]}, {"\ud83d": "c"}]), max_size=3).map(tuple)


def spell(value: Any) -> Any:
    """Spell a value so that two spellings are equal only where the values are, to the last bit and type."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, [
            (each.name, spell(getattr(value, each.name))) for each in dataclasses.fields(value)
        ]
    if isinstance(value, ItemRun):
        return type(value).__name__, spell(value.array)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, dict):
        return "dict", [(key, spell(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [spell(item) for item in value]
    return type(value).__name__, value


DIFFERENCES = st.builds(
    Difference,
    kind=st.sampled_from(DifferenceKind),
    field=TEXTS,
    stored=TEXTS,
    replayed=TEXTS,
    index=st.integers(-1, 9),
)
REQUESTS = st.builds(
    TurnRequest,
    messages=st.just(()),
    model=TEXTS,
    tools=TOOLS,
    loaded_tools=TOOLS,
    chat_template_kwargs=OBJECTS,
    sampling=OBJECTS,
    forwarded=OBJECTS,
    dropped_fields=st.lists(TEXTS, max_size=2).map(tuple),
    digest=TEXTS,
    dialect=st.sampled_from(["chat", "messages", "responses"]),
    headers=st.dictionaries(TEXTS, TEXTS, max_size=2),
    notes=st.lists(TEXTS, max_size=2).map(tuple),
    retry=st.builds(RetryMarks, retry_count=COUNTS, key=TEXTS),
    wants_text=st.booleans(),
)
TOPS = st.lists(st.lists(st.tuples(st.integers(0, 2**40), st.floats(width=64)), max_size=2).map(tuple), max_size=3).map(
    tuple
)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    """Completions with everything that one may have."""
    ids = draw(IDS)
    cut = draw(st.integers(0, len(ids)))
    patch, indexer = draw(st.none() | PATCHES), draw(st.none() | INDEXER)
    singles = draw(st.booleans())  # engines report logprobs of 32 bits, others doubles
    logprobs = draw(hnp.arrays(np.float64, len(ids), elements=st.floats(-1e30, 0.0, allow_nan=False)))
    return Completion(
        ids=ids,
        logprobs=logprobs.astype(np.float32).astype(np.float64) if singles else logprobs,
        message=draw(OBJECTS),
        finish_reason=draw(st.sampled_from(FinishReason)),
        versions=(
            VersionSpan(version=draw(st.none() | TEXTS), start=0, stop=cut),
            VersionSpan(version="v2", start=cut, stop=len(ids)),
        ),
        weight_version=draw(st.none() | TEXTS),
        top_logprobs=draw(st.none() | TOPS),
        lora_name=draw(st.none() | TEXTS),
        channels=channels_of(None if patch is None else RoutingRows(experts_RLK=patch), indexer),
        matched_stop=draw(st.none() | INTS | TEXTS),
        cached_tokens=draw(COUNTS),
        sampled_ids=draw(st.dictionaries(TEXTS, TEXTS, max_size=2)),
        response_id=draw(TEXTS),
        meta=draw(OBJECTS),
        marks=draw(OBJECTS),
        started_at=draw(TIMES),
        finished_at=draw(TIMES),
    )


TURNS = st.builds(
    Turn,
    id=st.integers(0, 99).map(TurnId),
    parent=st.none() | st.integers(0, 99).map(TurnId),
    messages=st.lists(OBJECTS, max_size=2).map(tuple),
    request=REQUESTS,
    prompt=st.builds(Prompt, trim=st.integers(0, 1), ids=IDS, chat_template_kwargs=OBJECTS),
    completion=completions(),
    begun_after=COUNTS,
    begun_at=TIMES,
    committed_at=TIMES,
    path_tokens=COUNTS,
    path_messages=COUNTS,
    context_digest=TEXTS,
    context_changed=st.booleans(),
    carried=COUNTS,
    accepted=st.lists(DIFFERENCES, max_size=2).map(tuple),
    rewrite=st.none()
    | st.builds(Rewrite, kinds=st.lists(st.sampled_from(RewriteKind), max_size=2).map(tuple), form=TEXTS),
    why=st.builds(
        Explanation,
        cause=st.sampled_from(Cause),
        near=st.none() | st.integers(0, 99).map(TurnId),
        difference=st.none() | DIFFERENCES,
        would_match=TEXTS,
        agent=TEXTS,
    ),
)
OPENINGS = st.builds(
    SessionOpening,
    event=st.builds(
        SessionOpened,
        at=TIMES,
        policy=st.builds(Tree) | st.builds(Linear, max_rollback=st.integers(0, 9)),
        matcher=TEXTS,
        replies=st.just(DEFAULT_RULES) | st.builds(ReplyRules, thinking_tags=st.tuples(TEXTS, TEXTS)),
        turn_limit=st.none() | COUNTS,
    ),
    settings=OBJECTS,
    ttl_s=TIMES,
    limit_tokens=st.none() | COUNTS,
    key_hash=st.none() | st.binary(max_size=32),
)
EVENTS = st.one_of(
    st.builds(TurnCommitted, at=TIMES, turn=TURNS),
    OPENINGS,
    st.builds(TokensDropped, at=TIMES, reason=st.sampled_from(DropReason), sampled_tokens=st.none() | COUNTS),
    st.builds(ReplyDelivered, at=TIMES, turn_id=st.integers(0, 99).map(TurnId)),
    st.builds(SessionClosed, at=TIMES, reason=TEXTS),
)


def session_id(number: int) -> SessionId:
    return SessionId(f"{number:032x}")


def opening_of(session: Session, **fields: Any) -> SessionOpening:
    opened = session.events[0]
    assert isinstance(opened, SessionOpened)
    return SessionOpening(event=opened, **{"ttl_s": 60.0, **fields})


def rows_of(count: int, *, first: int = 0, wide: bool = False) -> RoutingRows:
    """So many rows of two layers and two experts, each with its own number."""
    numbers = np.arange(first * 4, (first + count) * 4) % 200
    return RoutingRows(experts_RLK=numbers.astype(np.uint16 if wide else np.uint8).reshape(count, 2, 2))


class StoredTalk:
    """A session whose events are made one at a time, as the service makes them: prepared, stored, appended."""

    def __init__(self, number: int = 1, at: float = 1.0) -> None:
        self.id = session_id(number)
        self.session = Session.open(Tree(), at=at)
        self._at = at

    def prepare(self, text: str = "u", *, rows: RoutingRows | None = None, **fields: Any) -> tuple[PendingTurn, Turn]:
        """A turn that is ready to be stored: a new root."""
        self._at += 1
        pending = self.session.begin(ask(user(text), **fields), at=self._at)
        size = len(rows) if rows is not None else 2  # a path of N + 1 tokens has N rows
        completion = completion_of(assistant(f"re: {text}"), 1, rows=rows)
        return pending, self.session.prepare(pending, prompt=prompt_of(size), completion=completion, at=self._at)

    def append(self, prepared: tuple[PendingTurn, Turn]) -> TurnCommitted:
        self.session.append(*prepared)
        event = self.session.events[-1]
        assert isinstance(event, TurnCommitted)
        return event

    async def say(self, stored: StoredSession, text: str = "u", **fields: Any) -> Turn:
        """One turn, stored and then appended."""
        pending, turn = self.prepare(text, **fields)
        await stored.commit(TurnCommitted(at=turn.committed_at, turn=turn))
        self.session.append(pending, turn)
        return turn


async def create(store: SessionStore, talk: StoredTalk) -> StoredSession:
    """Store the opening of a session."""
    return await store_opening(store, talk.id, opening_of(talk.session))


async def store_opening(store: SessionStore, session_id: SessionId, opening: SessionOpening) -> StoredSession:
    """Store an opening, and wait until it is stored."""
    return await store.create(session_id, opening)


FINGERPRINT = {"tokenizer": "t", "template": "p", "family": "qwen3"}
SECRET = "5e" * 32


def open_store(folder: Path, **fields: Any) -> SessionStore:
    """Open a store without starting its writer."""
    return SessionStore.open(folder, **{"fingerprint": FINGERPRINT, "secret": SECRET, **fields})


@contextlib.asynccontextmanager
async def storing(folder: Path, **fields: Any) -> AsyncIterator[SessionStore]:
    """A store that writes, closed at the end."""
    store = open_store(folder, **fields)
    store.start()
    try:
        yield store
    finally:
        await store.close()
