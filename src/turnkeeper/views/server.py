"""Sessions of a running server, over HTTP."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from turnkeeper.client.requester import Requester
from turnkeeper.client.retry import NO_RETRY
from turnkeeper.client.sync import run
from turnkeeper.client.transports import Urllib3Transport
from turnkeeper.errors import SessionNotFoundError, TurnkeeperError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples.sample import OWN_KEY
from turnkeeper.views.message import describe_message
from turnkeeper.views.session import ShownSession, ShownToken, ToldMessage, TurnContent, read_session

PAGE_SIZE = 200
"""How many rows are asked for at a time."""

_HOST_AND_PORT = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}")


def find_server_url(target: str) -> str | None:
    """Find the URL of a server in a target: one with a scheme, or ``HOST:PORT``; None where it is something else."""
    if target.startswith(("http://", "https://")):
        return target.rstrip("/")
    return f"http://{target}" if _HOST_AND_PORT.fullmatch(target) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Where a server keeps the sessions that one of its processes does not hold."""

    worker: int
    """The number of the process that was asked, from 0."""
    workers: int
    """How many processes there are."""
    urls: Sequence[str]
    """The addresses of the others, as far as they can be told from that of this one."""

    def __str__(self) -> str:
        """The sentence that says so."""
        said = f"worker {self.worker} of {self.workers} answered, and each knows its own sessions alone"
        return f"{said}: ask " + (
            ", ".join(self.urls) or "each by its own address, which the server prints at its start"
        )


class ServerSource:
    """The sessions of one server process.

    Attributes:
        elsewhere: where the other sessions of the server are; None while no row was read, and where one process has
            all of them.
    """

    has_turns_in_flight = True

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 30.0) -> None:
        """Prepare calls to a server; none is made yet.

        Args:
            url: the server's, without a slash at its end.
            api_key: a key of the server, or of the session that is to be read.
            timeout_s: the longest wait for the next piece of an answer.
        """
        self._url = url
        self.elsewhere: Elsewhere | None = None
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        transport = Urllib3Transport(timeout_s=timeout_s)
        self._requester = Requester(transport=transport, retry=NO_RETRY, headers=headers)

    def iter_rows(self, filters: Mapping[str, str]) -> Iterator[JsonObject]:
        """Iterate over the rows of ``GET /sessions``, page by page as they are asked for."""
        after: str | None = None
        while True:
            query = {**filters, "limit": str(PAGE_SIZE)} | ({} if after is None else {"after": after})
            page = self._get(f"/sessions?{urlencode(query)}", "sessions", "next", "worker")
            self.elsewhere = find_elsewhere(self._url, page["worker"])
            yield from page["sessions"]
            after = page["next"]
            if after is None:
                return

    def read_session(self, session_id: str) -> ShownSession:
        """Read one session with the content of every branch."""
        path = f"/sessions/{quote(session_id, safe='')}?branches=1"
        try:
            return read_answer(self._get(path, "session_id", "metadata"))
        except SessionNotFoundError as error:
            raise type(error)(error.message, hint=error.hint or self._find_hint(), **error.facts) from error

    def _find_hint(self) -> str:
        """Say where a session may be that is not here: at another process, if there are several."""
        try:
            next(self.iter_rows({}), None)
        except TurnkeeperError:  # the key opens a session, not the list
            return "each process of --session-server-workers knows its own sessions alone: ask the others as well"
        return f"turnkeeper sessions {self._url}" if self.elsewhere is None else str(self.elsewhere)

    def _get(self, path: str, *members: str) -> JsonObject:
        """Get a JSON object that has these members."""
        return run(self._requester.call("GET", f"{self._url}{path}")).read_object(*members)


def find_elsewhere(url: str, worker: JsonObject) -> Elsewhere | None:
    """Find where the sessions are that one process of a server does not hold; None where it holds all.

    Args:
        url: the address under which the process answered.
        worker: what it said of itself.
    """
    number, ports = worker["number"], worker["ports"]
    if len(ports) == 1:
        return None
    place = urlsplit(url)
    is_direct = place.port is not None and place.port == ports[number]  # else something stands in between
    host = place.netloc.rpartition(":")[0]
    others = [port for index, port in enumerate(ports) if index != number and port is not None] if is_direct else []
    urls = tuple(f"{place.scheme}://{host}:{port}{place.path}" for port in others)
    return Elsewhere(worker=number, workers=len(ports), urls=urls)


def read_answer(shown: JsonObject) -> ShownSession:
    """Read what ``GET /sessions/{id}?branches=1`` answers.

    Raises:
        PayloadError: the answer is not of a session of this server.
    """
    turns: list[JsonObject] = shown["metadata"].get(OWN_KEY, {}).get("turns", [])
    contents = {turn["id"]: _read_content(turn) for turn in turns if "completion_ids" in turn}
    return read_session(shown["session_id"], shown["metadata"], contents)


def _read_content(turn: JsonObject) -> TurnContent:
    versions: list[JsonObject] = turn["versions"]
    by_place = [each["version"] for each in versions for _ in range(each["end"] - each["start"])]
    pairs = zip(turn["completion_ids"], turn["logprobs"], by_place, strict=True)
    tokens = (
        ShownToken(id=token_id, logprob=logprob, version=version, trained=None, masked="")
        for token_id, logprob, version in pairs
    )
    messages: list[Mapping[str, Any]] = turn["messages"]
    return TurnContent(
        told=tuple(
            ToldMessage(role=str(message.get("role", "")), text=describe_message(message)) for message in messages
        ),
        text=describe_message(turn["message"]),
        tokens=tuple(tokens),
    )
