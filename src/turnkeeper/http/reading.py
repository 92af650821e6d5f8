"""Bodies of requests, read in the event loop where that takes a moment, and in a thread where they are large.

What a body costs before anybody knows whether it is of use (its JSON, its dialect, the digests of its messages) grows
with its size, so other sessions would wait for a large one. Small ones stay in the loop: a thread costs more.
"""

import asyncio
import gc
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from turnkeeper.core import build_query
from turnkeeper.dialects import Dialect, ParseContext
from turnkeeper.dialects.jsonbody import LARGE_BYTES, parse_optional_object
from turnkeeper.dialects.repetition import KnownRequest, ReadRequest, read_request
from turnkeeper.http.backend import HttpOptions
from turnkeeper.http.exchange import Exchange
from turnkeeper.jsontypes import JsonObject

Result = TypeVar("Result")

_POOL = ThreadPoolExecutor(2, thread_name_prefix="body")
"""Two: what reads JSON holds the interpreter for most of the time, and a body waits for one other at most."""


async def read_call(
    exchange: Exchange,
    options: HttpOptions,
    dialect: Dialect,
    build_context: Callable[[], ParseContext],
    find_known: Callable[[], KnownRequest | None],
) -> ReadRequest:
    """Receive and read what an agent sends: a turn, or a request to count its tokens.

    What the body repeats of the last request of its session is not read again.

    Raises:
        BodyTooLargeError: it is over the limit.
        RequestError: it is malformed.
    """
    body = await receive_turn_body(exchange, options)
    context = build_context()
    if len(body) <= LARGE_BYTES:
        return read_request(body, dialect, context, find_known())
    return await _work_apart(partial(_read_large, dialect, body, context))


async def read_control_object(exchange: Exchange, options: HttpOptions) -> JsonObject:
    """Receive and read a body of the control plane, which may be left out.

    Raises:
        BodyTooLargeError: it is over the limit.
        RequestError: it is no JSON object.
    """
    body = await exchange.read_body(options.max_body_bytes)
    if len(body) <= LARGE_BYTES:
        return parse_optional_object(body)
    return await _work_apart(partial(parse_optional_object, body))


async def receive_turn_body(exchange: Exchange, options: HttpOptions) -> bytes:
    """Receive what an agent sends.

    Raises:
        BodyTooLargeError: it is over the limit.
    """
    limit_bytes = min(options.max_turn_body_bytes, options.max_body_bytes)
    option = "--max-turn-body-bytes" if limit_bytes == options.max_turn_body_bytes else "--max-body-bytes"
    return await exchange.read_body(limit_bytes, option)


def _read_large(dialect: Dialect, body: bytes, context: ParseContext) -> ReadRequest:
    read = read_request(body, dialect, context)
    query = build_query(read.call.request)
    for message in query.messages:
        _ = message.digest  # worked out here, and kept
    return replace(read, query=query)


async def _work_apart(work: Callable[[], Result]) -> Result:
    with _collections.hold_back():
        return await asyncio.get_running_loop().run_in_executor(_POOL, work)


class _Collections:
    """Python's garbage collection, held back while a large body is read.

    What is read has no cycles, and each collection would walk through all of it: 450,000 lists hold everybody up for
    0.9 s with them and for 0.1 s without.
    """

    def __init__(self) -> None:
        self._readers = 0

    @contextmanager
    def hold_back(self) -> Generator[None]:
        """Hold them back while the block runs; only in the event loop's thread."""
        self._readers += 1
        gc.disable()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                gc.enable()


_collections = _Collections()
