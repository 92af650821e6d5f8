"""From options to a service: reads the checkpoint, makes the engines' clients, joins the parts. Wiring only."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from turnkeeper.choices import TokenizerBackend
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines import Engine, EngineClient, build_parser
from turnkeeper.engines.control import ControlAction
from turnkeeper.engines.engine import ParseMessage
from turnkeeper.engines.net.client import choose_pool_size, raise_file_limit
from turnkeeper.engines.request_hook import HookedEngine, load_request_hook
from turnkeeper.errors import ConfigError, EngineError
from turnkeeper.fleet import EngineMonitor, connect_engines
from turnkeeper.fleet.check_result import CheckResult
from turnkeeper.fleet.connect import WrapEngine
from turnkeeper.fleet.controller import EngineController
from turnkeeper.fleet.route import RouteChecker
from turnkeeper.fleet.route_check import RouteRequirements, RouteStatus, check_route, find_workers
from turnkeeper.generation import Gate, RunnerOptions, TurnRunner
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.matching import ReplyRules, load_matcher
from turnkeeper.metrics import Metrics
from turnkeeper.modelconfig import find_context_length, find_embedding_rows
from turnkeeper.rendering import Checkpoint, Renderer, Tokenizer, build_renderer
from turnkeeper.routing import RoutingShape, read_routing_shape
from turnkeeper.samples import CollectOptions, load_hooks
from turnkeeper.service.control import EngineControl
from turnkeeper.service.drain import Drain
from turnkeeper.service.encoding import EncoderKeeper, LoadEncoder, find_loader
from turnkeeper.service.service import SessionService
from turnkeeper.service.sessions import MemoryAccount, MemoryKeeper, Publisher, Registry, SessionReader
from turnkeeper.service.supervisor import Supervisor
from turnkeeper.service.turns import StoreTurn, TurnService, keep_in_memory

logger = logging.getLogger("turnkeeper")

TOMBSTONE_TTL_S = 600.0
"""How long requests are told that their session expired, rather than that there is none."""

CONTROL_TIMEOUT_S = 60.0
"""The longest that an engine may take to pause or go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What tests replace."""

    clock: Clock
    draw_bytes: Callable[[int], bytes]
    """A source of randomness that nobody can guess."""

    @classmethod
    def real(cls) -> "Outside":
        """The machine's clock and randomness."""
        return cls(clock=SystemClock(), draw_bytes=secrets.token_bytes)


