"""The options and all that follows from them, worked out once into the frozen value that the rest of the server reads.

Derives only from options that go together, so that no caller meets others.
"""

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turnkeeper.choices import EngineWire, HistoryKind, OnToolsChange, OnTruncated, PauseMode
from turnkeeper.config.credentials import build_authorizations, read_keys, split_address
from turnkeeper.config.load import Loaded, Origin, Source, load
from turnkeeper.config.parser import parse_flags
from turnkeeper.config.rule import Entry
from turnkeeper.config.rules import check
from turnkeeper.config.schema import (
    EngineSection,
    HistorySection,
    LimitsSection,
    LogSection,
    ModelSection,
    RoutingSection,
    ServerSection,
    StoreSection,
    TimeoutsSection,
)
from turnkeeper.errors import ArgumentErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """Every option, and what follows from them."""

    model: ModelSection
    engine: EngineSection
    server: ServerSection
    history: HistorySection
    routing: RoutingSection
    timeouts: TimeoutsSection
    limits: LimitsSection
    log: LogSection
    store: StoreSection

    history_kind: HistoryKind
    """How sessions are read unless they say otherwise: linear under v1, tree under v2."""
    on_tools_change: OnToolsChange | None
    """None: each session's history decides, see `get_on_tools_change`."""
    on_truncated: OnTruncated | None
    """None: each session's history decides, see `get_on_truncated`."""
    use_addition_r3: bool
    """Whether turns ask for the rows they add, not for all rows: the pause mode leaves earlier rows as they are."""
    engine_wire: EngineWire | None
    """Which route of SGLang generates; None, where nobody chose: chat, and generate under prefill/decode
    disaggregation."""
    ports: tuple[int, ...]
    """One for each worker; a 0 takes a free one."""
    instance_id: str
    """This instance's name in /health."""
    worker: int | None
    """The number of this process among several, from 0; None where there is one."""
    warnings: tuple[str, ...]
    """To be logged once, at start."""
    request_timeout_s: float
    """The longest that a turn may take, its waits and engine calls included."""
    engine_authorizations: Mapping[str, str] = field(repr=False)
    """The header's value by engine URL, for those that were given with user and password."""
    origins: Mapping[str, Origin]
    """Where each option's value came from, by attribute."""

    @property
    def store_folder(self) -> Path | None:
        """The folder of the store; None where sessions are kept in memory alone."""
        return None if self.store.store in (None, "none") else Path(self.store.store)

    def get_on_tools_change(self, kind: HistoryKind) -> OnToolsChange:
        """Get what a session of this kind does with other tools."""
        return self.on_tools_change or (OnToolsChange.KEEP if kind is HistoryKind.LINEAR else OnToolsChange.FORK)

    def get_on_truncated(self, kind: HistoryKind) -> OnTruncated:
        """Get what a session of this kind does behind a truncated turn."""
        return self.on_truncated or (OnTruncated.BRIDGE if kind is HistoryKind.LINEAR else OnTruncated.CLOSE)


def resolve(loaded: Loaded, *, warnings: tuple[str, ...] = ()) -> ResolvedConfig:
    """Derive everything that follows from the options; a session server is on, v1 unless told otherwise."""
    settings = loaded.settings
    server, history = settings.server, settings.history
    first = server.session_server_port[0]
    return ResolvedConfig(
        model=settings.model,
        engine=_resolve_engine(settings.engine),
        server=_resolve_server(server),
        history=history,
        routing=settings.routing,
        timeouts=settings.timeouts,
        limits=settings.limits,
        log=settings.log,
        store=settings.store,
        history_kind=HistoryKind.TREE if server.use_session_server == "v2" else HistoryKind.LINEAR,
        on_tools_change=history.on_tools_change,
        on_truncated=history.on_truncated,
        use_addition_r3=settings.engine.pause_generation_mode is not PauseMode.RETRACT,
        engine_wire=_find_chosen_wire(loaded),
        ports=tuple(first and first + worker for worker in range(server.session_server_workers)),
        instance_id=server.session_server_instance_id or uuid.uuid4().hex,
        worker=None,
        warnings=warnings,
        request_timeout_s=_choose_request_timeout(settings.timeouts),
        engine_authorizations=build_authorizations(settings.engine.backend_url),
        origins=loaded.origins,
    )


def _resolve_server(server: ServerSection) -> ServerSection:
    """Return the server's options with the keys that are in a file."""
    if server.api_key_file is None:
        return server
    return server.model_copy(update={"api_key": (*server.api_key, *read_keys(server.api_key_file))})


def _resolve_engine(engine: EngineSection) -> EngineSection:
    """Return the engines' options with addresses that may be shown, and the key that is in a file."""
    path = engine.engine_api_key_file
    key = engine.engine_api_key if path is None else read_keys(path)[0]
    urls = tuple(split_address(url).url for url in engine.backend_url)
    return engine.model_copy(update={"backend_url": urls, "engine_api_key": key})


def _choose_request_timeout(timeouts: TimeoutsSection) -> float:
    """Choose the timeout that was asked for, else the time for a whole wait at the gate or a whole engine call, and for
    as much behind it."""
    return timeouts.request_timeout_s or 2 * max(timeouts.engine_timeout_s, timeouts.gate_timeout_s)


def _find_chosen_wire(loaded: Loaded) -> EngineWire | None:
    """Find the wire that somebody asked for; in a trainer's namespace stands the default where nobody did."""
    wire, source = loaded.settings.engine.engine_wire, loaded.origins["engine_wire"].source
    is_default = source is Source.DEFAULT or (source is Source.NAMESPACE and wire is EngineWire.CHAT)
    return None if is_default else wire


def load_command_line(
    arguments: Sequence[str], *, program: str, environment: Mapping[str, str] | None = None
) -> Loaded:
    """Read the options of a command line, the environment and the file that they name, without checking the rules.

    Args:
        arguments: the words behind the command's name.
        program: how messages call the command.
        environment: None reads the process's own.

    Raises:
        ConfigError: the command line or the file cannot be read; `ArgumentErrors` with all values that cannot be.
    """
    given, file = parse_flags(arguments, program=program)
    return load(given, environment=os.environ if environment is None else environment, file=file)


def resolve_command_line(
    arguments: Sequence[str], *, program: str = "turnkeeper serve", environment: Mapping[str, str] | None = None
) -> ResolvedConfig:
    """Read a command line as `load_command_line` does, and check that everything goes together.

    Raises:
        ConfigError: what `load_command_line` raises, or `ArgumentErrors` with every broken rule.
    """
    return resolve_checked(load_command_line(arguments, program=program, environment=environment), Entry.SERVE)


def resolve_checked(loaded: Loaded, entry: Entry) -> ResolvedConfig:
    """Resolve options that break no rule.

    Raises:
        ArgumentErrors: every broken rule, a line each.
    """
    findings = check(loaded, entry)
    if findings.errors:
        raise ArgumentErrors("\n".join(findings.errors))
    return resolve(loaded, warnings=(*loaded.warnings, *findings.warnings))
