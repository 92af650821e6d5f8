"""The two forms of the client, so that one test asks both."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from turnkeeper.client import SessionClient, SyncSessionClient, SyncSessionHandle
from turnkeeper.client.requester import Reply, Request, Transport, build_unreachable

MakeClient: TypeAlias = Callable[..., Any]


class Threaded:
    """A blocking client, or its session, in the form of asyncio's: every call runs in a thread of its own."""

    def __init__(self, form: Any) -> None:
        self._form = form

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._form, name)
        if not callable(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = await asyncio.to_thread(found, *args, **kwargs)
            return Threaded(result) if isinstance(result, SyncSessionHandle) else result

        return call

    async def sessions(self, **options: Any) -> AsyncGenerator[Any]:
        for row in await asyncio.to_thread(lambda: list(self._form.sessions(**options))):
            yield row

    @asynccontextmanager
    async def session(self, **options: Any) -> AsyncGenerator["Threaded"]:
        block = self._form.session(**options)
        handle = await asyncio.to_thread(block.__enter__)
        try:
            yield Threaded(handle)
        finally:
            await asyncio.to_thread(block.__exit__, None, None, None)

    def __repr__(self) -> str:
        return repr(self._form)


def make_threaded(*args: Any, **options: Any) -> Threaded:
    return Threaded(SyncSessionClient(*args, **options))


FORMS: dict[str, MakeClient] = {"asyncio": SessionClient, "blocking": make_threaded}


class LossyTransport:
    """Sends every request, and loses the replies of the first ones on their way back."""

    def __init__(self, inner: Transport, *, losses: int) -> None:
        self._inner = inner
        self.losses = losses
        self.sent: list[tuple[str, str]] = []
        """Method and path of every request."""

    async def __aenter__(self) -> "LossyTransport":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._inner.__aexit__(*exc)

    async def send(self, request: Request) -> Reply:
        self.sent.append((request.method, request.url.partition("/sessions")[1] or request.url))
        reply = await self._inner.send(request)
        if self.losses:
            self.losses -= 1
            raise build_unreachable(request.url, ConnectionResetError("lost"), is_sent=True)
        return reply

    async def sleep(self, seconds: float) -> None:
        pass
