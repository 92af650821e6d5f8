"""The client for code without an event loop: scripts, notebooks, workers that block.

::

    with SyncSessionClient("http://127.0.0.1:30100").session() as session:
        run_my_agent(base_url=session.base_url)
        batch = session.samples()

Its methods are those of the asyncio client, run over a transport that blocks: `turnkeeper.client.client` says what
each does, takes and raises. Several threads may share a client.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from turnkeeper.client.address import SessionAddress
from turnkeeper.client.client import CLEANUP, AgentClient, SessionClient, SessionOptions
from turnkeeper.client.handle import SessionHandle
from turnkeeper.client.retry import Retry
from turnkeeper.client.transports import Urllib3Transport
from turnkeeper.errors import TurnkeeperError

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Take a coroutine to its end that never suspends, since its transport blocks."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("the transport of a blocking client must not suspend")


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Make the blocking form of a method, for a class that holds the asyncio form as ``_form``."""

    @wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(method(self._form, *args, **kwargs))

    return call


def iterating(method: Callable[Concatenate[A, P], AsyncGenerator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Make the blocking form of a method that iterates."""

    @wraps(method)
    def iterate(self: Any, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(self._form, *args, **kwargs)
        with suppress(StopAsyncIteration):
            while True:
                yield run(items.__anext__())

    return iterate


class SyncSessionHandle(SessionAddress):
    """A session of a server; see `SessionHandle`."""

    def __init__(self, form: SessionHandle) -> None:
        super().__init__(form.server_url, form.session_id, form.known_key)
        self._form = form

    samples = blocking(SessionHandle.samples)
    samples_payload = blocking(SessionHandle.samples_payload)
    ack = blocking(SessionHandle.ack)
    info = blocking(SessionHandle.info)
    delete = blocking(SessionHandle.delete)


class SyncSessionClient:
    """The client of a session server, for the trainer; see `SessionClient`.

    ``with`` closes its connections at the end of the block.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout_s: float = 120.0,
        api_key: str | None = None,
        retry: Retry | None = None,
    ) -> None:
        """Prepare calls to a server; none is made yet.

        Args:
            url: the address of the server, such as ``http://127.0.0.1:30100``, or those of all its workers.
            timeout_s: the longest wait for the next piece of an answer of the server.
            api_key: the admin's key, for servers that were started with keys.
            retry: how often calls are made again; None for the defaults of `Retry`.

        Raises:
            ConfigError: there is no address, or it is none of http or https.
        """
        transport = Urllib3Transport(timeout_s=timeout_s)
        self._form = SessionClient(url, api_key=api_key, retry=retry, transport=transport)

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the connections."""
        run(self._form.__aexit__(*exc))

    def __repr__(self) -> str:
        """The addresses, without a key."""
        return f"<Sync{repr(self._form)[1:]}"

    @contextmanager
    def session(self, **options: Unpack[SessionOptions]) -> Generator[SyncSessionHandle]:
        """Open a session and delete it at the end of the block; see `SessionClient.session`."""
        handle = self.create(**options)
        try:
            yield handle
        finally:
            with suppress(TurnkeeperError):
                handle.delete(retry=CLEANUP)

    def create(self, **options: Unpack[SessionOptions]) -> SyncSessionHandle:
        """Open a session that stays open; see `SessionClient.create`."""
        return SyncSessionHandle(run(self._form.create(**options)))

    def open(self, session_id: str, *, key: str | None = None) -> SyncSessionHandle:
        """Return the handle of a session that exists; see `SessionClient.open`."""
        return SyncSessionHandle(run(self._form.open(session_id, key=key)))

    def find(self, session_id: str) -> SyncSessionHandle | None:
        """Return the handle of a session, or None; see `SessionClient.find`."""
        found = run(self._form.find(session_id))
        return None if found is None else SyncSessionHandle(found)

    delete = blocking(SessionClient.delete)
    sessions = iterating(SessionClient.sessions)
    health = blocking(SessionClient.health)
    pause = blocking(SessionClient.pause)
    resume = blocking(SessionClient.resume)
    abort = blocking(SessionClient.abort)


class SyncAgentClient:
    """The client of a session server, for callers who have the key of one session; see `AgentClient`."""

    def __init__(
        self, url: str | Sequence[str], key: str, *, timeout_s: float = 120.0, retry: Retry | None = None
    ) -> None:
        """Prepare calls to a server; none is made yet. Arguments and errors are those of `AgentClient`."""
        self._form = AgentClient(url, key, retry=retry, transport=Urllib3Transport(timeout_s=timeout_s))

    @contextmanager
    def session(self) -> Generator[SyncSessionHandle]:
        """Enter the session of the key, which stays open behind the block."""
        try:
            yield self.open()
        finally:
            run(self._form.__aexit__())

    def open(self) -> SyncSessionHandle:
        """Return the handle of the key's session; see `AgentClient.open`."""
        return SyncSessionHandle(run(self._form.open()))
