"""The backend that routes call, and the options that routes follow; ``turnkeeper.server`` builds both."""

from collections.abc import Callable
from dataclasses import dataclass

from turnkeeper.choices import OnImage
from turnkeeper.clock import Clock
from turnkeeper.dialects import Dialect
from turnkeeper.errors import TurnkeeperError
from turnkeeper.http.exchange import Exchange
from turnkeeper.metrics import Metrics
from turnkeeper.passthrough import OpenRoute
from turnkeeper.rendering import Tokenizer
from turnkeeper.service.control import EngineControl
from turnkeeper.service.health import Health
from turnkeeper.service.lifecycle import Lifecycle
from turnkeeper.service.relay import Relay
from turnkeeper.service.requests import RequestsInFlight
from turnkeeper.service.service import SessionService
from turnkeeper.tasks import Spawn
from turnkeeper.telemetry import ReportStream, RequestFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """The options that routes follow."""

    max_body_bytes: int
    """The most bytes of any body."""
    max_turn_body_bytes: int
    """The most bytes of a body that an agent sends."""
    stream_header_delay_s: float
    """How long the status line of a stream is held back."""
    stream_heartbeat_s: float
    """How long a stream may be silent before a heartbeat is sent."""
    forward_fields: tuple[str, ...]
    """Names of unknown fields that are passed on to the engine."""
    on_image: OnImage
    """The treatment of images in a request."""
    pass_through: frozenset[OpenRoute]
    """Routes of engines that are opened beside those of the built-in list."""
    allow_unrecorded: bool
    """True where engine routes that generate tokens without a record are passed through."""
    model_names: tuple[str, ...]
    """The names that ``/v1/models`` lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Everything behind the routes."""

    sessions: SessionService
    requests: RequestsInFlight
    relay: Relay
    control: EngineControl
    health: Health
    lifecycle: Lifecycle
    metrics: Metrics
    reports: ReportStream
    clock: Clock
    tokenizer: Tokenizer
    spawn: Spawn
    """Begins background tasks, such as the watch for a hang-up."""
    token_bytes: Callable[[int], bytes]
    """A source of random bytes that nobody can guess, as ``secrets.token_bytes``."""
    options: HttpOptions

    def report_failure(self, exchange: Exchange, error: TurnkeeperError, dialect: Dialect | None = None) -> None:
        """Count and publish a request that is answered with an error, in the form of a dialect or of the control
        plane."""
        self.metrics.record_error(error)
        self.reports.publish(
            RequestFailed(
                at=self.clock.unix(),
                method=exchange.method,
                path=exchange.path,
                status=dialect.choose_status(error) if dialect else error.http_status,
                error=error,
                request_id=exchange.request_id,
                session_id=exchange.path_params.get("session_id", ""),
            )
        )
