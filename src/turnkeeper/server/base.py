"""The parts of one server that almost every other part is made with."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnkeeper.choices import TokenizerBackend
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.generation import Gate
from turnkeeper.jsontypes import JsonObject
from turnkeeper.logs import log_report
from turnkeeper.metrics import Metrics
from turnkeeper.rendering import Renderer
from turnkeeper.service.drain import Drain
from turnkeeper.service.encoding import EncoderSelector, LoadEncoder
from turnkeeper.service.requests import RequestsInFlight
from turnkeeper.service.supervisor import Supervisor
from turnkeeper.telemetry import NoTracing, Publish, ReportStream, Tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The clock, the randomness and the readers of reports of a server, which tests replace."""

    clock: Clock
    token_bytes: Callable[[int], bytes]
    """A source of random bytes that nobody can guess, as ``secrets.token_bytes``."""
    readers: Sequence[Publish] = ()
    """They take the reports of what the server does."""
    tracing: Tracing = field(default_factory=NoTracing)
    """Follows turns and engine calls across services."""

    @classmethod
    def real(cls, tracing: Tracing | None = None) -> "Dependencies":
        """Take the machine's clock and randomness."""
        return cls(clock=SystemClock(), token_bytes=secrets.token_bytes, tracing=tracing or NoTracing())


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseParts:
    """The options, the clock, the metrics and what else many parts share."""

    config: ResolvedConfig
    renderer: Renderer
    encoders: EncoderSelector
    checkpoint_config: JsonObject
    clock: Clock
    token_bytes: Callable[[int], bytes]
    metrics: Metrics
    reports: ReportStream
    tracing: Tracing
    gate: Gate
    drain: Drain
    requests: RequestsInFlight
    supervisor: Supervisor


def build_base(
    config: ResolvedConfig,
    renderer: Renderer,
    checkpoint_config: JsonObject,
    dependencies: Dependencies,
    load_encoder: LoadEncoder | None,
) -> BaseParts:
    """Make the parts that need no other part.

    Args:
        config: the options.
        renderer: the tokenizer and the template of the model.
        checkpoint_config: the ``config.json`` of the model.
        dependencies: the clock, the randomness and the readers of reports.
        load_encoder: loads the fast tokenizer; None keeps the renderer's.

    Raises:
        ConfigError: the tokenizer that is asked for cannot work.
    """
    clock, metrics = dependencies.clock, Metrics(config.engine.backend_url)
    readers = (metrics.record_report, log_report, dependencies.tracing.read, *dependencies.readers)
    reports = ReportStream(readers)
    encoders = EncoderSelector(
        renderer,
        load_encoder,
        clock=clock,
        metrics=metrics,
        from_the_start=config.model.tokenizer_backend is TokenizerBackend.FASTOKENS,
    )
    return BaseParts(
        config=config,
        renderer=renderer,
        encoders=encoders,
        checkpoint_config=checkpoint_config,
        clock=clock,
        token_bytes=dependencies.token_bytes,
        metrics=metrics,
        reports=reports,
        tracing=dependencies.tracing,
        gate=Gate(clock, publish=reports.publish),
        drain=Drain(clock),
        requests=RequestsInFlight(config.limits.max_in_flight),
        supervisor=Supervisor(clock, metrics),
    )
