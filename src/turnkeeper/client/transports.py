"""The transports of the client: aiohttp for asyncio, urllib3 for code that blocks.

Both libraries are imported when the first request is sent, so that importing the client costs neither. Requests go
straight to the server: no proxy of the environment is asked, and no redirect is followed. A transport that is pickled
arrives in the other process without connections.
"""

import asyncio
import os
import time
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, Self

from turnkeeper.client.requester import CONNECT_TIMEOUT_S, Reply, Request, build_unreachable

if TYPE_CHECKING:
    import aiohttp
    import urllib3


class AiohttpTransport:
    """Sends requests with aiohttp, within one event loop."""

    def __init__(self, *, timeout_s: float) -> None:
        """Open no connection yet.

        Args:
            timeout_s: the longest that one request may take.
        """
        self._timeout_s = timeout_s
        self._users = 0
        self._http: aiohttp.ClientSession | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), timeout_s=self._timeout_s), ()

    async def __aenter__(self) -> Self:
        self._users += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        http = self._http
        if not self._users and http is not None:
            self._http = None
            await http.close()

    async def send(self, request: Request) -> Reply:
        """Send one request; see `Transport.send`."""
        import aiohttp

        async with self:
            # aiohttp writes bytes in one piece and a file bit by bit, so that a large body does not hold up the loop.
            data = None if request.body is None else BytesIO(request.body)
            try:
                async with self._open().request(
                    request.method, request.url, data=data, headers=request.headers, allow_redirects=False
                ) as response:
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    body = await response.read()
                    return Reply(url=request.url, status=response.status, headers=headers, body=body)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                is_final = isinstance(error, aiohttp.ClientSSLError)
                raise build_unreachable(request.url, error, is_sent=False, is_final=is_final) from error
            except (aiohttp.ClientError, TimeoutError) as error:
                raise build_unreachable(request.url, error, is_sent=True) from error

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the loop."""
        await asyncio.sleep(seconds)

    def _open(self) -> "aiohttp.ClientSession":
        import aiohttp

        if self._http is None:
            connect_s = min(CONNECT_TIMEOUT_S, self._timeout_s)
            self._http = aiohttp.ClientSession(
                # A trainer collects many sessions at once; how many is its own choice.
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=connect_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=1 << 20,  # a payload with routing rows has many megabytes: a quarter faster than by 64 KiB
            )
        return self._http


class Urllib3Transport:
    """Sends requests with urllib3. Its methods block and never suspend, so `run` takes them to their end.

    Several threads may use it. A forked process begins with connections of its own.
    """

    def __init__(self, *, timeout_s: float) -> None:
        """Open no connection yet.

        Args:
            timeout_s: the longest wait for the next piece of an answer.
        """
        self._timeout_s = timeout_s
        self._pool: tuple[int, urllib3.PoolManager] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), timeout_s=self._timeout_s), ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool[1].clear()

    async def send(self, request: Request) -> Reply:
        """Send one request; see `Transport.send`."""
        from urllib3 import exceptions

        try:
            response = self._open().request(
                request.method, request.url, body=request.body, headers=request.headers, retries=False, redirect=False
            )
        except (exceptions.NewConnectionError, exceptions.ConnectTimeoutError, exceptions.SSLError) as error:
            is_final = isinstance(error, exceptions.SSLError)
            raise build_unreachable(request.url, error, is_sent=False, is_final=is_final) from error
        except (exceptions.HTTPError, OSError) as error:
            raise build_unreachable(request.url, error, is_sent=True) from error
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Reply(url=request.url, status=response.status, headers=headers, body=response.data)

    async def sleep(self, seconds: float) -> None:
        """Block for a while."""
        time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this transport is for

    def _open(self) -> "urllib3.PoolManager":
        import urllib3

        pool, process = self._pool, os.getpid()
        if pool is None or pool[0] != process:
            connect_s = min(CONNECT_TIMEOUT_S, self._timeout_s)
            made = urllib3.PoolManager(maxsize=32, timeout=urllib3.Timeout(connect=connect_s, read=self._timeout_s))
            self._pool = pool = (process, made)
        return pool[1]
