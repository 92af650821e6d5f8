"""From options to a server: reads the checkpoint, makes the engines' clients, joins the parts. Wiring only."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.engines import Engine, EngineClient, build_parser
from turnkeeper.fleet import EngineCalls, EngineMonitor
from turnkeeper.fleet.check_result import RouteCheckResult
from turnkeeper.fleet.connect import WrapEngine
from turnkeeper.fleet.controller import EngineController
from turnkeeper.fleet.route import CheckRoute, RouteChecker
from turnkeeper.generation import TurnRunner
from turnkeeper.http.backend import Backend
from turnkeeper.jsontypes import JsonObject
from turnkeeper.modelconfig import find_context_length
from turnkeeper.rendering import Renderer
from turnkeeper.server.base import BaseParts, Dependencies, build_base
from turnkeeper.server.engines import (
    build_client,
    build_engine,
    build_requirements,
    build_runner_options,
    call_engines,
    check_engine,
    choose_engine_pool_size,
    load_checkpoint,
)
from turnkeeper.server.gauges import register_gauges
from turnkeeper.server.options import build_collect_options, build_http_options, build_matcher, build_model_renderer
from turnkeeper.server.store import BuildKeeper, keep_in_memory, open_store
from turnkeeper.service.control import EngineControl
from turnkeeper.service.encoding import EncoderSelector, LoadEncoder, find_loader
from turnkeeper.service.health import Health, WorkerPlace
from turnkeeper.service.lifecycle import Lifecycle, Loop, measure_loop_delay
from turnkeeper.service.relay import Relay
from turnkeeper.service.service import SessionService
from turnkeeper.service.sessions import (
    EventStream,
    KeyRing,
    MemoryAccount,
    MemoryLimiter,
    Registry,
    SessionEntry,
    SessionFactory,
    SessionKeeper,
    SessionReader,
    close_session,
)
from turnkeeper.service.turns import DelayWatch, StoreTurn, TurnService
from turnkeeper.telemetry import SessionEndReason, Tracing
from turnkeeper.tracing import build_tracing

logger = logging.getLogger("turnkeeper")

TOMBSTONE_TTL_S = 600.0
"""How long requests are told that their session expired, rather than that there is none."""

CONTROL_TIMEOUT_S = 60.0
"""The longest that an engine may take to pause or go on."""

Connect: TypeAlias = Callable[[WrapEngine], Engine]
"""Connects the engines; the wrapper is put around the engine of each URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """The joined parts of one server: ``backend`` is what its routes call, all others work behind it."""

    config: ResolvedConfig
    backend: Backend
    registry: Registry
    memory: MemoryLimiter
    monitor: EngineMonitor
    routes: RouteChecker | None
    calls: EngineCalls
    encoders: EncoderSelector


def build_parts(config: ResolvedConfig, *, dependencies: Dependencies | None = None) -> ServerParts:
    """Build everything behind the front doors, from options.

    Raises:
        ConfigError: the checkpoint folder, a hook, the matcher or the tokenizer that is asked for cannot work; the
            message names the option.
    """
    dependencies = dependencies or Dependencies.real(_build_tracing(config))
    checkpoint = load_checkpoint(config)
    load_encoder = find_loader(config.model.tokenizer_backend, checkpoint.tokenizer_json)
    renderer = build_model_renderer(config, checkpoint)
    client = build_client(config, pool_size=choose_engine_pool_size(config))
    return join_server(
        config,
        renderer=renderer,
        checkpoint_config=checkpoint.config,
        client=client,
        connect=lambda wrap: build_engine(config, client, build_parser(renderer), wrap=wrap),
        check=partial(check_engine, config, client, build_requirements(config, checkpoint.config)),
        dependencies=dependencies,
        load_encoder=load_encoder,
        build_keeper=open_store(config, checkpoint, dependencies.clock, dependencies.token_bytes),
    )


def _build_tracing(config: ResolvedConfig) -> Tracing:
    return build_tracing(config.server.trace_endpoint, instance_id=config.instance_id)


