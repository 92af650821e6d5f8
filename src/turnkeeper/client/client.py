"""The client of a session server: open a session, point an agent at it, collect samples.

::

    async with SessionClient("http://127.0.0.1:30100").session() as session:
        await run_my_agent(base_url=session.base_url)        # any OpenAI client
        batch = await session.samples()

The session is deleted at the end of the block. One that is to outlive the block, or the process, is opened with
``create`` and found by its id, from wherever, with ``open``. Errors of the server are raised as the classes of
``turnkeeper.errors`` that it raised itself.

Where the server has keys, ``SessionClient`` takes the admin's key, and the agent gets the session's own,
``session.key``. ``AgentClient`` is for callers who have only that key.
"""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from turnkeeper.client.address import SessionAddress
from turnkeeper.client.body import spell_value
from turnkeeper.client.requester import Reply, Requester, Transport
from turnkeeper.client.retry import NO_RETRY, Fate, Retry, judge
from turnkeeper.client.transports import AiohttpTransport
from turnkeeper.client.workers import rank_urls
from turnkeeper.errors import (
    AuthenticationError,
    ConfigError,
    RequestError,
    SessionExpiredError,
    SessionNotFoundError,
    TurnkeeperError,
)
from turnkeeper.ids import SessionId, build_session_id, find_key_session, parse_session_id
from turnkeeper.jsontypes import JsonObject

if TYPE_CHECKING:
    from turnkeeper.samples import SampleBatch

T = TypeVar("T")

CLEANUP = Retry(attempts=2, total_s=5.0)
"""At the end of a block: a session that cannot be deleted now expires by itself."""


class SessionOptions(TypedDict, total=False):
    """What a session is opened with; None and what is left out take the server's options."""

    sampling_params: Mapping[str, Any] | None
    """Pins: sampling fields that win over what the agent sends."""
    metadata: Mapping[str, Any] | None
    """The caller's own data, kept with the session."""
    ttl_s: float | None
    """Seconds without a request after which the session expires."""
    history: str | None
    """``linear`` or ``tree``."""
    max_seq_len: int | None
    """Token limit of a path."""
    on_truncated: str | None
    """``close`` or ``bridge``: whether a turn that ended by length may be extended."""
    evaluation: bool | None
    """True for a session that is measured and not trained."""
    scopes: Sequence[str] | str | None
    """What the session's key opens beside turns: ``read``, ``collect``, ``delete``."""
    session_id: str | None
    """The session's id, 32 lower-case hexadecimal digits, drawn at random; the client draws one itself."""


