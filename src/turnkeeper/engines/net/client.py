"""The HTTP client for engines.

Owns connections, their limits and timeouts, the headers that are passed on, and the boundary at which failures of the
client library become `EngineError`s. Knows no engine's wire. Large replies are read in a thread of their own.

* A request is sent again only when no connection was made, so nothing can have been accepted.
* Idle connections are dropped sooner than engines drop them (uvicorn: 5 s), so that no request meets a dying socket.
* Redirects are not followed: an engine that redirects is not the engine.
"""

import asyncio
import contextlib
import re
import resource
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from dataclasses import dataclass

import aiohttp
import orjson
from aiohttp.abc import AbstractStreamWriter

from turnkeeper.engines.net.large_reply import BodySink, LargeReplyScheduler, feed_body, feed_chunks
from turnkeeper.engines.net.reader_thread import LoopThread
from turnkeeper.errors import ConfigError, EngineError, EngineTimeoutError
from turnkeeper.headers import JSON_HEADERS
from turnkeeper.jsontypes import JsonObject, is_object

ROUTING_KEY = "X-SMG-Routing-Key"
"""Routers with a sticky policy send equal values to one worker."""

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
_CHOOSES = re.compile(
    r".*(worker|rout|rank|parallel|target|endpoint|instance|upstream|host|prefill|decod|backend|replica|shard|priority"
    r"|tenant|user-id|session|smg|override|original|rewrite|forward|api-key|token).*|x-dp-.*|x-lora.*|via"
)
"""Headers by which a router or an engine chooses a worker, or takes a call for another call."""
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NOT_RETURNED = _HOP_BY_HOP | {"server", "date", "content-length", "content-encoding", "set-cookie"}


def select_request_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Select the headers of a client that a relayed call may have.

    Framing, credentials, cookies and headers that choose a worker are left out.
    """
    return [
        (name, value)
        for name, value in headers
        if (low := name.lower().replace("_", "-")) not in _NOT_SENT and not _CHOOSES.fullmatch(low)
    ]


def select_reply_headers(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the engine's headers that may go back to a client, byte for byte.

    Those that its own server writes are left out, and those with control characters.
    """
    kept = ((name, value) for name, value in headers if name.lower() not in _NOT_RETURNED)
    return tuple((name, _spell(value)) for name, value in kept if not _CONTROL.search(value))


def _spell(value: str) -> str:
    """Return the value's bytes as headers are spelled; the client library has read them as UTF-8."""
    return value.encode("utf-8", "surrogateescape").decode("latin-1")


def choose_pool_size(concurrency: int, file_limit: int, *, reserved: int = 64) -> int:
    """Return the number of connections to engines that the process may hold.

    A turn takes two descriptors, its client's and its engine's; ``reserved`` are kept for files and listeners.

    Raises:
        ConfigError: the limit of open files is too low for the concurrency.
    """
    usable = (file_limit - reserved) // 2
    if usable < concurrency:
        raise ConfigError(
            f"{concurrency} turns at once need {2 * concurrency + reserved} open files, the limit is {file_limit}",
            hint=f"ulimit -n {2 * concurrency + reserved}, or a lower concurrency",
        )
    return concurrency


def raise_file_limit() -> int:
    """Raise the process's soft limit of open files to its hard limit, and return the limit in effect."""
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
    """The whole body, or the text that a sink kept of it."""

    def find_header(self, name: str) -> str | None:
        """Find the first header of this name, in any letter case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def read_object(self) -> JsonObject:
        """Return the JSON object that the body holds; empty for any other body, and for a status that is not 200."""
        try:
            value: object = orjson.loads(self.body) if self.status == 200 else {}
        except orjson.JSONDecodeError:
            return {}
        return value if is_object(value) else {}

    def excerpt(self, limit: int = 300) -> str:
        """Return the beginning of the body as text, for error messages."""
        text = bytes(self.body[:limit]).decode("utf-8", "replace").strip()
        return text + ("..." if len(self.body) > limit else "") if text else "an empty body"


@contextlib.contextmanager
def engine_boundary(url: str, timeout_s: float) -> Generator[None]:
    """Raise the client library's exceptions as engine errors that name the URL."""
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


class _Body(aiohttp.Payload):
    """The body of a request, whose first byte is written apart.

    The library joins the headers and the first part of a body, so as to write both at once, which copies a body of one
    part.
    """

    _autoclose = True

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        view = memoryview(self._value)
        await writer.write(view[:1])
        await writer.write(view[1:])


