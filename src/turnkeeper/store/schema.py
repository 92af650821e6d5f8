"""The schema of stored events: which fields a record has, under which keys, and what a missing one means.

The one place that says how events are stored. A field of ``core`` that is renamed keeps its key here; one that is added
gets a row with a default, which is what records of earlier versions mean by its absence. A change that an earlier
version would misread raises ``VERSION``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels import CHANNELS, ItemRun, Items
from turnkeeper.choices import OnRewrittenCalls, OnToolsChange, OnTruncated
from turnkeeper.core.accounting import DropReason
from turnkeeper.core.cause import Cause, Explanation
from turnkeeper.core.event import ReplyDelivered, SessionClosed, SessionOpened, TokensDropped, TurnCommitted
from turnkeeper.core.history import Linear, Tree
from turnkeeper.core.turn import (
    Completion,
    FinishReason,
    Prompt,
    RetryMarks,
    TopLogprobs,
    Turn,
    TurnRequest,
    VersionSpan,
)
from turnkeeper.jsontypes import JsonObject
from turnkeeper.matching import Difference, DifferenceKind, ReplyRules, Rewrite, RewriteKind
from turnkeeper.store.opening import SessionOpening

VERSION = 1
"""The version of the schema, which each record begins with."""


class Outgoing(Protocol):
    """What a record refers to when it is written."""

    def share(self, value: JsonObject, /) -> int:
        """Number a value that a session stores once."""
        ...

    def add_payload(self, channel: str, array: NDArray[Any], /) -> int:
        """Number an array that is stored beside the record."""
        ...


class Incoming(Protocol):
    """What a record refers to when it is read."""

    def get_shared(self, number: int, /) -> JsonObject:
        """The shared value of that number."""
        ...

    def get_payload(self, number: int, /) -> ItemRun | None:
        """The payload of that number, in memory or as stored rows; None where it is lost."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one type are written; None stands for itself in every kind."""

    write: Callable[[Any, Outgoing], Any]
    read: Callable[[Any, Incoming], Any]


class _Required:
    """Stands for the default of a field that has none."""