class SessionHandle(SessionAddress):
    """A session of a server."""

    def __init__(self, requester: Requester, server_url: str, session_id: str, key: str | None) -> None:
        super().__init__(server_url, session_id, key)
        self._requester = requester

    async def samples(
        self,
        *,
        max_seq_len: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        rewards: Mapping[str, Any] | None = None,
    ) -> "SampleBatch":
        """Collect the session's training samples; the session stays open and repeating this gives the same.

        Numbers may be those of numpy or torch.

        Args:
            max_seq_len: cut every sample to so many tokens.
            metadata: comes back with the samples; its ``reward`` becomes the reward of each.
            rewards: rewards of single turns, a number or an object each, by the id of the reply that the agent got.
                That of a sample's last turn is the sample's own, in place of ``metadata["reward"]``.

        Raises:
            RequestError: a reward or another number is not finite, or a reward names no turn of the session.
            AssemblyError: the turns do not make samples.
            SessionNotFoundError: the session is gone.
        """
        from turnkeeper.samples import decode_samples

        return decode_samples(await self.samples_payload(max_seq_len=max_seq_len, metadata=metadata, rewards=rewards))

    async def samples_payload(
        self,
        *,
        max_seq_len: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        rewards: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Collect the session's training samples as the safetensors payload of the server, for files, queues and
        `decode_samples` later. Arguments and errors are those of `samples`.
        """
        body = _drop_none({"max_seq_len": max_seq_len, "metadata": metadata, "rewards": rewards})
        return (await self._requester.call("POST", f"{self.url}/samples", body)).body

    async def info(self) -> JsonObject:
        """Return the session as ``GET /sessions/{id}`` shows it: ``session_id``, ``records``, ``metadata``."""
        return (await self._requester.call("GET", self.url)).read_object()

    async def delete(self, *, retry: Retry | None = None) -> None:
        """End the session.

        Args:
            retry: how often the call is made again, in place of what the client was told.

        Raises:
            SessionNotFoundError: the session is gone already.
        """
        await self._requester.call("DELETE", self.url, done=SessionNotFoundError, retry=retry)


class _Client:
    """What every client of a session server has: the addresses of its workers, and a requester."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        api_key: str | None,
        timeout_s: float,
        retry: Retry | None,
        transport: Transport | None,
    ) -> None:
        self._urls = _parse_urls(url)
        self._requester = Requester(
            transport=transport or AiohttpTransport(timeout_s=timeout_s),
            retry=retry or Retry(),
            headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
        )

    async def __aenter__(self) -> Self:
        """Keep connections between calls, until the block ends."""
        await self._requester.transport.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections."""
        await self._requester.transport.__aexit__(*exc)

    def __repr__(self) -> str:
        """The addresses, without a key."""
        return f"<{type(self).__name__} {' '.join(self._urls)}>"

    async def _find_worker(self, session_id: str) -> str:
        """Find the worker that a session lives in.

        Raises:
            SessionNotFoundError: none has it.
        """

        async def look(url: str) -> str:
            await self._call_once("GET", f"{url}/sessions/{session_id}/v1")
            return url

        return await self._requester.repeat(
            lambda: self._ask_workers(session_id, look), what=f"looking for {session_id}"
        )

    async def _ask_workers(self, session_id: str, ask: Callable[[str], Awaitable[T]]) -> T:
        """Ask one worker after the other until one has the session.

        Raises:
            TurnkeeperError: none has it. A worker that could not be asked may have it, so its error comes first; then
                that of one which had the session.
        """
        failures: list[TurnkeeperError] = []
        for url in rank_urls(self._urls, session_id):
            try:
                return await ask(url)
            except TurnkeeperError as error:
                is_elsewhere = isinstance(error, SessionNotFoundError | AuthenticationError)
                if not is_elsewhere and judge(error) is Fate.FINAL:
                    raise
                failures.append(error)
        raise min(failures, key=_rank_failure)

    async def _call_once(self, method: str, url: str, body: JsonObject | None = None) -> Reply:
        return await self._requester.call(method, url, body, retry=NO_RETRY)


class SessionClient(_Client):
    """The client of a session server, for the trainer.

    ``async with`` keeps its connections between calls; without it each call makes its own.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout_s: float = 120.0,
        api_key: str | None = None,
        retry: Retry | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Prepare calls to a server; none is made yet.

        Args:
            url: the address of the server, such as ``http://127.0.0.1:30100``, or those of all its workers.
            timeout_s: the longest wait for one answer of the server; it does not limit the turns of agents.
            api_key: the admin's key, for servers that were started with keys.
            retry: how often calls are made again; None for the defaults of `Retry`.
            transport: carries the requests; None for aiohttp.

        Raises:
            ConfigError: there is no address, or it is none of http or https.
        """
        super().__init__(url, api_key=api_key, timeout_s=timeout_s, retry=retry, transport=transport)
        self._has_key = api_key is not None

    @asynccontextmanager
    async def session(self, **options: Unpack[SessionOptions]) -> AsyncGenerator[SessionHandle]:
        """Open a session and delete it at the end of the block.

        Args:
            options: what the session is opened with; see `SessionOptions`.

        Raises:
            RequestError: the server refuses one of these.
            CapacityError: there are as many sessions as there may be, and none ended while the client waited.
            ServerUnreachableError: nobody answers under the URL.
        """
        async with self:
            handle = await self.create(**options)
            try:
                yield handle
            finally:
                # The block's own error, or its samples, matter more than a session that is gone anyway.
                with suppress(TurnkeeperError):
                    await handle.delete(retry=CLEANUP)

    async def create(self, **options: Unpack[SessionOptions]) -> SessionHandle:
        """Open a session that stays open until it is deleted or expires. Arguments and errors are those of `session`.

        The client draws the id, so a request whose reply got lost is sent again and opens no second session. With
        several workers the id chooses one, and the next one where that is full or draining.
        """
        session_id = options.get("session_id") or build_session_id(os.urandom(16))
        scopes = options.get("scopes")
        body = _drop_none({**options, "scopes": [scopes] if isinstance(scopes, str) else scopes})
        return await self._requester.repeat(
            lambda: self._open_at_first(session_id, {**body, "session_id": session_id}), what=f"opening {session_id}"
        )

    async def _open_at_first(self, session_id: str, body: JsonObject) -> SessionHandle:
        """Open a session at the first worker that takes it."""
        failure: TurnkeeperError | None = None
        for url in rank_urls(self._urls, session_id):
            try:
                created = (await self._call_once("POST", f"{url}/sessions", body)).read_object("session_id")
            except TurnkeeperError as error:
                if judge(error) is not Fate.REFUSED:  # it may be open here
                    raise
                failure = failure or error
                continue
            return SessionHandle(self._requester, url, created["session_id"], created.get("key") or session_id)
        assert failure is not None
        raise failure

    async def open(self, session_id: str, *, key: str | None = None) -> SessionHandle:
        """Return the handle of a session that exists, whichever process opened it.

        Args:
            session_id: of the session.
            key: the key of its agent, where the caller was told it.

        Raises:
            SessionNotFoundError: there is no such session, or there is none any more.
        """
        known = _check_id(session_id)
        worker = await self._find_worker(known)
        return SessionHandle(self._requester, worker, known, key or (None if self._has_key else known))

    async def find(self, session_id: str) -> SessionHandle | None:
        """Return the handle of a session; None where there is no such session."""
        try:
            return await self.open(session_id)
        except SessionNotFoundError:
            return None

    async def delete(self, session_id: str) -> None:
        """End a session, whichever process opened it.

        Raises:
            SessionNotFoundError: there is no such session, or there is none any more.
        """
        known = _check_id(session_id)
        await self._requester.repeat(
            lambda: self._ask_workers(known, lambda url: self._call_once("DELETE", f"{url}/sessions/{known}")),
            what=f"deleting {known}",
            done=(SessionNotFoundError, Reply(url="", status=204, headers={}, body=b"")),
        )

    async def sessions(
        self, *, metadata: Mapping[str, Any] | None = None, **conditions: str | float
    ) -> AsyncGenerator[JsonObject]:
        """Iterate over the rows of ``GET /sessions``, of one worker after the other.

        Args:
            metadata: only sessions that were created with these values.
            conditions: the other parameters of the route by name, such as ``state="open"``, ``min_idle=60`` or
                ``order="created"``; ``limit`` is the size of a page, and does not end the iteration.

        Yields:
            A row, with ``server_url``, the address of the session's worker.

        Raises:
            RequestError: the server refuses a parameter.
        """
        from urllib.parse import urlencode

        asked = {name: spell_value(value) for name, value in conditions.items()}
        asked |= {f"metadata.{key}": spell_value(value) for key, value in (metadata or {}).items()}
        for url in self._urls:
            page: JsonObject = {"next": None}
            while True:
                query = urlencode(asked if page["next"] is None else {**asked, "after": page["next"]})
                page = (await self._requester.call("GET", f"{url}/sessions?{query}")).read_object("sessions", "next")
                for row in page["sessions"]:
                    yield {**row, "server_url": url}
                if page["next"] is None:
                    break

    async def health(self) -> JsonObject:
        """Return the server's health as ``GET /health`` shows it: of several workers, that of the first which is not
        well.

        Raises:
            ServerUnreachableError: one does not answer.
        """
        shown = [
            (await self._requester.call("GET", f"{url}/health", accepted=(503,))).read_object("status", "engine")
            for url in self._urls
        ]
        return next((each for each in shown if (each["status"], each["engine"]) != ("ok", "serving")), shown[0])

    async def pause(self, mode: str, *, forward: bool = False) -> list[JsonObject]:
        """Let new turns wait, at every worker, while the weights are updated.

        Args:
            mode: how the engines are paused: ``abort``, ``retract`` or ``in_place``.
            forward: True if the server pauses the engines as well, before anything changes here.

        Returns:
            What each worker says: ``{"state", "mode", "engines"}``.

        Raises:
            RequestError: the mode is none, or the engines are paused in another one.
            EngineError: an engine could not be paused.
            TurnkeeperError: a worker did not; those that were paused before it go on.
        """
        told: list[JsonObject] = []
        try:
            for url in self._urls:  # the engines of all workers are the same
                told.append(await self._control(url, "pause", {"mode": str(mode), "forward": forward and not told}))
        except TurnkeeperError:
            for url in self._urls[: len(told)]:
                with suppress(TurnkeeperError):
                    await self._control(url, "continue", {"forward": forward and url == self._urls[0]})
            raise
        return told

    async def resume(self, *, forward: bool = False) -> list[JsonObject]:
        """Let turns go on, at every worker: ``POST /engine/continue``.

        Args:
            forward: True if the server lets the engines go on first.

        Returns:
            What each worker says: ``{"state", "mode", "engines"}``.

        Raises:
            EngineError: an engine does not go on.
        """
        return [
            await self._control(url, "continue", {"forward": forward and url == self._urls[0]}) for url in self._urls
        ]

    async def abort(self) -> int:
        """End every turn in flight for good, at every worker. Sessions that exist take no further turns, and can still
        be collected.

        Returns:
            The number of these sessions.
        """
        told = [
            await self._requester.call("POST", f"{url}/engine/abort", {}, is_repeatable=False) for url in self._urls
        ]
        return sum(each.read_object("sessions")["sessions"] for each in told)

    async def _control(self, url: str, what: str, body: JsonObject) -> JsonObject:
        return (await self._requester.call("POST", f"{url}/engine/{what}", body)).read_object("state")


class AgentClient(_Client):
    """The client of a session server, for callers who have the key of one session.

    ::

        async with AgentClient(url, os.environ["TURNKEEPER_KEY"]).session() as session:
            await session.info()  # where the key has the scope: read, collect, delete
    """

    def __init__(
        self,
        url: str | Sequence[str],
        key: str,
        *,
        timeout_s: float = 120.0,
        retry: Retry | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Prepare calls to a server; none is made yet.

        Args:
            url: the address of the server, such as ``http://127.0.0.1:30100``, or those of all its workers.
            key: the key of the session; on a server without keys the session's id.
            timeout_s: the longest wait for one answer of the server.
            retry: how often calls are made again; None for the defaults of `Retry`.
            transport: carries the requests; None for aiohttp.

        Raises:
            RequestError: the text is not the key of a session.
            ConfigError: there is no address, or it is none of http or https.
        """
        session_id = find_key_session(key) or parse_session_id(key)
        if session_id is None:
            raise RequestError(
                "the key of a session is expected, tk-<session id>-<secret>, got something else",
                hint="POST /sessions returns it as key; SessionClient takes the admin's",
                param="key",
            )
        super().__init__(url, api_key=key, timeout_s=timeout_s, retry=retry, transport=transport)
        self._key, self._session_id = key, session_id

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[SessionHandle]:
        """Enter the session of the key, which stays open behind the block."""
        async with self:
            yield await self.open()

    async def open(self) -> SessionHandle:
        """Return the handle of the key's session.

        Raises:
            TurnkeeperError: there are several workers, and none knows the key.
        """
        url = self._urls[0] if len(self._urls) == 1 else await self._find_worker(self._session_id)
        return SessionHandle(self._requester, url, self._session_id, self._key)


def _parse_urls(given: str | Sequence[str]) -> tuple[str, ...]:
    urls = tuple(dict.fromkeys(url.rstrip("/") for url in ([given] if isinstance(given, str) else given)))
    wrong = next((url for url in urls if not _is_address(url)), None)
    if wrong is None and urls:
        return urls
    raise ConfigError(
        f"the address of a session server is expected, got {'none' if wrong is None else repr(wrong)}",
        hint="such as http://127.0.0.1:30100, or a list with that of each worker",
    )


def _is_address(url: str) -> bool:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port, or an IPv6 address, that is none
        return False


def _check_id(text: str) -> SessionId:
    session_id = parse_session_id(text)
    if session_id is None:
        raise RequestError(
            f"a session id is expected, 32 lower-case hexadecimal digits, got {text[:64]!r}", param="session_id"
        )
    return session_id


def _drop_none(fields: Mapping[str, Any]) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}


def _rank_failure(error: TurnkeeperError) -> int:
    """Rank the failure of a worker that was asked for a session: the lowest says most about the session."""
    if judge(error) is not Fate.FINAL:
        return 0
    if isinstance(error, SessionNotFoundError):
        return 1 if isinstance(error, SessionExpiredError) else 2
    return 3
