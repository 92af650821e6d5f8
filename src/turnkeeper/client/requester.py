"""One call to a session server, and its repetitions.

Owns the form of requests and replies, and which failures are waited out. Knows neither routes nor a client library: a
`Transport` carries one request, for asyncio (`AiohttpTransport`) or blocking (`Urllib3Transport`).
"""

import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

import orjson

from turnkeeper.client.body import encode_body
from turnkeeper.client.failure import excerpt, parse_failure
from turnkeeper.client.retry import Fate, Retry, judge
from turnkeeper.errors import ServerReplyError, ServerUnreachableError, TurnkeeperError
from turnkeeper.jsontypes import JsonObject, is_object

logger = logging.getLogger("turnkeeper.client")

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
"""The longest that making a connection may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it is sent."""

    method: str
    url: str
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole reply, whatever its status."""

    url: str
    status: int
    headers: Mapping[str, str] = field(repr=False)
    """By name in lower case."""
    body: bytes = field(repr=False)

    def read_object(self, *members: str) -> JsonObject:
        """Read the body as a JSON object that has these members.

        Raises:
            ServerReplyError: it is none.
        """
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            value = None
        if is_object(value) and all(name in value for name in members):
            return value
        expected = f"an object with {', '.join(members)}" if members else "an object"
        raise ServerReplyError(
            f"{self.url} is expected to answer {expected}, got {self.status}: {excerpt(self.body)}",
            hint="is this the session server's address, and what stands between?",
            status=self.status,
        )


class Transport(Protocol):
    """Carries requests. Its connections are kept between calls while it is entered."""

    async def __aenter__(self) -> Self:
        """Keep connections from now on."""
        ...

    async def __aexit__(self, *exc: object) -> None:
        """Close them, unless it was entered a second time."""
        ...

    async def send(self, request: Request) -> Reply:
        """Send one request, and read the whole reply.

        Raises:
            ServerUnreachableError: there is none; the fact ``is_sent`` tells whether the request may have come in.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


def draw_chance() -> float:
    """Draw a number from 0 to 1."""
    return int.from_bytes(os.urandom(4)) / 2**32


class Requester:
    """Calls a server, again where that may help."""

    def __init__(
        self,
        *,
        transport: Transport,
        retry: Retry,
        headers: Mapping[str, str],
        now: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = draw_chance,
    ) -> None:
        """Make no call yet.

        Args:
            transport: carries the requests, and waits.
            retry: how often calls are made again.
            headers: sent with every request.
            now: the seconds of a clock that never goes back.
            chance: a source of random numbers from 0 to 1.
        """
        self.transport = transport
        self._retry = retry
        self._headers = headers
        self._now = now
        self._chance = chance

    async def call(
        self,
        method: str,
        url: str,
        body: JsonObject | None = None,
        *,
        is_repeatable: bool = True,
        done: type[TurnkeeperError] | None = None,
        accepted: tuple[int, ...] = (),
        retry: Retry | None = None,
    ) -> Reply:
        """Make one call, and make it again as `turnkeeper.client.retry` says.

        Args:
            method: of the request.
            url: of the request.
            body: sent as JSON.
            is_repeatable: whether a second request does no harm where the first may have been served.
            done: the error which, behind a reply that got lost, says that the first request was served.
            accepted: the statuses from 400 on that are no errors of this call.
            retry: in place of the requester's own.

        Raises:
            RequestError: the body cannot be written as JSON.
            TurnkeeperError: the server answered with this error.
            ServerUnreachableError: the server did not answer.
            ServerReplyError: what answered is no session server.
        """
        data = None if body is None else encode_body(body)
        headers = {**self._headers, "content-type": "application/json"} if body is not None else self._headers
        request = Request(method=method, url=url, body=data, headers=headers)
        return await self.repeat(
            lambda: self._send(request, accepted),
            what=f"{method} {url}",
            is_repeatable=is_repeatable,
            done=done and (done, Reply(url=url, status=204, headers={}, body=b"")),
            retry=retry,
        )

    async def repeat(
        self,
        operation: Callable[[], Awaitable[T]],
        *,
        what: str,
        is_repeatable: bool = True,
        done: tuple[type[TurnkeeperError], T] | None = None,
        retry: Retry | None = None,
    ) -> T:
        """Await an operation until it succeeds, or fails in a way that no repetition mends.

        Args:
            operation: makes the calls.
            what: what it does, for the log.
            is_repeatable: whether a second one does no harm where the first may have been served.
            done: an error that counts as success behind a reply that got lost, and what is returned for it.
            retry: in place of the requester's own.

        Raises:
            TurnkeeperError: the last failure.
        """
        retry = retry or self._retry
        began, calls, is_lost = self._now(), 0, False
        while True:
            calls += 1
            try:
                return await operation()
            except TurnkeeperError as error:
                if is_lost and done is not None and isinstance(error, done[0]):
                    return done[1]
                fate = judge(error)
                is_lost = is_lost or fate is Fate.UNKNOWN
                asked: Any = error.facts.get("retry_after_s")
                wait_s = retry.find_wait(calls, elapsed_s=self._now() - began, asked_s=asked, chance=self._chance())
                if wait_s is None or fate is Fate.FINAL or (fate is Fate.UNKNOWN and not is_repeatable):
                    raise
                logger.warning("%s failed, trying again in %.1f s: %s", what, wait_s, error)
            await self.transport.sleep(wait_s)

    async def _send(self, request: Request, accepted: tuple[int, ...]) -> Reply:
        reply = await self.transport.send(request)
        if reply.status in accepted or 200 <= reply.status < 300:
            return reply
        raise parse_failure(reply.status, reply.body, reply.headers)


def build_unreachable(
    url: str, error: BaseException, *, is_sent: bool, is_final: bool = False
) -> ServerUnreachableError:
    """Build the error of a request that got no reply.

    Args:
        url: of the request.
        error: what the client library raised.
        is_sent: whether the server may have got the request.
        is_final: whether a second request would end as this one did.
    """
    return ServerUnreachableError(
        f"no answer from {url}: {str(error) or type(error).__name__}",
        hint="is the session server running, and is this its address?",
        url=url,
        is_sent=is_sent,
        is_final=is_final,
    )