def join_server(
    config: ResolvedConfig,
    *,
    renderer: Renderer,
    checkpoint_config: JsonObject,
    client: EngineClient,
    connect: Connect,
    dependencies: Dependencies,
    check: CheckRoute | None = None,
    load_encoder: LoadEncoder | None = None,
    build_keeper: BuildKeeper = keep_in_memory,
) -> ServerParts:
    """Join the parts of a server.

    Args:
        config: the options.
        renderer: the tokenizer and the template of the model.
        checkpoint_config: the ``config.json`` of the model.
        client: the HTTP client of the engines, which is closed with the server.
        connect: connects the engines.
        dependencies: the clock, the randomness and the readers of reports.
        check: checks the route to an engine; None checks none.
        load_encoder: loads the fast tokenizer; None keeps the renderer's.
        build_keeper: makes what keeps sessions beyond the process.

    Raises:
        ConfigError: a hook, the matcher or the tokenizer that is asked for cannot work.
    """
    base = build_base(config, renderer, checkpoint_config, dependencies, load_encoder)
    engines = _join_engines(base, client, connect, check)
    sessions = _join_sessions(base, engines, build_keeper)
    register_gauges(
        base.metrics,
        config=config,
        registry=sessions.registry,
        account=sessions.memory.account,
        requests=base.requests,
        drain=base.drain,
        monitor=engines.monitor,
        calls=engines.calls,
        routes=engines.routes,
        keeper=sessions.keeper,
    )
    return ServerParts(
        config=config,
        backend=_build_backend(base, engines, sessions),
        registry=sessions.registry,
        memory=sessions.memory,
        monitor=engines.monitor,
        routes=engines.routes,
        calls=engines.calls,
        encoders=base.encoders,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Engines:
    """The engines of one server, and those who look after them."""

    client: EngineClient
    engine: Engine
    monitor: EngineMonitor
    routes: RouteChecker | None
    calls: EngineCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sessions:
    """The sessions of one server, their memory, and the turns that they take."""

    registry: Registry
    memory: MemoryLimiter
    turns: TurnService
    service: SessionService
    keeper: SessionKeeper


def _join_engines(base: BaseParts, client: EngineClient, connect: Connect, check: CheckRoute | None) -> _Engines:
    routes = None if check is None else _build_routes(base, check)
    calls = EngineCalls(base.clock, publish=base.reports.publish, tracing=base.tracing)
    engine = connect(partial(_wrap_engine, calls, routes))
    monitor = EngineMonitor(
        engine,
        base.gate,
        base.clock,
        interval_s=base.config.timeouts.probe_interval_s,
        on_poll=_ignore if routes is None else routes.note_statuses,
        spawn=base.supervisor.spawn,
        publish=base.reports.publish,
    )
    return _Engines(client=client, engine=engine, monitor=monitor, routes=routes, calls=calls)


def _wrap_engine(calls: EngineCalls, routes: RouteChecker | None, url: str, engine: Engine) -> Engine:
    """Wrap the engine of a URL: turns are refused while its route is unfit, and the calls that run are known."""
    watched = calls.wrap(url, engine)
    return watched if routes is None else routes.wrap(url, watched)


def _build_routes(base: BaseParts, check: CheckRoute) -> RouteChecker:
    def count_tokens(result: RouteCheckResult) -> None:
        base.metrics.count("turnkeeper_probe_tokens", result.sampled_tokens)

    urls = base.config.engine.backend_url
    return RouteChecker(
        urls,
        gate=base.gate,
        clock=base.clock,
        check=check,
        on_result=count_tokens,
        publish=base.reports.publish,
    )


def _ignore(_: object) -> None:
    """Take the statuses where no route is checked."""


def _join_sessions(base: BaseParts, engines: _Engines, build_keeper: BuildKeeper) -> _Sessions:
    matcher = build_matcher(base.config, base.renderer)
    keeper = build_keeper(matcher)
    memory = _build_memory(base)

    def expire(entry: SessionEntry) -> None:
        close_session(entry, SessionEndReason.EXPIRED, base.metrics)
        keeper.expire(entry.id, at=base.clock.unix())

    registry = Registry(
        max_sessions=base.config.limits.max_sessions,
        tombstone_ttl_s=TOMBSTONE_TTL_S,
        token_bytes=base.token_bytes,
        on_expire=expire,
        find_state=keeper.find_state,
    )
    factory = SessionFactory(
        config=base.config,
        registry=registry,
        memory=memory,
        drain=base.drain,
        matcher=matcher,
        event_stream=EventStream([lambda _, event: base.metrics.record(event), keeper.note]),
        reports=base.reports,
        clock=base.clock,
        keeper=keeper,
    )
    turns = _build_turns(base, engines, keeper.store_turn)
    service = _build_service(base, registry, memory, turns, factory, keeper, engines.calls)
    return _Sessions(registry=registry, memory=memory, turns=turns, service=service, keeper=keeper)


def _build_memory(base: BaseParts) -> MemoryLimiter:
    limits = base.config.limits
    return MemoryLimiter(
        MemoryAccount(),
        limit_bytes=int(limits.max_memory_bytes),
        directory=limits.spill_directory,
        on_spilled=lambda size: logger.info("moved %d bytes of routing rows to disk", size),
        spawn=base.supervisor.spawn,
    )


def _build_turns(base: BaseParts, engines: _Engines, store_turn: StoreTurn) -> TurnService:
    runner = TurnRunner(
        engines.engine,
        base.gate,
        engines.monitor,
        base.clock,
        build_runner_options(base.config, base.renderer, base.checkpoint_config),
        parse=build_parser(base.renderer),
        decode=base.renderer.tokenizer.decode,
        spawn=base.supervisor.spawn,
    )
    return TurnService(
        runner=runner,
        monitor=engines.monitor,
        renderer=base.renderer,
        config=base.config,
        token_bytes=base.token_bytes,
        context_length=find_context_length(base.checkpoint_config),
        metrics=base.metrics,
        drain=base.drain,
        spawn=base.supervisor.spawn,
        store_turn=store_turn,
        tracing=base.tracing,
    )


def _build_service(
    base: BaseParts,
    registry: Registry,
    memory: MemoryLimiter,
    turns: TurnService,
    factory: SessionFactory,
    keeper: SessionKeeper,
    calls: EngineCalls,
) -> SessionService:
    config, metrics = base.config, base.metrics
    return SessionService(
        registry=registry,
        factory=factory,
        turns=turns,
        reader=SessionReader(
            renderer=base.renderer,
            options=build_collect_options(config),
            config=config,
            find_engine=calls.find_url,
        ),
        memory=memory,
        keys=KeyRing(config.server.api_key, base.token_bytes, hash_key=keeper.hash_key),
        gate=base.gate,
        metrics=metrics,
        clock=base.clock,
        keeper=keeper,
        auto_create=config.server.auto_create_sessions,
    )


def _build_backend(base: BaseParts, engines: _Engines, sessions: _Sessions) -> Backend:
    config = base.config
    health = Health(
        instance_id=config.instance_id,
        monitor=engines.monitor,
        routes=engines.routes,
        supervisor=base.supervisor,
        encoders=base.encoders,
        drain=base.drain,
        keeper=sessions.keeper,
        place=WorkerPlace(number=config.worker or 0, ports=[port or None for port in config.ports]),
    )
    return Backend(
        sessions=sessions.service,
        requests=base.requests,
        relay=Relay(sessions.service, engines.engine, urls=config.engine.backend_url),
        control=_build_control(base, engines),
        health=health,
        lifecycle=_build_lifecycle(base, engines, sessions),
        metrics=base.metrics,
        reports=base.reports,
        clock=base.clock,
        tokenizer=base.renderer.tokenizer,
        spawn=base.supervisor.spawn,
        token_bytes=base.token_bytes,
        options=build_http_options(config),
    )


def _build_control(base: BaseParts, engines: _Engines) -> EngineControl:
    options, client = base.config.engine, engines.client
    controller = EngineController(client, base.clock, kind=options.engine, timeout_s=CONTROL_TIMEOUT_S)
    forward = partial(call_engines, client, controller, options.backend_url)
    return EngineControl(gate=base.gate, monitor=engines.monitor, forward=forward)


def _build_lifecycle(base: BaseParts, engines: _Engines, sessions: _Sessions) -> Lifecycle:
    delays = DelayWatch(
        sessions.registry,
        base.clock,
        after_s=base.config.log.slow_turn_s,
        publish=base.reports.publish,
        find_engine=engines.calls.find_url,
    )
    # The checks of routes have to be there when the engines are polled for the first time.
    loops: dict[str, Loop] = {} if engines.routes is None else {"engine_routes": engines.routes.run}
    loops |= {
        "engine_watch": engines.monitor.run,
        "session_sweep": sessions.service.sweep_forever,
        "turn_delays": delays.run,
        "loop_delay": partial(measure_loop_delay, base.clock, base.metrics),
        "tokenizer": base.encoders.run,
        "store_retention": sessions.keeper.run,
    }
    return Lifecycle(
        supervisor=base.supervisor,
        registry=sessions.registry,
        requests=base.requests,
        drain=base.drain,
        drain_timeout_s=base.config.timeouts.drain_timeout_s,
        outlive=base.config.store_folder is not None,
        loops=loops,
        closers=(
            sessions.service.close,
            sessions.turns.close,
            sessions.keeper.close,
            engines.monitor.close,
            sessions.memory.settle,
            engines.engine.close,
            engines.client.close,
            base.tracing.close,
        ),
    )
