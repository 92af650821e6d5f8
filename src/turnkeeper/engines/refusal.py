"""What an engine's status other than 200 means for a turn.

Pure: a reply in, the error to raise out.
"""

import re
from typing import Any, cast

import orjson

from turnkeeper.engines.net.client import HttpReply
from turnkeeper.errors import (
    ContextLengthError,
    EngineError,
    EngineRefusedError,
    EngineTimeoutError,
    TurnkeeperError,
)
from turnkeeper.jsontypes import JsonObject

_CONTEXT_LIMIT = re.compile(
    r"context length|longer than the (?:maximum )?model|maximum (?:input|allowed) length|input is too long",
    re.IGNORECASE,
)
_LIMIT_NUMBER = re.compile(
    r"(?:context length(?: of| is|\s*\()?|maximum (?:allowed|model) length)\D{0,24}(\d+)", re.IGNORECASE
)
_PAUSED = re.compile(r"\bpaused\b", re.IGNORECASE)


def build_status_error(reply: HttpReply, prompt_tokens: int) -> TurnkeeperError:
    """What a status other than 200 means for a turn.

    The fact ``engine_paused`` marks the answer of an engine that takes no requests while it is paused.
    """
    text = read_error_text(reply)
    facts: dict[str, Any] = {"url": reply.url, "engine_status": reply.status}
    if reply.status == 503 and _PAUSED.search(text):
        facts["engine_paused"] = True
    if reply.status in (400, 413, 422) and _CONTEXT_LIMIT.search(text):
        limit = _LIMIT_NUMBER.search(text)
        facts |= {"prompt_tokens": prompt_tokens} | ({"limit_tokens": int(limit[1])} if limit else {})
        return ContextLengthError(f"the engine at {reply.url} refuses the length: {text}", **facts)
    if reply.status in (400, 422, 429):
        retry_after = reply.find_header("retry-after") or ""
        facts |= {"engine_status": 400 if reply.status == 422 else reply.status}
        facts |= {"retry_after_s": int(retry_after)} if retry_after.isdecimal() else {}
        return EngineRefusedError(f"the engine at {reply.url} refuses the request: {text}", **facts)
    if reply.status in (408, 504):
        return EngineTimeoutError(f"the engine at {reply.url} answered {reply.status}: {text}", **facts)
    return EngineError(f"the engine at {reply.url} answered {reply.status}: {text}", **facts)


def read_error_text(reply: HttpReply) -> str:
    """The message inside an error body of any of the usual shapes, else the body's beginning."""
    try:
        value: object = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return reply.excerpt()
    for key in ("error", "message", "detail", "text"):
        while isinstance(value, dict) and key in value:
            value = cast(JsonObject, value)[key]
    return value if isinstance(value, str) and value else reply.excerpt()
