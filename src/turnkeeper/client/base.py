"""What the clients of a session server share: the addresses of its workers, and the search for a session's worker."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar

from turnkeeper.client.requester import Reply, Requester, Transport
from turnkeeper.client.retry import NO_RETRY, Fate, Retry, judge
from turnkeeper.client.transports import AiohttpTransport
from turnkeeper.client.workers import rank_urls
from turnkeeper.errors import (
    AuthenticationError,
    ConfigError,
    SessionExpiredError,
    SessionNotFoundError,
    TurnkeeperError,
)
from turnkeeper.jsontypes import JsonObject

T = TypeVar("T")


class ClientBase:
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


def _rank_failure(error: TurnkeeperError) -> int:
    """Rank the failure of a worker that was asked for a session: the lowest says most about the session."""
    if judge(error) is not Fate.FINAL:
        return 0
    if isinstance(error, SessionNotFoundError):
        return 1 if isinstance(error, SessionExpiredError) else 2
    return 3
