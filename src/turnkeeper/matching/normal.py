"""Messages reduced to what a comparison may look at.

Clients hand a message back in many spellings: a missing key, ``None``, ``""``, ``[]`` and a list of empty text parts
are one value here; text parts equal their joined text; ``reasoning`` and ``reasoning_content`` are one field; keys
that only the wire needs (``index``, what SDKs add) are gone. What is left is compared as it stands: memory compares 20
times as fast as it is digested, and of a replayed history all is held already.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeVar, cast

from turnkeeper.jsontypes import Message

T = TypeVar("T")

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
"""The types of content parts that hold nothing but text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalCall:
    """One tool call of an assistant message."""

    id: str
    """Empty where none was given."""
    name: str
    arguments: str
    """The JSON text as it was spelled; a given object in compact spelling; empty where none was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalMessage:
    """A message as the matchers see it."""

    message: Message = field(repr=False)
    """The message that was reduced."""
    role: str
    content: str
    """The joined text of all parts."""
    media: tuple[str, ...]
    """The parts that are not text: each ``offset:canonical JSON``, the offset being its place in ``content``."""
    reasoning: str
    calls: tuple[NormalCall, ...]
    result_of: str
    """The id of the call that this message answers; empty for all but tool results."""
    _digest: bytes = field(default=b"", init=False, repr=False, compare=False)
    _recalled: dict[Any, tuple[bytes, Any]] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> bytes:
        """16 bytes over all fields but ``message``: equal digests are equal messages. Worked out when first needed."""
        if not self._digest:
            object.__setattr__(self, "_digest", _digest(self))
        return self._digest

    def equals(self, stored: "NormalMessage") -> bool:
        """Return True when a stored message is equal in all fields; both messages then share the stored digest."""
        is_equal = (
            self.content == stored.content
            and self.role == stored.role
            and self.reasoning == stored.reasoning
            and self.calls == stored.calls
            and self.result_of == stored.result_of
            and self.media == stored.media
        )
        if is_equal and not self._digest:
            object.__setattr__(self, "_digest", stored.digest)
        return is_equal

    def recall(self, work: Callable[["NormalMessage", "NormalMessage"], T], replayed: "NormalMessage") -> T:
        """Return what a pure function says of this stored message and a replayed one; it is worked out once for each
        form of the replay.

        Clients bring a message in the same form with every request: of a history only what is new costs anything.
        """
        recalled = self._recalled
        if recalled is None:
            recalled = {}
            object.__setattr__(self, "_recalled", recalled)
        last = recalled.get(work)
        if last is None or last[0] != replayed.digest:
            last = recalled[work] = (replayed.digest, work(self, replayed))
        return last[1]

    @property
    def call_ids(self) -> tuple[str, ...]:
        """Every call id the message names: those of its calls, then that of the call it answers."""
        ids = tuple(call.id for call in self.calls)
        return (*ids, self.result_of) if self.result_of else ids


def normalize(message: Message) -> NormalMessage:
    """Reduce a message. Any mapping can be reduced: what is malformed stays comparable as JSON text."""
    content, media = _split_content(message.get("content"))
    return NormalMessage(
        message=message,
        role=_text(message.get("role")),
        content=content,
        media=media,
        reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
        calls=_read_calls(message.get("tool_calls")),
        result_of=_text(message.get("tool_call_id")),
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _canonical_json(value)


def _canonical_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=repr)


def _split_content(content: Any) -> tuple[str, tuple[str, ...]]:
    if content is None or isinstance(content, str):
        return content or "", ()
    if not isinstance(content, list):
        return "", (f"0:{_canonical_json(content)}",)
    texts: list[str] = []
    media: list[str] = []
    offset = 0
    for part in cast("list[Any]", content):
        text = _read_text_part(part)
        if text is None:
            media.append(f"{offset}:{_canonical_json(part)}")
        else:
            texts.append(text)
            offset += len(text)
    return "".join(texts), tuple(media)


def _read_text_part(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    fields = cast("dict[str, Any]", part)
    if fields.get("type") not in TEXT_PARTS:
        return None
    text = fields.get("text") or ""
    return text if isinstance(text, str) else None


def _read_calls(calls: Any) -> tuple[NormalCall, ...]:
    if not calls:
        return ()
    if not isinstance(calls, list):
        return (NormalCall(id="", name="", arguments=_canonical_json(calls)),)
    return tuple(_read_call(call) for call in cast("list[Any]", calls))


def _read_call(call: Any) -> NormalCall:
    if not isinstance(call, dict):
        return NormalCall(id="", name="", arguments=_canonical_json(call))
    fields = cast("dict[str, Any]", call)
    function = fields.get("function")
    inner = cast("dict[str, Any]", function) if isinstance(function, dict) else fields
    arguments = inner.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"), default=repr)
    return NormalCall(id=_text(fields.get("id")), name=_text(inner.get("name")), arguments=arguments or "")


def _digest(of: NormalMessage) -> bytes:
    """Digest all fields, each behind its length, so that no two messages spell the same text."""
    sizes = f"{len(of.role)} {len(of.content)} {len(of.reasoning)} {len(of.result_of)}"
    text = f"{sizes} {of.role}{of.content}{of.reasoning}{of.result_of}"
    for part in of.media:
        text += f"m{len(part)} {part}"
    for call in of.calls:
        text += f"c{len(call.id)} {len(call.name)} {len(call.arguments)} {call.id}{call.name}{call.arguments}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
