"""The error of a turn that an engine answered with another status than 200.

Pure: a reply in, the error to raise out. A status is about the request or about the engine:

| status | about | the error | the engine's other sessions |
|---|---|---|---|
| 400, 413, 422, 429 | the request | the engine's own refusal, or that of a length | stay |
| 408, 504 | the request, which took too long | a timeout | stay |
| 502, 503, and 521 to 523 of proxies | the engine, which takes no turns now | a broken engine | go elsewhere |
| any other (401, 404, 500, ...) | the request, or how the engine is set up | a broken engine | stay |
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any, cast

import orjson

from turnkeeper.disclosure import hide_addresses
from turnkeeper.engines.engine import RelayReply
from turnkeeper.engines.net.client import HttpReply
from turnkeeper.errors import (
    ContextLengthError,
    EngineError,
    EngineRefusedError,
    EngineTimeoutError,
    TurnkeeperError,
)
from turnkeeper.headers import JSON_HEADERS
from turnkeeper.jsontypes import JsonObject, encode_json

_CONTEXT_LIMIT = re.compile(
    r"context length|longer than the (?:maximum )?model|maximum (?:input|allowed) length|input is too long",
    re.IGNORECASE,
)
_LIMIT_NUMBER = re.compile(
    r"(?:context length(?: of| is|\s*\()?|maximum (?:allowed|model) length)\D{0,24}([0-9]{1,12})(?![0-9])",
    re.IGNORECASE,
)
_PAUSED = re.compile(r"\bpaused\b", re.IGNORECASE)


_OUT_OF_REACH = frozenset({502, 503, 521, 522, 523})
"""The statuses by which an engine, or a proxy in front of it, says that it takes no turns at the moment."""
_LONGEST_WAIT_S = 86_400
_PUBLIC_HEADERS = frozenset({"content-type", "retry-after", "cache-control", "etag"})
"""The headers of a relayed reply that do not show where it comes from."""
_LONGEST_TEXT = 2_000
"""The number of characters of an engine's error message that an error quotes at most."""


def build_status_error(reply: HttpReply, prompt_tokens: int) -> TurnkeeperError:
    """Build the error for a reply with another status than 200.

    The fact ``engine_paused`` is set where the engine takes no requests because it is paused, ``engine_answers`` where
    the reply says nothing against the engine.
    """
    text = read_error_text(reply)
    facts: dict[str, Any] = {"url": reply.url, "engine_status": reply.status}
    retry_after_s = read_retry_after(reply)
    if retry_after_s is not None:
        facts["retry_after_s"] = retry_after_s
    if reply.status == 503 and _PAUSED.search(text):
        facts["engine_paused"] = True
    if reply.status not in _OUT_OF_REACH:
        facts["engine_answers"] = True
    if reply.status in (400, 413, 422) and _CONTEXT_LIMIT.search(text):
        limit = _LIMIT_NUMBER.search(text)
        facts |= {"prompt_tokens": prompt_tokens} | ({"limit_tokens": int(limit[1])} if limit else {})
        return ContextLengthError(f"the engine at {reply.url} refuses the length: {text}", **facts)
    if reply.status in (400, 413, 422, 429):
        facts |= {"engine_status": 400 if reply.status == 422 else reply.status}
        return EngineRefusedError(f"the engine at {reply.url} refuses the request: {text}", **facts)
    if reply.status in (408, 504):
        return EngineTimeoutError(f"the engine at {reply.url} answered {reply.status}: {text}", **facts)
    return EngineError(f"the engine at {reply.url} answered {reply.status}: {text}", **facts)


def redact_reply(reply: RelayReply, hosts: Iterable[str]) -> RelayReply:
    """Remove engine addresses from a relayed reply, headers and error text, for a caller who is not the admin.

    Args:
        reply: the engine's reply.
        hosts: the host names of the engines.
    """
    headers = {name.lower(): value for name, value in reply.headers if name.lower() in _PUBLIC_HEADERS}
    if reply.status < 300 or reply.status == 304:
        return replace(reply, headers=tuple(headers.items()))
    read = HttpReply(url="", status=reply.status, headers=reply.headers, body=reply.body)
    text = hide_addresses(read_error_text(read), hosts) if 400 <= reply.status < 500 else EngineError.public_message
    body = encode_json({"error": f"the engine answered {reply.status}: {text}", "code": EngineError.code})
    return replace(reply, headers=tuple({**headers, **JSON_HEADERS}.items()), body=body)


def read_retry_after(reply: HttpReply) -> int | None:
    """Read the seconds of ``Retry-After``, at most a day; None where the header is missing or malformed.

    A date is counted from the reply's own ``Date``.
    """
    value = (reply.find_header("retry-after") or "").strip()
    if value.isascii() and value.isdecimal():
        return min(int(value[-12:]), _LONGEST_WAIT_S) if not value[:-12].strip("0") else _LONGEST_WAIT_S
    try:
        then, now = (parsedate_to_datetime(text) for text in (value, reply.find_header("date") or ""))
        return min(max(0, int((then - now).total_seconds())), _LONGEST_WAIT_S)
    except (TypeError, ValueError, OverflowError):  # malformed, or one of the two has no time zone
        return None


def read_error_text(reply: HttpReply) -> str:
    """Find the message in an error body of any usual shape; the body's beginning where there is none."""
    try:
        value: object = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return reply.excerpt()
    for key in ("error", "message", "detail", "text"):
        while isinstance(value, dict) and key in value:
            value = cast(JsonObject, value)[key]
    if not isinstance(value, str) or not value:
        return reply.excerpt()
    return value if len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT] + "..."