def build_service(config: ResolvedConfig, *, outside: Outside | None = None) -> SessionService:
    """Everything behind the front doors, from options.

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
    client = build_client(config, pool_size=_choose_pool_size(config))
    outside = outside or Outside.real()
    gate = Gate(outside.clock)
    check = partial(check_engine, config, client, build_requirements(config, checkpoint.config))
    routes = RouteChecker(config.engine.backend_url, gate=gate, clock=outside.clock, check=check)
    service = join_service(
        config,
        renderer=renderer,
        checkpoint_config=checkpoint.config,
        engine=build_engine(config, client, build_parser(renderer), wrap=routes.wrap),
        client=client,
        outside=outside,
        gate=gate,
        routes=routes,
        load_encoder=load_encoder,
    )
    if config.model.tokenizer_backend is TokenizerBackend.FASTOKENS:
        service.encoders.take_over()
    return service


def join_service(
    config: ResolvedConfig,
    *,
    renderer: Renderer,
    checkpoint_config: JsonObject,
    engine: Engine,
    client: EngineClient,
    outside: Outside,
    load_encoder: LoadEncoder | None = None,
    gate: Gate | None = None,
    routes: RouteChecker | None = None,
    store_turn: StoreTurn = keep_in_memory,
) -> SessionService:
    """A service from parts that are made.

    Without ``load_encoder`` the renderer's tokenizer stays as it is; without ``routes`` none is probed.
    """
    clock = outside.clock
    gate = gate or Gate(clock)
    publisher, metrics, drain = Publisher(), Metrics(), Drain(clock)
    supervisor = Supervisor(clock, metrics)
    spawn = supervisor.spawn
    monitor = EngineMonitor(engine, gate, clock, interval_s=config.timeouts.probe_interval_s, spawn=spawn)
    runner = TurnRunner(
        engine,
        gate,
        monitor,
        clock,
        _build_runner_options(config, renderer, checkpoint_config),
        parse=build_parser(renderer),
        decode=renderer.tokenizer.decode,
        spawn=spawn,
    )
    publisher.subscribe(lambda _, event: metrics.record(event))
    if routes is not None:
        monitor.on_poll = routes.note_statuses
        routes.on_result = partial(_count_probe, metrics)
    turns = TurnService(
        runner=runner,
        monitor=monitor,
        renderer=renderer,
        config=config,
        draw_bytes=outside.draw_bytes,
        context_length=find_context_length(checkpoint_config),
        metrics=metrics,
        drain=drain,
        spawn=spawn,
        store_turn=store_turn,
    )
    registry = Registry(
        max_sessions=config.limits.max_sessions,
        tombstone_ttl_s=TOMBSTONE_TTL_S,
        draw_bytes=outside.draw_bytes,
    )
    return SessionService(
        config=config,
        registry=registry,
        turns=turns,
        engine=engine,
        client=client,
        monitor=monitor,
        routes=routes,
        control=EngineControl(
            gate=gate,
            monitor=monitor,
            forward=partial(
                call_engines,
                client,
                EngineController(client, clock, kind=config.engine.engine, timeout_s=CONTROL_TIMEOUT_S),
                config.engine.backend_url,
            ),
        ),
        renderer=renderer,
        matcher=load_matcher(
            config.history.session_message_matcher,
            ReplyRules(
                thinking_tags=renderer.family.thinking_tags, on_rewritten_calls=config.history.on_rewritten_calls
            ),
        ),
        reader=SessionReader(
            renderer=renderer,
            options=CollectOptions(
                hooks=load_hooks(
                    config.history.session_sample_picker_path, config.history.session_sample_postprocessor_path
                ),
                on_recomputed=config.routing.r3_recomputed,
                past_truncation=config.history.sample_past_truncation,
            ),
            config=config,
        ),
        publisher=publisher,
        metrics=metrics,
        encoders=EncoderKeeper(renderer, load_encoder, clock=clock, metrics=metrics),
        memory=MemoryKeeper(
            MemoryAccount(),
            limit_bytes=int(config.limits.max_memory_bytes),
            directory=config.limits.spill_directory,
            on_spilled=lambda size: logger.info("moved %d bytes of routing rows to disk", size),
            spawn=spawn,
        ),
        drain=drain,
        supervisor=supervisor,
        clock=clock,
        draw_bytes=outside.draw_bytes,
    )


def load_checkpoint(config: ResolvedConfig) -> Checkpoint:
    """Read the checkpoint folder.

    Raises:
        ConfigError: there is none, or it lacks a file.
    """
    if config.model.hf_checkpoint is None:
        raise ConfigError("a checkpoint folder is missing", hint="--hf-checkpoint names it")
    template = config.model.chat_template_path
    return read_checkpoint(
        Path(config.model.hf_checkpoint), chat_template_path=None if template is None else Path(template)
    )


def build_client(config: ResolvedConfig, *, pool_size: int = 1024) -> EngineClient:
    """The HTTP client for the engines, with their credentials."""
    return EngineClient(
        timeout_s=config.timeouts.engine_timeout_s,
        pool_size=pool_size,
        api_key=config.engine.engine_api_key,
        authorizations=config.engine_authorizations,
    )


def build_engine(
    config: ResolvedConfig, client: EngineClient, parse: ParseMessage, *, wrap: WrapEngine | None = None
) -> Engine:
    """The engines behind one seam.

    Raises:
        ConfigError: the request hook cannot be imported.
    """
    hook = load_request_hook(
        config.engine.custom_rollout_request_hook_path, config.engine.custom_rollout_request_hook_args
    )
    engine = connect_engines(
        config.engine.backend_url,
        client,
        kind=config.engine.engine,
        wire=config.engine_wire,
        parse=parse,
        now=time.monotonic,
        wrap=wrap,
    )
    return engine if hook is None else HookedEngine(engine, hook)


def _parse_nothing(*_: object) -> Message:
    """Stands in for a parser where nobody reads the message."""
    return {"role": "assistant", "content": ""}


def _count_probe(metrics: Metrics, result: CheckResult) -> None:
    metrics.count("turnkeeper_probe_tokens", result.sampled_tokens)


async def check_routes(config: ResolvedConfig, client: EngineClient) -> tuple[RouteStatus, ...]:
    """Ask each engine for one short generation, to see whether its route keeps what turns need.

    Raises:
        ConfigError: the checkpoint does not say how the model routes.
    """
    wants_rows = config.routing.use_rollout_routing_replay
    requirements = build_requirements(config, load_checkpoint(config).config if wants_rows else {})
    checks = [check_engine(config, client, requirements, url) for url in config.engine.backend_url]
    return tuple(await asyncio.gather(*checks))


async def check_engine(
    config: ResolvedConfig, client: EngineClient, requirements: RouteRequirements, url: str
) -> RouteStatus:
    """The same for one URL."""

    def connect(each: str) -> Engine:
        wire, kind = config.engine_wire, config.engine.engine
        return connect_engines([each], client, kind=kind, wire=wire, parse=_parse_nothing, now=time.monotonic)

    return await check_route(url, client, requirements, connect=connect)


def build_requirements(config: ResolvedConfig, checkpoint_config: JsonObject) -> RouteRequirements:
    """What turns will need of a route.

    Raises:
        ConfigError: the checkpoint does not say how the model routes.
    """
    return RouteRequirements(
        prompt_ids=freeze_ids(range(1, 9)),
        shape=_read_shape(config, checkpoint_config),
        use_addition_r3=config.use_addition_r3,
        wants_indexer=config.routing.use_rollout_indexer_replay,
        on_bad_rows=config.routing.on_bad_rows,
        lora_name=config.engine.lora_name,
    )


def _choose_pool_size(config: ResolvedConfig) -> int:
    """As many engine connections as requests may be in flight, as far as open files reach."""
    wanted, limit = config.limits.max_in_flight, raise_file_limit()
    try:
        return choose_pool_size(wanted, limit)
    except ConfigError as error:
        size = max(1, limit // 2 - 64)
        logger.warning("%s: at most %d engine calls at a time, further ones wait", error, size)
        return size


async def call_engines(
    client: EngineClient, controller: EngineController, urls: Sequence[str], action: ControlAction
) -> list[JsonObject]:
    """Give an order to each engine in turn, to each worker for a router; stops at the first that fails."""
    answers: list[JsonObject] = []
    behind = [await find_workers(url.rstrip("/"), client) or (url.rstrip("/"),) for url in urls]
    for url in (worker for workers in behind for worker in workers):
        try:
            await controller.send(url, action)
        except EngineError as error:
            answers.append({"url": url, "ok": False, "error": error.message})
            break
        answers.append({"url": url, "ok": True, "error": None})
    return answers


def _build_runner_options(config: ResolvedConfig, renderer: Renderer, checkpoint_config: JsonObject) -> RunnerOptions:
    return RunnerOptions(
        pause_mode=config.engine.pause_generation_mode,
        on_abort=config.engine.on_abort,
        abort_grace_s=config.timeouts.abort_grace_s,
        gate_timeout_s=config.timeouts.gate_timeout_s,
        max_attempts=config.engine.abort_attempts + 1,
        shape=_read_shape(config, checkpoint_config),
        on_bad_rows=config.routing.on_bad_rows,
        rows_kept=config.routing.r3_rows,
        on_recomputed=config.routing.r3_recomputed,
        stop_token_ids=renderer.stop_token_ids,
        vocabulary_size=find_vocabulary_size(checkpoint_config, renderer.tokenizer),
        cache_salt_by_version=config.engine.cache_salt_by_version,
    )


def _read_shape(config: ResolvedConfig, checkpoint_config: JsonObject) -> RoutingShape | None:
    if not config.routing.use_rollout_routing_replay:
        return None
    model = config.model
    shape = read_routing_shape(
        checkpoint_config, layers=model.num_layers, topk=model.moe_router_topk, experts=model.num_experts
    )
    if shape is None:
        raise ConfigError(
            "--use-rollout-routing-replay needs a mixture of experts, and config.json describes none",
            hint="--num-layers, --moe-router-topk and --num-experts say what config.json does not",
        )
    return shape


def find_vocabulary_size(checkpoint_config: JsonObject, tokenizer: Tokenizer) -> int:
    """How many ids the model may sample: the rows of its output layer, which is often padded beyond the tokenizer."""
    return max(tokenizer.id_limit, find_embedding_rows(checkpoint_config))
