"""Where sessions are read from: a server, a store, a payload file, a folder of them. The target tells which is meant.

To add a source: implement `SessionSource`, and add the function that recognises its targets to `SOURCES`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from turnkeeper.errors import ConfigError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.views.payload import PayloadFolder
from turnkeeper.views.server import Elsewhere, ServerSource, find_server_url
from turnkeeper.views.session import ShownSession

STORE_FILE = "store.json"
"""What every store has in its folder; the store's own name for it is `turnkeeper.store.folder.MANIFEST`."""


class SessionSource(Protocol):
    """Something that sessions are read from."""

    @property
    def has_turns_in_flight(self) -> bool:
        """True for a source that knows what is in flight, such as a server."""
        ...

    @property
    def elsewhere(self) -> Elsewhere | None:
        """Where the other sessions of a server are; None while nothing was read, and where this source has all."""
        ...

    def iter_rows(self, filters: Mapping[str, str]) -> Iterator[JsonObject]:
        """Iterate over the sessions, one row each, as ``GET /sessions`` shows them.

        Args:
            filters: query parameters of ``GET /sessions``, such as ``state``, ``phase``, ``order``, ``metadata.KEY``.

        Raises:
            TurnkeeperError: a filter means nothing to the source, or the source cannot be read.
        """
        ...

    def read_session(self, session_id: str) -> ShownSession:
        """Read one session with the content of its turns.

        Raises:
            SessionNotFoundError: there is no such session.
            TurnkeeperError: the source cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """What a source may need beside its target."""

    api_key: str | None = None
    """A key of the server: the admin's, or that of a session."""
    timeout_s: float = 30.0
    """The longest wait for one answer of a server."""


DEFAULTS = OpenOptions()


def _find_server(target: str, options: OpenOptions) -> SessionSource | None:
    url = find_server_url(target)
    return None if url is None else ServerSource(url, api_key=options.api_key, timeout_s=options.timeout_s)


def _find_payloads(target: str, options: OpenOptions) -> SessionSource | None:
    path = Path(target)
    return PayloadFolder(path) if path.exists() else None


def _find_store(target: str, options: OpenOptions) -> SessionSource | None:
    path = Path(target)
    if not (path / STORE_FILE).is_file():
        return None
    from turnkeeper.views.store import StoreSource  # brings SQLite and all of the service

    return StoreSource(path)


SOURCES: Sequence[Callable[[str, OpenOptions], SessionSource | None]] = (_find_store, _find_payloads, _find_server)
"""The kinds of sources, each as a function that returns the source of a target, or None where the target is of another
kind. The first that knows a target has it: a file named like a host is a file, and a folder with a store's file is a
store."""


def open_source(target: str, options: OpenOptions = OpenOptions()) -> SessionSource:
    """Open the source that a target names.

    Raises:
        ConfigError: the target is of no kind that is known.
    """
    for find in SOURCES:
        source = find(target, options)
        if source is not None:
            return source
    raise ConfigError(
        f"{target!r} is neither the URL of a server nor a file or folder that exists",
        hint="give http://HOST:PORT, the folder of a store, a samples payload, or a folder of payloads",
    )
