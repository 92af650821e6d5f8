"""From options to a server: reads the checkpoint, makes the engines' clients, joins the parts. Wiring only."""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from turnkeeper.choices import TokenizerBackend
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.engines import Engine, EngineClient, build_parser
from turnkeeper.fleet import EngineMonitor
from turnkeeper.fleet.check_result import CheckResult
from turnkeeper.fleet.connect import WrapEngine
from turnkeeper.fleet.controller import EngineController
from turnkeeper.fleet.route import CheckRoute, RouteChecker
from turnkeeper.generation import Gate, TurnRunner
from turnkeeper.http.backend import Backend, HttpOptions
from turnkeeper.jsontypes import JsonObject
from turnkeeper.matching import Matcher, ReplyRules, load_matcher
from turnkeeper.metrics import Metrics
from turnkeeper.modelconfig import find_context_length
from turnkeeper.passthrough import parse_open_route
from turnkeeper.rendering import Renderer, build_renderer
from turnkeeper.samples import CollectOptions, load_hooks
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
from turnkeeper.service.control import EngineControl, Forward
from turnkeeper.service.drain import Drain
from turnkeeper.service.encoding import EncoderKeeper, LoadEncoder, find_loader
from turnkeeper.service.health import Health
from turnkeeper.service.lifecycle import Lifecycle, Loop, measure_loop_delay
from turnkeeper.service.relay import Relay
from turnkeeper.service.requests import RequestsInFlight
from turnkeeper.service.service import SessionService
from turnkeeper.service.sessions import (
    KeyRing,
    MemoryAccount,
    MemoryKeeper,
    Publisher,
    Registry,
    SessionFactory,
    SessionReader,
    close_session,
)
from turnkeeper.service.sessions.closing import EXPIRED
from turnkeeper.service.supervisor import Supervisor
from turnkeeper.service.turns import StoreTurn, TurnService, keep_in_memory

logger = logging.getLogger("turnkeeper")

TOMBSTONE_TTL_S = 600.0
"""How long requests are told that their session expired, rather than that there is none."""

CONTROL_TIMEOUT_S = 60.0
"""The longest that an engine may take to pause or go on."""

