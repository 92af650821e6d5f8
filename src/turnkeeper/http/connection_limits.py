"""Limits of connections before an application sees a request: time, size, and the number of connections of a peer.

All connections of a server share one set of limits. A connection asks for its limits here and reports what it refuses,
so that a refusal is counted and has the form of the caller's own API.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from turnkeeper.dialects import DIALECTS, Dialect
from turnkeeper.errors import CapacityError, HeaderTooLargeError, RequestTimeoutError, TurnkeeperError
from turnkeeper.headers import JSON_HEADERS, REQUEST_ID
from turnkeeper.http.exchange import choose_request_id
from turnkeeper.http.failure import render_control_error
from turnkeeper.http.headers import build_error_headers

HEAD_BYTES = 64 << 10
"""Request line and headers together, and trailers. Clients send one or two thousand bytes, behind many proxies some
more."""

MAX_HEADERS = 256
"""Headers of a request."""

PROGRESS_BYTES = 16 << 10
"""The bytes of a body that must arrive within each read timeout, unless the body ends."""

REFUSED_PEER_S = 1.0
"""How long a connection that is one too many may take to say what it wants, so that it can be told no."""

LINGER_S = 2.0
"""How long a refused client may go on sending before its connection is cut: a reply could be lost with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A refusal as bytes for the wire."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of connections, with the number of connections of each peer."""

    read_timeout_s: float = 60.0
    max_peer_connections: int = 16384
    on_error: Callable[[TurnkeeperError], None] = field(default=lambda _: None)
    """Told of every refusal."""
    _peers: Counter[str] = field(default_factory=Counter[str])

    def enter(self, peer: str) -> bool:
        """Count a connection; False where the peer has too many."""
        self._peers[peer] += 1
        return self._peers[peer] <= self.max_peer_connections

    def leave(self, peer: str) -> None:
        """Count a connection no longer."""
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]

    def refuse(self, error: TurnkeeperError, path: str, sent_id: str | None = None) -> Refusal:
        """Count a refusal and put it into the form of whoever asked for the path.

        Args:
            error: what is refused, and why.
            path: the path of the request, as far as it is known.
            sent_id: the ``X-Request-Id`` of the client, where it has arrived.
        """
        self.on_error(error)
        dialect = find_dialect(path)
        body = dialect.render_error(error) if dialect else render_control_error(error)
        return Refusal(
            status=dialect.choose_status(error) if dialect else error.http_status,
            headers=(
                *JSON_HEADERS.items(),
                *build_error_headers(error).items(),
                (REQUEST_ID, choose_request_id(sent_id)),
            ),
            body=body,
        )

    def build_peer_error(self, peer: str) -> TurnkeeperError:
        """Build the refusal of a connection beyond the limit of its address."""
        return CapacityError(
            f"{peer} has {self.max_peer_connections} connections, which is the limit of one address",
            hint="close those that are idle, or raise --max-peer-connections",
            limit="max_peer_connections",
        )

    def build_timeout_error(self, awaited: str) -> TurnkeeperError:
        """Build the refusal of a request that did not arrive in time."""
        return RequestTimeoutError(
            f"{awaited} within {self.read_timeout_s:g} s did not come", hint="--read-timeout raises it"
        )


def build_head_error() -> TurnkeeperError:
    """Build the refusal of a request whose head is too large."""
    return HeaderTooLargeError(
        f"request line and headers, or trailers, may have {HEAD_BYTES} bytes and {MAX_HEADERS} headers, and have more",
        hint="what is long belongs into the body; a session's metadata into POST /sessions",
    )


def find_dialect(path: str) -> Dialect | None:
    """Find the dialect of a path; None for paths of the control plane."""
    place = path.partition("?")[0]
    named = ((each, (each.path, each.count_path)) for each in DIALECTS)
    return next((each for each, paths in named if any(p and place.endswith(f"/{p}") for p in paths)), None)
