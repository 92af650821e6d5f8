"""The one HTTP client that talks to engines.

Owns connections, their limits and timeouts, which headers travel, and the one boundary at which failures of the
client library become `EngineError`s. Knows no engine's wire.

* A request is sent again only when no connection was made, so nothing can have been accepted.
* Idle connections are dropped sooner than engines drop them (uvicorn: 5 s), so that no request meets a dying socket.
* Redirects are not followed: an engine that redirects is not the engine.
"""

import asyncio
import contextlib
import resource
from collections.abc import AsyncGenerator, Generator, Iterable
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from turnkeeper.errors import ConfigError, EngineError, EngineTimeoutError

ROUTING_KEY = "X-SMG-Routing-Key"
"""Routers with a sticky policy send equal values to one worker."""

TRACE_HEADERS = ("x-request-id", "x-correlation-id", "traceparent", "tracestate")
"""Client headers that are passed on with a turn."""

JSON_HEADERS = (("content-type", "application/json"),)

_HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
_NOT_SENT = _HOP_BY_HOP | {"host", "content-length", "accept-encoding", "authorization", "x-api-key", "cookie"}
_NOT_RETURNED = _HOP_BY_HOP | {"server", "date", "content-length", "content-encoding", "set-cookie"}


def select_request_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The client's headers that a relayed call may carry: framing, credentials and cookies stay behind."""
    return [(name, value) for name, value in headers if name.lower() not in _NOT_SENT]


def select_reply_headers(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The engine's headers that may go back to a client: those that its own server writes are left out."""
    return tuple((name, value) for name, value in headers if name.lower() not in _NOT_RETURNED)


def choose_pool_size(concurrency: int, file_limit: int, *, reserved: int = 64) -> int:
    """How many upstream connections the process may hold.

    A turn takes two descriptors, its client's and its engine's; ``reserved`` are kept for files and listeners.

    Raises:
        ConfigError: the limit does not carry the concurrency.
    """
    usable = (file_limit - reserved) // 2
    if usable < concurrency:
        raise ConfigError(
            f"{concurrency} turns at once need {2 * concurrency + reserved} open files, the limit is {file_limit}",
            hint=f"ulimit -n {2 * concurrency + reserved}, or a lower concurrency",
        )
    return concurrency


def raise_file_limit() -> int:
    """Raise this process's soft limit of open files to its hard limit; returns the limit that now holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1_048_576 if hard == resource.RLIM_INFINITY else hard
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """A complete reply."""

    url: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | bytearray
    """All of it, or what a sink kept of it."""

    def find_header(self, name: str) -> str | None:
        """The first header of this name, in any letter case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def excerpt(self, limit: int = 300) -> str:
        """The beginning of the body as text, for error messages."""
        text = bytes(self.body[:limit]).decode("utf-8", "replace").strip()
        return text + ("..." if len(self.body) > limit else "") if text else "an empty body"


@contextlib.contextmanager
def engine_boundary(url: str, timeout_s: float) -> Generator[None]:
    """The place where the client library's exceptions become ours, each naming the URL."""
    try:
        yield
    except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
        raise EngineError(f"no connection to the engine at {url}: {error}", url=url, accepted=False) from error
    except TimeoutError as error:
        raise EngineTimeoutError(
            f"the engine at {url} gave no answer within {timeout_s:g} s",
            hint="--engine-timeout must exceed the longest generation and the longest pause",
            url=url,
        ) from error
    except (aiohttp.ClientError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise EngineError(f"the engine at {url} broke off its reply: {reason}", url=url) from error


class BodySink(Protocol):
    """Takes a body as it comes in, and keeps as text what an error message may quote."""

    text: bytearray

    def feed(self, chunk: bytes) -> None:
        """Take the next part; every other turn of the process waits meanwhile."""
        ...


class EngineClient:
    """One connection pool for all engines. Made once in a process; usable within one event loop."""

    def __init__(
        self,
        *,
        timeout_s: float = 1800.0,
        connect_timeout_s: float = 10.0,
        pool_size: int = 1024,
        pool_idle_s: float = 3.0,
        api_key: str | None = None,
    ) -> None:
        """Take the settings; no connection is made yet.

        Args:
            timeout_s: the longest a generation may take, pauses included.
            connect_timeout_s: the longest that making a connection may take.
            pool_size: connections at once; further calls wait for a free one.
            pool_idle_s: how long an unused connection is kept.
            api_key: sent to engines as a bearer token.
        """
        self.timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._pool_size = pool_size
        self._pool_idle_s = pool_idle_s
        self._headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._pool_size, keepalive_timeout=self._pool_idle_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                read_bufsize=1 << 20,
                trust_env=False,
            )
        return self._session

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Iterable[tuple[str, str]] = (),
        timeout_s: float | None = None,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Open a call and read its body as it comes; reading happens inside the same error boundary."""
        total_s = self.timeout_s if timeout_s is None else timeout_s
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=min(self._connect_timeout_s, total_s))
        with engine_boundary(url, total_s):
            async with self._open().request(
                method, url, data=body, headers=tuple(headers), timeout=timeout, allow_redirects=False
            ) as response:
                yield response

    async def call(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Iterable[tuple[str, str]] = (),
        timeout_s: float | None = None,
        sink: BodySink | None = None,
    ) -> HttpReply:
        """Make a call and read its whole reply, whatever its status; the body goes to a sink where there is one.

        Raises:
            EngineError: no connection (``facts["accepted"]`` is False), a reset, a body cut short.
            EngineTimeoutError: the reply was not complete in time.
        """
        async with self.stream(method, url, body=body, headers=headers, timeout_s=timeout_s) as response:
            if sink is None:
                content = await response.read()
            else:
                async for chunk, _ in response.content.iter_chunks():  # each as it came; iter_any would join them
                    sink.feed(chunk)
                content = sink.text
            pairs = tuple((str(name), str(value)) for name, value in response.headers.items())
            return HttpReply(url=url, status=response.status, headers=pairs, body=content)

    async def post_json(self, url: str, body: bytes, *, timeout_s: float | None = None) -> HttpReply:
        """POST a JSON body."""
        return await self.call("POST", url, body=body, headers=JSON_HEADERS, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # lets aiohttp's transports run their connection_lost
