"""The client of a session server: open a session, point an agent at it, collect samples.

::

    async with SessionClient("http://127.0.0.1:30100").session() as session:
        await run_my_agent(base_url=session.base_url)        # any OpenAI client
        batch = await session.samples()

The session is deleted at the end of the block. Errors of the server are raised as the classes of ``turnkeeper.errors``
that it raised itself.

Where the server has keys, ``SessionClient`` takes the admin's key, and the agent gets the session's own,
``session.key``. ``AgentClient`` is for callers who have only that key.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import orjson

from turnkeeper.client.body import encode_body
from turnkeeper.client.failure import parse_failure
from turnkeeper.errors import RequestError, ServerUnreachableError, TurnkeeperError
from turnkeeper.ids import find_key_session, parse_session_id
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples.wire import SampleBatch, decode_samples


class SessionHandle:
    """An open session of a server."""

    def __init__(self, http: aiohttp.ClientSession, url: str, session_id: str, key: str | None = None) -> None:
        self._http = http
        self._url = f"{url}/sessions/{session_id}"
        self.session_id = session_id
        """32 hexadecimal digits."""
        self.key = key or session_id
        """The API key of the session's agent, which opens the session and nothing else; on a server without
        keys the session's id. Whoever has it may take turns: keep it out of logs."""

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI clients; it ends in ``/v1``."""
        return f"{self._url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """The base URL for Anthropic clients, which add ``/v1`` themselves."""
        return self._url

    async def samples(
        self,
        *,
        max_seq_len: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        rewards: Mapping[str, Any] | None = None,
    ) -> SampleBatch:
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
        given = {"max_seq_len": max_seq_len, "metadata": metadata, "rewards": rewards}
        body = {name: value for name, value in given.items() if value is not None}
        return await request(self._http, "POST", f"{self._url}/samples", body)

    async def info(self) -> JsonObject:
        """Return the session as ``GET /sessions/{id}`` shows it: ``session_id``, ``records``, ``metadata``."""
        return orjson.loads(await request(self._http, "GET", self._url))

    async def delete(self) -> None:
        """End the session.

        Raises:
            SessionNotFoundError: the session is gone already.
        """
        await request(self._http, "DELETE", self._url)


class SessionClient:
    """The client of a session server, for the trainer."""

    def __init__(self, url: str, *, timeout_s: float = 120.0, api_key: str | None = None) -> None:
        """Prepare calls to a server; none is made yet.

        Args:
            url: the address of the server, such as ``http://127.0.0.1:30100``.
            timeout_s: the longest wait for one answer of the server; it does not limit the turns of agents.
            api_key: the admin's key, for servers that were started with keys.
        """
        self._url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}

    @asynccontextmanager
    async def session(
        self,
        *,
        sampling_params: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        ttl_s: float | None = None,
        history: str | None = None,
        max_seq_len: int | None = None,
        on_truncated: str | None = None,
        evaluation: bool | None = None,
        scopes: Sequence[str] | None = None,
    ) -> AsyncGenerator[SessionHandle]:
        """Open a session and delete it at the end of the block.

        Args:
            sampling_params: pins: sampling fields that win over what the agent sends.
            metadata: the caller's own data, kept with the session.
            ttl_s: seconds without a request after which the session expires.
            history: ``linear`` or ``tree``; None takes the server's.
            max_seq_len: token limit of a path.
            on_truncated: ``close`` or ``bridge``: whether a turn that ended by length may be extended; None takes the
                server's.
            evaluation: True for a session that is measured and not trained.
            scopes: what the session's key opens beside turns: ``read``, ``collect``, ``delete``.

        Raises:
            RequestError: the server refuses one of these.
            ServerUnreachableError: nobody answers under the URL.
        """
        given = {
            "sampling_params": sampling_params,
            "metadata": metadata,
            "ttl_s": ttl_s,
            "history": history,
            "max_seq_len": max_seq_len,
            "on_truncated": on_truncated,
            "evaluation": evaluation,
            "scopes": None if scopes is None else [scopes] if isinstance(scopes, str) else list(scopes),
        }
        body = {name: value for name, value in given.items() if value is not None}
        async with aiohttp.ClientSession(timeout=self._timeout, headers=self._headers) as http:
            created = orjson.loads(await request(http, "POST", f"{self._url}/sessions", body))
            handle = SessionHandle(http, self._url, created["session_id"], created.get("key"))
            try:
                yield handle
            finally:
                # The block's own error, or its samples, matter more than a session that is gone anyway.
                with suppress(TurnkeeperError):
                    await handle.delete()

    async def health(self) -> JsonObject:
        """Return the server's health as ``GET /health`` shows it."""
        async with aiohttp.ClientSession(timeout=self._timeout, headers=self._headers) as http:
            return orjson.loads(await request(http, "GET", f"{self._url}/health"))


class AgentClient:
    """The client of a session server, for callers who have the key of one session.

    ::

        async with AgentClient(url, os.environ["TURNKEEPER_KEY"]).session() as session:
            await session.info()  # where the key has the scope: read, collect, delete
    """

    def __init__(self, url: str, key: str, *, timeout_s: float = 120.0) -> None:
        """Prepare calls to a server; none is made yet.

        Args:
            url: the address of the server, such as ``http://127.0.0.1:30100``.
            key: the key of the session; on a server without keys the session's id.
            timeout_s: the longest wait for one answer of the server.

        Raises:
            RequestError: the text is not the key of a session.
        """
        session_id = find_key_session(key) or parse_session_id(key)
        if session_id is None:
            raise RequestError(
                "the key of a session is expected, tk-<session id>-<secret>, got something else",
                hint="POST /sessions returns it as key; SessionClient takes the admin's",
                param="key",
            )
        self._url, self._key, self._session_id = url.rstrip("/"), key, session_id
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[SessionHandle]:
        """Open the session of the key, which stays open behind the block."""
        headers = {"authorization": f"Bearer {self._key}"}
        async with aiohttp.ClientSession(timeout=self._timeout, headers=headers) as http:
            yield SessionHandle(http, self._url, self._session_id, self._key)


async def request(http: aiohttp.ClientSession, method: str, url: str, body: JsonObject | None = None) -> bytes:
    """Make one call to the server, and return the body of its answer.

    Raises:
        RequestError: the body cannot be written as JSON.
        TurnkeeperError: the server answered with this error.
        ServerUnreachableError: the server did not answer.
    """
    data = None if body is None else encode_body(body)
    headers = {"content-type": "application/json"} if data is not None else {}
    try:
        async with http.request(method, url, data=data, headers=headers) as response:
            payload = await response.read()
            if response.status < 400:
                return payload
            raise parse_failure(response.status, payload)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ServerUnreachableError(
            f"no answer from {url}: {error or type(error).__name__}", hint="is the session server running?", url=url
        ) from error