Connect: TypeAlias = Callable[[WrapEngine | None], Engine]
"""Connects the engines; the wrapper is put around the engine of each URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What tests replace."""

    clock: Clock
    token_bytes: Callable[[int], bytes]
    """A source of random bytes that nobody can guess, as ``secrets.token_bytes``."""

    @classmethod
    def real(cls) -> "Dependencies":
        """Take the machine's clock and randomness."""
        return cls(clock=SystemClock(), token_bytes=secrets.token_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """The joined parts of one server: ``backend`` is what its routes call, all others work behind it."""

    config: ResolvedConfig
    backend: Backend
    registry: Registry
    memory: MemoryKeeper
    monitor: EngineMonitor
    routes: RouteChecker | None
    encoders: EncoderKeeper


def build_parts(config: ResolvedConfig, *, dependencies: Dependencies | None = None) -> ServerParts:
    """Build everything behind the front doors, from options.

    Raises:
        ConfigError: the checkpoint folder, a hook, the matcher or the tokenizer that is asked for cannot work; the
            message names the option.
    """
    checkpoint = load_checkpoint(config)
    load_encoder = find_loader(config.model.tokenizer_backend, checkpoint.tokenizer_json)
    renderer = build_renderer(
        checkpoint,
        config.model.tito_model,
        chat_template_kwargs=config.model.apply_chat_template_kwargs,
        format_time=time.strftime,
        render_tools=config.model.render_tools,
    )
    client = build_client(config, pool_size=choose_engine_pool_size(config))
    return join_parts(
        config,
        renderer=renderer,
        checkpoint_config=checkpoint.config,
        client=client,
        connect=lambda wrap: build_engine(config, client, build_parser(renderer), wrap=wrap),
        check=partial(check_engine, config, client, build_requirements(config, checkpoint.config)),
        dependencies=dependencies or Dependencies.real(),
        load_encoder=load_encoder,
    )


def join_parts(
    config: ResolvedConfig,
    *,
    renderer: Renderer,
    checkpoint_config: JsonObject,
    client: EngineClient,
    connect: Connect,
    dependencies: Dependencies,
    check: CheckRoute | None = None,
    load_encoder: LoadEncoder | None = None,
    store_turn: StoreTurn = keep_in_memory,
) -> ServerParts:
    """Join the parts of a server.

    Args:
        config: the options.
        renderer: the tokenizer and the template of the model.
        checkpoint_config: the ``config.json`` of the model.
        client: the HTTP client of the engines, which is closed with the server.
        connect: connects the engines.
        dependencies: the clock and the randomness.
        check: checks the route to an engine; None checks none.
        load_encoder: loads the fast tokenizer; None keeps the renderer's.
        store_turn: makes a turn durable before it becomes visible.

    Raises:
        ConfigError: a hook, the matcher or the tokenizer that is asked for cannot work.
    """
    clock, token_bytes, metrics = dependencies.clock, dependencies.token_bytes, Metrics()
    gate, drain, supervisor = Gate(clock), Drain(clock), Supervisor(clock, metrics)
    spawn = supervisor.spawn
    routes = None if check is None else _build_routes(config, gate, clock, check, metrics)
    engine = connect(None if routes is None else routes.wrap)
    monitor = EngineMonitor(
        engine,
        gate,
        clock,
        interval_s=config.timeouts.probe_interval_s,
        on_poll=_ignore if routes is None else routes.note_statuses,
        spawn=spawn,
    )
    memory = _build_memory(config, supervisor)
    registry = Registry(
        max_sessions=config.limits.max_sessions,
        tombstone_ttl_s=TOMBSTONE_TTL_S,
        token_bytes=token_bytes,
        on_expire=lambda entry: close_session(entry, EXPIRED, metrics),
    )
    turns = TurnService(
        runner=TurnRunner(
            engine,
            gate,
            monitor,
            clock,
            build_runner_options(config, renderer, checkpoint_config),
            parse=build_parser(renderer),
            decode=renderer.tokenizer.decode,
            spawn=spawn,
        ),
        monitor=monitor,
        renderer=renderer,
        config=config,
        token_bytes=token_bytes,
        context_length=find_context_length(checkpoint_config),
        metrics=metrics,
        drain=drain,
        spawn=spawn,
        store_turn=store_turn,
    )
    sessions = SessionService(
        registry=registry,
        factory=SessionFactory(
            config=config,
            registry=registry,
            memory=memory,
            drain=drain,
            matcher=_load_matcher(config, renderer),
            publisher=Publisher([lambda _, event: metrics.record(event)]),
            clock=clock,
        ),
        turns=turns,
        reader=SessionReader(renderer=renderer, options=_build_collect_options(config), config=config),
        memory=memory,
        keys=KeyRing(config.server.api_key, token_bytes),
        gate=gate,
        metrics=metrics,
        clock=clock,
        auto_create=config.server.auto_create_sessions,
    )
    requests = RequestsInFlight(config.limits.max_in_flight)
    encoders = EncoderKeeper(
        renderer,
        load_encoder,
        clock=clock,
        metrics=metrics,
        from_the_start=config.model.tokenizer_backend is TokenizerBackend.FASTOKENS,
    )
    register_gauges(
        metrics,
        registry=registry,
        account=memory.account,
        requests=requests,
        drain=drain,
        monitor=monitor,
        routes=routes,
    )
    # The checks of routes have to be there when the engines are polled for the first time.
    loops: dict[str, Loop] = {} if routes is None else {"engine_routes": routes.run}
    loops |= {
        "engine_watch": monitor.run,
        "session_sweep": sessions.sweep_forever,
        "loop_delay": partial(measure_loop_delay, clock, metrics),
        "tokenizer": encoders.run,
    }
    backend = Backend(
        sessions=sessions,
        requests=requests,
        relay=Relay(sessions, engine, urls=config.engine.backend_url),
        control=EngineControl(gate=gate, monitor=monitor, forward=_build_forward(config, client, clock)),
        health=Health(
            instance_id=config.instance_id,
            monitor=monitor,
            routes=routes,
            supervisor=supervisor,
            encoders=encoders,
            drain=drain,
        ),
        lifecycle=Lifecycle(
            supervisor=supervisor,
            registry=registry,
            requests=requests,
            drain=drain,
            drain_timeout_s=config.timeouts.drain_timeout_s,
            loops=loops,
            closers=(sessions.close, turns.close, monitor.close, memory.settle, engine.close, client.close),
        ),
        metrics=metrics,
        tokenizer=renderer.tokenizer,
        spawn=spawn,
        token_bytes=token_bytes,
        options=build_http_options(config),
    )
    return ServerParts(
        config=config,
        backend=backend,
        registry=registry,
        memory=memory,
        monitor=monitor,
        routes=routes,
        encoders=encoders,
    )


def build_http_options(config: ResolvedConfig) -> HttpOptions:
    """Gather the options that routes follow."""
    checkpoint = Path(config.model.hf_checkpoint or "policy").name
    return HttpOptions(
        max_body_bytes=config.limits.max_body_bytes,
        max_turn_body_bytes=config.limits.max_turn_body_bytes,
        stream_header_delay_s=config.timeouts.stream_header_delay_s,
        stream_heartbeat_s=config.timeouts.stream_heartbeat_s,
        forward_fields=config.engine.forward_field,
        on_image=config.history.on_image,
        pass_through=frozenset(map(parse_open_route, config.server.pass_through)),
        allow_unrecorded=config.server.allow_unrecorded,
        model_names=tuple(dict.fromkeys((checkpoint, *config.history.train_models))),
    )


def _build_routes(
    config: ResolvedConfig, gate: Gate, clock: Clock, check: CheckRoute, metrics: Metrics
) -> RouteChecker:
    def count_tokens(result: CheckResult) -> None:
        metrics.count("turnkeeper_probe_tokens", result.sampled_tokens)

    return RouteChecker(config.engine.backend_url, gate=gate, clock=clock, check=check, on_result=count_tokens)


def _build_memory(config: ResolvedConfig, supervisor: Supervisor) -> MemoryKeeper:
    return MemoryKeeper(
        MemoryAccount(),
        limit_bytes=int(config.limits.max_memory_bytes),
        directory=config.limits.spill_directory,
        on_spilled=lambda size: logger.info("moved %d bytes of routing rows to disk", size),
        spawn=supervisor.spawn,
    )


def _load_matcher(config: ResolvedConfig, renderer: Renderer) -> Matcher:
    rules = ReplyRules(
        thinking_tags=renderer.family.thinking_tags, on_rewritten_calls=config.history.on_rewritten_calls
    )
    return load_matcher(config.history.session_message_matcher, rules)


def _build_collect_options(config: ResolvedConfig) -> CollectOptions:
    history = config.history
    return CollectOptions(
        hooks=load_hooks(history.session_sample_picker_path, history.session_sample_postprocessor_path),
        on_recomputed=config.routing.r3_recomputed,
        past_truncation=history.sample_past_truncation,
    )


def _build_forward(config: ResolvedConfig, client: EngineClient, clock: Clock) -> Forward:
    controller = EngineController(client, clock, kind=config.engine.engine, timeout_s=CONTROL_TIMEOUT_S)
    return partial(call_engines, client, controller, config.engine.backend_url)


def _ignore(_: object) -> None:
    """Take the statuses where no route is checked."""
