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
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from turnkeeper.client.base import ClientBase
from turnkeeper.client.body import drop_none, spell_value
from turnkeeper.client.handle import SessionHandle
from turnkeeper.client.requester import Reply, Transport
from turnkeeper.client.retry import Fate, Retry, judge
from turnkeeper.client.workers import rank_urls
from turnkeeper.errors import (
    RequestError,
    SessionNotFoundError,
    TurnkeeperError,
)
from turnkeeper.ids import SessionId, build_session_id, find_key_session, parse_session_id
from turnkeeper.jsontypes import JsonObject

if TYPE_CHECKING:
    pass

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


class SessionClient(ClientBase):
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
        body = drop_none({**options, "scopes": [scopes] if isinstance(scopes, str) else scopes})
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
        """Hold new turns back, at every worker, while the weights are updated.

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
        """Continue turns, at every worker: ``POST /engine/continue``.

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


class AgentClient(ClientBase):
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


def _check_id(text: str) -> SessionId:
    session_id = parse_session_id(text)
    if session_id is None:
        raise RequestError(
            f"a session id is expected, 32 lower-case hexadecimal digits, got {text[:64]!r}", param="session_id"
        )
    return session_id
