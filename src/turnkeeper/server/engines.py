"""From options to engines: their client, the check of their routes, orders to all of them. Wiring only."""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from turnkeeper.channels import CHANNELS, Capture, CaptureSettings
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines import Engine, EngineClient
from turnkeeper.engines.control import ControlAction
from turnkeeper.engines.engine import ParseMessage
from turnkeeper.engines.net.client import choose_pool_size, raise_file_limit
from turnkeeper.engines.request_hook import HookedEngine, load_request_hook
from turnkeeper.errors import ConfigError, EngineError
from turnkeeper.fleet import connect_engines
from turnkeeper.fleet.connect import WrapEngine
from turnkeeper.fleet.controller import EngineController
from turnkeeper.fleet.route_check import RouteRequirements, RouteStatus, check_route, find_workers
from turnkeeper.generation import RunnerOptions
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.modelconfig import find_embedding_rows
from turnkeeper.rendering import Checkpoint, Renderer, Tokenizer

logger = logging.getLogger("turnkeeper")


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
    """Build the HTTP client for the engines, with their credentials."""
    return EngineClient(
        timeout_s=config.timeouts.engine_timeout_s,
        pool_size=pool_size,
        api_key=config.engine.engine_api_key,
        authorizations=config.engine_authorizations,
    )


def build_engine(
    config: ResolvedConfig, client: EngineClient, parse: ParseMessage, *, wrap: WrapEngine | None = None
) -> Engine:
    """Connect the engines behind one seam.

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
    """Return an empty message, for calls whose message is never read."""
    return {"role": "assistant", "content": ""}


async def check_routes(config: ResolvedConfig, client: EngineClient) -> tuple[RouteStatus, ...]:
    """Ask each engine for one short generation, to see whether its route keeps what turns need.

    Raises:
        ConfigError: the checkpoint does not say how the model routes.
    """
    needs_checkpoint = CHANNELS.list_needing_checkpoint(config.routing.model_dump())
    requirements = build_requirements(config, load_checkpoint(config).config if needs_checkpoint else {})
    checks = [check_engine(config, client, requirements, url) for url in config.engine.backend_url]
    return tuple(await asyncio.gather(*checks))


async def check_engine(
    config: ResolvedConfig, client: EngineClient, requirements: RouteRequirements, url: str
) -> RouteStatus:
    """Ask the engine of one URL for one short generation, to see whether its route keeps what turns need."""

    def connect(each: str) -> Engine:
        wire, kind = config.engine_wire, config.engine.engine
        return connect_engines([each], client, kind=kind, wire=wire, parse=_parse_nothing, now=time.monotonic)

    return await check_route(url, client, requirements, connect=connect)


def build_requirements(config: ResolvedConfig, checkpoint_config: JsonObject) -> RouteRequirements:
    """Gather what turns will need of a route.

    Raises:
        ConfigError: the checkpoint does not say how the model routes.
    """
    return RouteRequirements(
        prompt_ids=freeze_ids(range(1, 9)),
        captures=open_captures(config, checkpoint_config),
        on_bad_rows=config.routing.on_bad_rows,
        lora_name=config.engine.lora_name,
    )


def choose_engine_pool_size(config: ResolvedConfig) -> int:
    """Choose as many engine connections as requests may be in flight, as far as open files reach."""
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
    """Give an order to each engine in turn, to each worker for a router, and stop at the first one that fails."""
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


def build_runner_options(config: ResolvedConfig, renderer: Renderer, checkpoint_config: JsonObject) -> RunnerOptions:
    """Gather what the runner of turns has to know of the options and of the model."""
    vocabulary_size = find_vocabulary_size(checkpoint_config, renderer.tokenizer)
    return RunnerOptions(
        pause_mode=config.engine.pause_generation_mode,
        on_abort=config.engine.on_abort,
        abort_grace_s=config.timeouts.abort_grace_s,
        gate_timeout_s=config.timeouts.gate_timeout_s,
        max_attempts=config.engine.abort_attempts + 1,
        captures=open_captures(config, checkpoint_config, vocabulary_size),
        stop_token_ids=renderer.stop_token_ids,
        vocabulary_size=vocabulary_size,
        cache_salt_by_version=config.engine.cache_salt_by_version,
    )


def open_captures(
    config: ResolvedConfig, checkpoint_config: JsonObject, vocabulary_size: int | None = None
) -> tuple[Capture, ...]:
    """Make the captures of the side channels that the options ask for.

    Raises:
        ConfigError: the checkpoint does not say what a channel has to know of the model.
    """
    options = {**config.model.model_dump(), **config.routing.model_dump()}
    settings = CaptureSettings(
        options=options,
        use_increments=config.use_addition_r3,
        checkpoint=checkpoint_config,
        vocabulary_size=vocabulary_size,
    )
    return CHANNELS.open(settings)


def list_masked_marks(config: ResolvedConfig) -> frozenset[str]:
    """List the marks of turns that the options want masked in samples."""
    options = config.routing.model_dump()
    return frozenset(mark for channel in CHANNELS.values() for mark in channel.list_masked_marks(options))


def find_vocabulary_size(checkpoint_config: JsonObject, tokenizer: Tokenizer) -> int:
    """Count the ids that the model may sample: the rows of its output layer, often padded beyond the tokenizer."""
    return max(tokenizer.id_limit, find_embedding_rows(checkpoint_config))