class _Connections:
    """A pool of connections within one event loop, made at the first call."""

    def __init__(self, *, headers: Mapping[str, str], connect_timeout_s: float, pool_size: int, idle_s: float) -> None:
        self._headers = headers
        self._connect_timeout_s = connect_timeout_s
        self._pool_size = pool_size
        self._idle_s = idle_s
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._pool_size, keepalive_timeout=self._idle_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                read_bufsize=1 << 20,
                trust_env=False,
            )
        return self._session

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, url: str, *, body: bytes | None, headers: Iterable[tuple[str, str]], timeout_s: float
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(self._connect_timeout_s, timeout_s))
        with engine_boundary(url, timeout_s):
            async with self._open().request(
                method,
                url,
                data=None if body is None else _Body(body),
                headers=tuple(headers),
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                yield response

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # lets aiohttp's transports run their connection_lost


class EngineClient:
    """The connections to all engines. It is made once in a process and used within one event loop."""

    def __init__(
        self,
        *,
        timeout_s: float = 1800.0,
        connect_timeout_s: float = 10.0,
        pool_size: int = 1024,
        pool_idle_s: float = 3.0,
        api_key: str | None = None,
        authorizations: Mapping[str, str] | None = None,
    ) -> None:
        """Take the settings; no connection is made yet.

        Args:
            timeout_s: the longest that a generation may take, pauses included.
            connect_timeout_s: the longest that making a connection may take.
            pool_size: the number of connections at once; further calls wait for a free one.
            pool_idle_s: how long an unused connection is kept.
            api_key: sent to engines as a bearer token.
            authorizations: by base URL, the ``Authorization`` header that is sent in place of it.
        """
        self.timeout_s = timeout_s
        self._authorizations = tuple((authorizations or {}).items())
        own = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._connections, self._large_connections = (
            _Connections(headers=own, connect_timeout_s=connect_timeout_s, pool_size=pool_size, idle_s=pool_idle_s)
            for _ in range(2)
        )
        self._thread = LoopThread("large replies")
        self._scheduler = LargeReplyScheduler()

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
        """Open a call, for a caller who reads the body as it comes. Failures while reading are engine errors too."""
        total_s = self.timeout_s if timeout_s is None else timeout_s
        own = self._authorize(url, headers)
        async with self._connections.stream(method, url, body=body, headers=own, timeout_s=total_s) as response:
            yield response

    async def call(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Iterable[tuple[str, str]] = (),
        timeout_s: float | None = None,
    ) -> HttpReply:
        """Make a call and read its whole reply, whatever its status.

        Raises:
            EngineError: there was no connection (``facts["accepted"]`` is False), or the reply broke off.
            EngineTimeoutError: the reply was not complete in time.
        """
        async with self.stream(method, url, body=body, headers=headers, timeout_s=timeout_s) as response:
            return _build_reply(response, url, await response.read())

    async def call_into(
        self, sink: BodySink, url: str, *, body: bytes, headers: Iterable[tuple[str, str]] = (), is_large: bool = False
    ) -> HttpReply:
        """Make a POST, and give the reply's body to a sink as it comes in, whatever its status.

        Args:
            sink: takes the body. Until the call is over it is used by one thread, another one where the reply is large.
            url: the address of the route.
            body: the request's body.
            headers: the request's headers.
            is_large: True if many megabytes are expected, which are read in a thread, so that other calls do not wait.

        Raises:
            EngineError: there was no connection, or the reply broke off.
            EngineTimeoutError: the reply was not complete in time.
        """
        if is_large:
            return await self._thread.run(lambda: self._call_large(sink, url, body, headers))
        async with self.stream("POST", url, body=body, headers=headers) as response:
            await feed_chunks(response, sink)
            return _build_reply(response, url, sink.text)

    async def _call_large(self, sink: BodySink, url: str, body: bytes, headers: Iterable[tuple[str, str]]) -> HttpReply:
        # The library's own timeout ends where a body is taken off its connection.
        limit_s = self.timeout_s
        async with (
            self._large_connections.stream(
                "POST", url, body=body, headers=self._authorize(url, headers), timeout_s=limit_s
            ) as response,
            asyncio.timeout(limit_s),
        ):
            await feed_body(response, sink, self._scheduler)
            return _build_reply(response, url, sink.text)

    def _authorize(self, url: str, headers: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
        """Add the authorization of the server that the URL belongs to."""
        for base, value in self._authorizations:
            if url.startswith(base) and url[len(base) : len(base) + 1] in ("", "/", "?"):
                return (*headers, ("authorization", value))
        return headers

    async def post_json(self, url: str, body: bytes, *, timeout_s: float | None = None) -> HttpReply:
        """Make a POST with a JSON body, and read the whole reply."""
        return await self.call("POST", url, body=body, headers=JSON_HEADERS.items(), timeout_s=timeout_s)

    async def close(self) -> None:
        """Close all connections."""
        if self._thread.is_running:
            await self._thread.run(self._large_connections.close)
            await self._thread.close()
        await self._connections.close()


def _build_reply(response: aiohttp.ClientResponse, url: str, body: bytes | bytearray) -> HttpReply:
    pairs = tuple((str(name), str(value)) for name, value in response.headers.items())
    return HttpReply(url=url, status=response.status, headers=pairs, body=body)
