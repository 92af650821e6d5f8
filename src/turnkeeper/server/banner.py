"""What a server says of itself once it serves: one line from which its configuration can be told."""

import os
from pathlib import Path
from typing import Any, cast

from turnkeeper import __version__
from turnkeeper.channels import CHANNELS
from turnkeeper.config.credentials import HIDDEN, hide_userinfo
from turnkeeper.config.option import OPTIONS, Option
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.jsontypes import encode_json
from turnkeeper.logs import LogEvent

_HOOK_ARGS = "custom_rollout_request_hook_args"
"""What a hook is given may hold its keys."""


def describe_start(config: ResolvedConfig, url: str) -> LogEvent:
    """Describe a server that has started.

    Args:
        config: its options.
        url: where it listens.
    """
    return LogEvent(
        "server_started",
        url=url,
        version=__version__,
        instance=config.instance_id,
        pid=os.getpid(),
        family=config.model.tito_model,
        checkpoint=Path(config.model.hf_checkpoint or "").name or None,
        history=str(config.history_kind),
        engines=config.engine.backend_url,
        engine_wire=None if config.engine_wire is None else str(config.engine_wire),
        routing_replay=_describe_replay(config),
        pause_mode=str(config.engine.pause_generation_mode),
        on_abort=str(config.engine.on_abort),
        store=str(config.store_folder or "memory"),
        keys=bool(config.server.api_key),
        options=list_changed(config),
    )


def list_changed(config: ResolvedConfig) -> dict[str, str]:
    """List the options that differ from their defaults, by key, with their values as text; keys are hidden."""
    values = {option: _find_value(config, option) for option in OPTIONS if hasattr(config, option.section)}
    return {option.key: _show(option, value) for option, value in values.items() if value != option.default}


def _find_value(config: ResolvedConfig, option: Option) -> Any:
    return getattr(getattr(config, option.section), option.field)


def _show(option: Option, value: Any) -> str:
    if option.is_secret or option.attribute == _HOOK_ARGS:
        return HIDDEN
    if isinstance(value, tuple):
        return hide_userinfo(" ".join(map(str, cast("tuple[object, ...]", value))))
    if isinstance(value, bool | dict):
        return encode_json(value).decode()
    return hide_userinfo(f"{value:g}" if isinstance(value, float) else str(value))


def _describe_replay(config: ResolvedConfig) -> str:
    options = config.routing.model_dump()
    return "+".join(channel.label for channel in CHANNELS.values() if channel.is_on(options)) or "off"