REQUIRED = _Required()


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a record."""

    name: str
    """The attribute that holds it, and its key where ``key`` names no other."""
    kind: Kind | None = None
    """None for JSON values and arrays, which are packed as they are."""
    default: Any = REQUIRED
    """The value that is left out of a record, and that a record without the field means. Never a float, since -0.0
    equals 0.0."""
    key: str = ""
    is_spread: bool = False
    """True where the field has several keys in a record: its kind writes them, and reads them out of the record."""

    @property
    def stored_as(self) -> str:
        """Its key in a record; empty where it has several."""
        return "" if self.is_spread else self.key or self.name


class Schema:
    """The fields of one type of record."""

    def __init__(self, made: Callable[..., Any], *fields: SchemaField) -> None:
        """Describe a dataclass by its fields."""
        self.made = made
        self.fields = fields
        self._rows = tuple((each.name, each.stored_as, each.kind, each.default) for each in fields)

    def write(self, value: Any, out: Outgoing) -> dict[str, Any]:
        """The fields of a value that are not at their default."""
        written: dict[str, Any] = {}
        for name, key, kind, default in self._rows:
            found = getattr(value, name)
            if type(found) is type(default) and found == default:
                continue
            if not key:
                assert kind is not None
                written.update(kind.write(found, out))
                continue
            written[key] = found if kind is None or found is None else kind.write(found, out)
        return written

    def read(self, written: Mapping[str, Any], source: Incoming) -> Any:
        """The value that these fields make; keys that no field has are left out.

        Raises:
            ValueError, KeyError, TypeError: the fields make no such value.
        """
        fields: dict[str, Any] = {}
        for name, key, kind, default in self._rows:
            if not key:
                assert kind is not None
                fields[name] = kind.read(written, source)
            elif key in written or default is REQUIRED:
                found = written[key]
                fields[name] = found if kind is None or found is None else kind.read(found, source)
            else:
                fields[name] = {} if default == {} else default  # a dict of its own for each value
        return self.made(**fields)

    @property
    def kind(self) -> Kind:
        """The kind of a field that holds such a record."""
        return Kind(self.write, self.read)


def _each(kind: Kind) -> Kind:
    """A tuple of values of one kind."""
    return Kind(
        lambda values, out: [kind.write(value, out) for value in values],
        lambda written, source: tuple(kind.read(value, source) for value in written),
    )


def _choice(choices: type[StrEnum]) -> Kind:
    """A member of an enumeration, by its value."""
    return Kind(lambda value, _: value.value, lambda written, _: choices(written))


def _one_of(tag: str, schemas: Mapping[str, Schema]) -> Kind:
    """One of several records, told apart by a key that names it."""
    tags = {schema.made: name for name, schema in schemas.items()}

    def write(value: Any, out: Outgoing) -> dict[str, Any]:
        name = tags[type(value)]
        return {tag: name, **schemas[name].write(value, out)}

    return Kind(write, lambda written, source: schemas[written[tag]].read(written, source))


def _write_tops(tops: TopLogprobs, _: Outgoing) -> list[NDArray[Any]]:
    """Three arrays: how many tokens each place has, the ids of all places, their logprobs."""
    pairs = [pair for place in tops for pair in place]
    counts = np.array([len(place) for place in tops], np.uint32)
    return [counts, np.array([each[0] for each in pairs], np.int64), np.array([each[1] for each in pairs], np.float64)]


def _read_tops(written: Sequence[NDArray[Any]], _: Incoming) -> TopLogprobs:
    counts, ids, logprobs = (cast("list[Any]", each.tolist()) for each in written)
    pairs: Iterator[tuple[int, float]] = iter(zip(ids, logprobs, strict=True))
    return tuple(tuple(next(pairs) for _ in range(count)) for count in counts)


def _write_channels(channels: Mapping[str, Items], out: Outgoing) -> dict[str, Any]:
    """Each channel under its own key, by the number of its run, or by the numbers of its runs."""
    written: dict[str, Any] = {}
    for name, channel in CHANNELS.items():
        if name in channels:
            runs = zip(channel.stored_runs, channels[name].runs, strict=True)
            numbers = [out.add_payload(stored_as, run.array) for stored_as, run in runs]
            written[channel.stored_as] = numbers[0] if len(numbers) == 1 else numbers
    return written


def _read_channels(written: Mapping[str, Any], source: Incoming) -> dict[str, Items]:
    """Items whose runs are lost in part are left out."""
    found: dict[str, Items] = {}
    for name, channel in CHANNELS.items():
        numbers = written.get(channel.stored_as)
        if numbers is None:
            continue
        runs = [source.get_payload(number) for number in ([numbers] if isinstance(numbers, int) else numbers)]
        kept = [run for run in runs if run is not None]
        if len(kept) == len(runs):
            found[name] = channel.restore(kept)
    return found


TUPLE = Kind(lambda value, _: list(value), lambda written, _: tuple(written))
"""A tuple of JSON values."""
BYTES = Kind(lambda value, _: bytes(value), lambda written, _: bytes(written))
TOPS = Kind(_write_tops, _read_tops)
SHARED = Kind(lambda value, out: out.share(value), lambda number, source: source.get_shared(number))
"""A value that many turns of a session have, stored once: a tool."""
CHANNEL_ITEMS = Kind(_write_channels, _read_channels)
"""What a turn keeps of side channels: arrays beside the record, each channel under its own key."""

REPLY_RULES = Schema(
    ReplyRules,
    SchemaField("thinking_tags", TUPLE, None),
    SchemaField("on_rewritten_calls", _choice(OnRewrittenCalls)),
)
TREE = Schema(
    Tree, SchemaField("on_tools_change", _choice(OnToolsChange)), SchemaField("on_truncated", _choice(OnTruncated))
)
LINEAR = Schema(
    Linear,
    SchemaField("max_rollback"),
    SchemaField("on_tools_change", _choice(OnToolsChange)),
    SchemaField("on_truncated", _choice(OnTruncated)),
)
SESSION_OPENED = Schema(
    SessionOpened,
    SchemaField("at"),
    SchemaField("policy", _one_of("kind", {"tree": TREE, "linear": LINEAR})),
    SchemaField("matcher"),
    SchemaField("replies", REPLY_RULES.kind),
    SchemaField("turn_limit", None, None),
)
OPENING = Schema(
    SessionOpening,
    SchemaField("event", SESSION_OPENED.kind),
    SchemaField("settings"),
    SchemaField("ttl_s"),
    SchemaField("limit_tokens", None, None),
    SchemaField("key_hash", BYTES, None),
)
RETRY_MARKS = Schema(RetryMarks, SchemaField("retry_count", None, 0), SchemaField("key", None, ""))
TURN_REQUEST = Schema(
    TurnRequest,
    SchemaField("messages", TUPLE, ()),
    SchemaField("model", None, ""),
    SchemaField("tools", _each(SHARED), ()),
    SchemaField("loaded_tools", _each(SHARED), ()),
    SchemaField("chat_template_kwargs", None, {}),
    SchemaField("sampling", None, {}),
    SchemaField("forwarded", None, {}),
    SchemaField("dropped_fields", TUPLE, ()),
    SchemaField("digest", None, ""),
    SchemaField("dialect", None, "chat"),
    SchemaField("headers", None, {}),
    SchemaField("notes", TUPLE, ()),
    SchemaField("retry", RETRY_MARKS.kind),
    SchemaField("trace", None, {}),
    SchemaField("wants_text", None, False),
)
PROMPT = Schema(Prompt, SchemaField("trim", None, 0), SchemaField("ids"), SchemaField("chat_template_kwargs", None, {}))
VERSION_SPAN = Schema(VersionSpan, SchemaField("version"), SchemaField("start"), SchemaField("stop"))
COMPLETION = Schema(
    Completion,
    SchemaField("ids"),
    SchemaField("logprobs"),
    SchemaField("message"),
    SchemaField("finish_reason", _choice(FinishReason)),
    SchemaField("versions", _each(VERSION_SPAN.kind)),
    SchemaField("weight_version", None, None),
    SchemaField("top_logprobs", TOPS, None),
    SchemaField("lora_name", None, None),
    SchemaField("channels", CHANNEL_ITEMS, {}, is_spread=True),
    SchemaField("matched_stop", None, None),
    SchemaField("cached_tokens", None, 0),
    SchemaField("sampled_ids", None, {}),
    SchemaField("response_id", None, ""),
    SchemaField("meta", None, {}),
    SchemaField("marks", None, {}),
    SchemaField("started_at"),
    SchemaField("finished_at"),
)
DIFFERENCE = Schema(
    Difference,
    SchemaField("kind", _choice(DifferenceKind)),
    SchemaField("field"),
    SchemaField("stored"),
    SchemaField("replayed"),
    SchemaField("index", None, -1),
)
REWRITE = Schema(Rewrite, SchemaField("kinds", _each(_choice(RewriteKind))), SchemaField("form", None, ""))
EXPLANATION = Schema(
    Explanation,
    SchemaField("cause", _choice(Cause)),
    SchemaField("near", None, None),
    SchemaField("difference", DIFFERENCE.kind, None),
    SchemaField("would_match", None, ""),
    SchemaField("agent", None, ""),
)
TURN = Schema(
    Turn,
    SchemaField("id"),
    SchemaField("parent", None, None),
    SchemaField("messages", TUPLE, ()),
    SchemaField("request", TURN_REQUEST.kind),
    SchemaField("prompt", PROMPT.kind),
    SchemaField("completion", COMPLETION.kind),
    SchemaField("begun_after"),
    SchemaField("begun_at"),
    SchemaField("committed_at"),
    SchemaField("path_tokens"),
    SchemaField("path_messages"),
    SchemaField("context_digest"),
    SchemaField("context_changed", None, False),
    SchemaField("carried", None, 0),
    SchemaField("accepted", _each(DIFFERENCE.kind), ()),
    SchemaField("rewrite", REWRITE.kind, None),
    SchemaField("why", EXPLANATION.kind),
)

EVENTS: Mapping[str, Schema] = {
    "opened": OPENING,
    "turn": Schema(TurnCommitted, SchemaField("at"), SchemaField("turn", TURN.kind)),
    "dropped": Schema(
        TokensDropped,
        SchemaField("at"),
        SchemaField("reason", _choice(DropReason)),
        SchemaField("sampled_tokens", None, None),
    ),
    "delivered": Schema(ReplyDelivered, SchemaField("at"), SchemaField("turn_id")),
    "closed": Schema(SessionClosed, SchemaField("at"), SchemaField("reason")),
}
"""The schema of each event, by the name that its records bear."""

EVENT_NAMES: Mapping[type, str] = {cast("type", schema.made): name for name, schema in EVENTS.items()}
"""The name of each event's records."""
