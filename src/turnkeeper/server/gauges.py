"""The gauges of a server: each is read from the part that knows its value whenever metrics are asked for."""

from functools import partial
from platform import python_version

from turnkeeper import __version__
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.engines import EngineState
from turnkeeper.fleet import EngineCalls, EngineMonitor
from turnkeeper.fleet.check_result import RouteState
from turnkeeper.fleet.route import RouteChecker
from turnkeeper.metrics import Metrics, name_engine
from turnkeeper.service.drain import Drain
from turnkeeper.service.requests import RequestsInFlight
from turnkeeper.service.sessions import MemoryAccount, Registry, SessionKeeper
from turnkeeper.telemetry import TurnPhase


def register_gauges(
    metrics: Metrics,
    *,
    config: ResolvedConfig,
    registry: Registry,
    account: MemoryAccount,
    requests: RequestsInFlight,
    drain: Drain,
    monitor: EngineMonitor,
    calls: EngineCalls,
    routes: RouteChecker | None,
    keeper: SessionKeeper,
) -> None:
    """Register every gauge of the sessions, the engines and the routes to them, and say what runs."""
    metrics.register_gauge("turnkeeper_sessions", lambda: len(registry))
    metrics.register_gauge("turnkeeper_session_bytes", lambda: account.used_bytes)
    metrics.register_gauge("turnkeeper_spilled_bytes", lambda: account.spilled_bytes)
    metrics.register_gauge("turnkeeper_requests_in_flight", lambda: len(requests))
    metrics.register_gauge("turnkeeper_turns_in_flight", registry.count_turns)
    metrics.register_gauge("turnkeeper_draining", lambda: drain.is_draining)
    metrics.register_refresh(partial(_measure_phases, metrics, registry))
    for state in EngineState:
        metrics.register_gauge("turnkeeper_engine_state", partial(_is_state, monitor, state), state=str(state))
    for url in config.engine.backend_url:
        engine = name_engine(url)
        metrics.register_gauge("turnkeeper_engine_calls_running", partial(_count_calls, calls, engine), engine=engine)
    if routes is not None:
        for verdict in RouteState:
            metrics.register_gauge("turnkeeper_engine_routes", partial(routes.count, verdict), verdict=str(verdict))
    metrics.register_refresh(partial(_measure_store, metrics, keeper))
    _describe_server(metrics, config)


def _measure_store(metrics: Metrics, keeper: SessionKeeper) -> None:
    measures = keeper.measure()
    if measures is None:
        return
    metrics.set("turnkeeper_store_waiting_writes", measures.waiting_jobs)
    metrics.set("turnkeeper_store_bytes", measures.used_bytes)
    metrics.set("turnkeeper_store_sessions", measures.sessions)
    metrics.raise_to("turnkeeper_store_writes", measures.stored_jobs)
    metrics.raise_to("turnkeeper_store_transactions", measures.stored_groups)
    metrics.raise_to("turnkeeper_store_transaction_seconds", measures.storing_s)
    metrics.raise_to("turnkeeper_store_failed_writes", measures.failed_jobs)
    metrics.raise_to("turnkeeper_store_removed_sessions", measures.removed_collected, fate="collected")
    metrics.raise_to("turnkeeper_store_removed_sessions", measures.removed_uncollected, fate="uncollected")
    metrics.raise_to("turnkeeper_store_torn_sessions", measures.torn_sessions)
    metrics.raise_to("turnkeeper_store_skipped_records", measures.skipped_records)


def _is_state(monitor: EngineMonitor, state: EngineState) -> float:
    return float(monitor.state is state)


def _count_calls(calls: EngineCalls, engine: str) -> float:
    return sum(count for url, count in calls.count().items() if name_engine(url) == engine)


def _measure_phases(metrics: Metrics, registry: Registry) -> None:
    """Measure in one walk over the sessions how many turns are in each phase, and for how long."""
    counts, longest = dict.fromkeys(TurnPhase, 0), dict.fromkeys(TurnPhase, 0.0)
    for entry in registry:
        for turn in entry.in_flight.values():
            phase = turn.phases.phase
            counts[phase] += 1
            longest[phase] = max(longest[phase], turn.phases.phase_age_s)
    for phase in TurnPhase:
        metrics.set("turnkeeper_turns_in_phase", counts[phase], phase=phase)
        metrics.set("turnkeeper_longest_in_phase_seconds", longest[phase], phase=phase)


def _describe_server(metrics: Metrics, config: ResolvedConfig) -> None:
    """Set what does not change while the server runs: version, configuration and limits."""
    metrics.set("turnkeeper_build_info", 1, version=__version__, python=python_version())
    metrics.set(
        "turnkeeper_config_info",
        1,
        family=config.model.tito_model,
        history=config.history_kind,
        pause_mode=config.engine.pause_generation_mode,
        routing_replay=str(config.routing.use_rollout_routing_replay).lower(),
        on_abort=config.engine.on_abort,
        store="memory" if config.store_folder is None else "folder",
        workers=str(config.server.session_server_workers),
    )
    limits = config.limits
    for name, value in (
        ("max_in_flight", limits.max_in_flight),
        ("max_memory_bytes", int(limits.max_memory_bytes)),
        ("max_peer_connections", limits.max_peer_connections),
        ("max_sessions", limits.max_sessions),
    ):
        metrics.set("turnkeeper_limit", value, limit=name)
