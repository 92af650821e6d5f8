"""What follows from the options, worked out once: the one frozen value that the rest of the server reads.

Knows neither where values come from nor which of them go together.
"""

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnkeeper.choices import HistoryKind, OnToolsChange, OnTruncated, PauseMode
from turnkeeper.config.load import Loaded, Origin, load
from turnkeeper.config.parser import parse_flags
from turnkeeper.config.schema import Engine, History, Limits, Model, Routing, Server, Timeouts

HOOK_NAMES = {
    "miles.rollout.session.v2.picker_hub.drop_retries": "drop_retries",
    "miles.rollout.session.v2.postprocessor_hub.default_postprocess": "default_postprocess",
}
"""Hook paths that trainers name by default, and our own hooks that do the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """Every option, and what follows from them."""

    model: Model
    engine: Engine
    server: Server
    history: History
    routing: Routing
    timeouts: Timeouts
    limits: Limits

    history_kind: HistoryKind
    """How sessions are read unless they say otherwise: linear under v1, tree under v2."""
    on_tools_change: OnToolsChange | None
    """None: each session's history decides, see `get_on_tools_change`."""
    on_truncated: OnTruncated | None
    """None: each session's history decides, see `get_on_truncated`."""
    use_addition_r3: bool
    """Whether turns ask for the rows they add, not for all rows: the pause mode leaves earlier rows as they are."""
    ports: tuple[int, ...]
    """One for each worker; a 0 takes a free one."""
    instance_id: str
    """This instance's name in /health."""
    picker: str
    """Name or import path of the hook that picks leaves."""
    postprocessor: str
    """Name or import path of the hook that finishes picked samples."""
    warnings: tuple[str, ...]
    """To be logged once, at start."""
    origins: Mapping[str, Origin]
    """Where each option's value came from, by attribute."""

    def get_on_tools_change(self, kind: HistoryKind) -> OnToolsChange:
        """Get what a session of this kind does with other tools."""
        return self.on_tools_change or (OnToolsChange.KEEP if kind is HistoryKind.LINEAR else OnToolsChange.FORK)

    def get_on_truncated(self, kind: HistoryKind) -> OnTruncated:
        """Get what a session of this kind does behind a truncated turn."""
        return self.on_truncated or (OnTruncated.BRIDGE if kind is HistoryKind.LINEAR else OnTruncated.CLOSE)


def resolve(loaded: Loaded) -> ResolvedConfig:
    """Derive everything that follows from the options; a session server is on, v1 unless told otherwise."""
    settings = loaded.settings
    server, history = settings.server, settings.history
    first = server.session_server_port[0]
    return ResolvedConfig(
        model=settings.model,
        engine=settings.engine,
        server=server,
        history=history,
        routing=settings.routing,
        timeouts=settings.timeouts,
        limits=settings.limits,
        history_kind=HistoryKind.TREE if server.use_session_server == "v2" else HistoryKind.LINEAR,
        on_tools_change=history.on_tools_change,
        on_truncated=history.on_truncated,
        use_addition_r3=settings.engine.pause_generation_mode is not PauseMode.RETRACT,
        ports=tuple(first and first + worker for worker in range(server.session_server_workers)),
        instance_id=server.session_server_instance_id or uuid.uuid4().hex,
        picker=get_hook_name(history.session_sample_picker_path),
        postprocessor=get_hook_name(history.session_sample_postprocessor_path),
        warnings=loaded.warnings,
        origins=loaded.origins,
    )


def get_hook_name(path: str) -> str:
    """Get the hook that an option means: our own in place of a trainer's default, which is never imported."""
    return HOOK_NAMES.get(path, path)


def resolve_command_line(
    arguments: Sequence[str], *, program: str = "turnkeeper serve", environment: Mapping[str, str] | None = None
) -> ResolvedConfig:
    """Read the options of a command line, the environment and the file that they name.

    Args:
        arguments: the words behind the command's name.
        program: how messages call the command.
        environment: None reads the process's own.

    Raises:
        ConfigError: `ArgumentErrors` with everything that cannot work, or a command line that cannot be read.
    """
    given, file = parse_flags(arguments, program=program)
    return resolve(load(given, environment=os.environ if environment is None else environment, file=file))
