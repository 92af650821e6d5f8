"""Options out of a namespace that a trainer owns.

Attributes are named as the flags, with underscores. What is missing or None counts as not given, so that the
environment and the defaults stand behind it. The namespace is never changed.
"""

import argparse
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from turnkeeper.config.load import Loaded, Source, load
from turnkeeper.config.option import OPTIONS
from turnkeeper.config.resolve import ResolvedConfig, resolve_checked
from turnkeeper.config.rule import Entry
from turnkeeper.config.rules import check
from turnkeeper.errors import ArgumentErrors

ALIASES = {"engine_timeout": "miles_router_timeout", "use_rollout_sampling_mask": "use_sampling_support_replay"}
"""Options that trainers also know under another attribute, which counts where ours is not there."""

TRAINERS_LORA_NAME = "miles_lora"
"""What miles calls the adapter that it trains, in the engines that it starts."""

SERVER_ALIASES = {
    "session_server_ip": "host",
    "session_server_port": "port",
    "session_server_instance_id": "instance_id",
    "engine_timeout": "timeout",
}
"""Option to its name in the configuration of a single session server, where names are shorter than in a trainer's
namespace."""

UNSERVED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "sglang_output_store_backend": (
        ("none",),
        "routing rows are read out of the engine's replies here, and an output store keeps them elsewhere: leave it "
        "at none",
    ),
}
"""What a trainer may ask of its own session server and this one does not do: the values that do not ask for it, and
what to do instead."""

REQUEST_HOOK = "custom_rollout_request_hook_path"
REQUEST_HOOK_ARGS = "custom_rollout_request_hook_args"
"""A trainer's hook on requests to engines. Trees without arguments for it call it in another form, with all of their
own arguments."""

_UNCALLED = (
    f"{REQUEST_HOOK} {{}} is not called for the turns of sessions, since {REQUEST_HOOK_ARGS} is missing: "
    "a hook of this form takes the trainer's own arguments; the headers, retries and version limits that it sets do "
    "not reach the engines"
)

_TRAINERS_TEMPLATES = ("chat_template_utils", "templates")

_logger = logging.getLogger("turnkeeper.config")


def options_from_namespace(
    namespace: object,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    aliases: Mapping[str, str] = ALIASES,
) -> Loaded:
    """Read the options that a namespace has.

    Args:
        namespace: anything with attributes; those that are no option are left alone.
        environment: None reads the process's own.
        overrides: values by attribute that win over the namespace's.
        aliases: other attributes under which options are looked up.

    Raises:
        ArgumentErrors: every value that is not of its option, with its attribute.
    """
    names = {option.attribute: _find_name(namespace, option.attribute, aliases) for option in OPTIONS}
    given = {attribute: _read(namespace, name) for attribute, name in names.items()}
    if _is_trainers_template(given["chat_template_path"]):
        given["chat_template_path"] = None
    if given["lora_name"] is None and _is_lora_trained(namespace):
        given["lora_name"] = TRAINERS_LORA_NAME
    is_older_hook = given[REQUEST_HOOK] is not None and not hasattr(namespace, REQUEST_HOOK_ARGS)
    warnings = (_UNCALLED.format(given[REQUEST_HOOK]),) if is_older_hook else ()
    if is_older_hook:
        given[REQUEST_HOOK] = None
    loaded = load(
        {**given, **(overrides or {})},
        source=Source.NAMESPACE,
        names=names,
        environment=os.environ if environment is None else environment,
    )
    return replace(loaded, warnings=(*loaded.warnings, *warnings))


def validate_args(namespace: argparse.Namespace | object) -> None:
    """Check a trainer's arguments, with a session server or without; log what is only risky.

    Raises:
        ArgumentErrors: everything that cannot work, a line each.
    """
    loaded = options_from_namespace(namespace)
    findings = check(loaded, Entry.TRAINER)
    for warning in (*loaded.warnings, *findings.warnings):
        _logger.warning(warning)
    unserved = find_unserved(namespace) if loaded.settings.server.use_session_server else ()
    if errors := (*findings.errors, *unserved):
        raise ArgumentErrors("\n".join(errors))


miles_validate_args = validate_args
"""The name that miles gives it."""


def resolve_namespace(namespace: object, backend_urls: tuple[str, ...] | None = None) -> ResolvedConfig:
    """Resolve a trainer's arguments for a session server, which is on whether they say so or not.

    Args:
        namespace: the trainer's arguments, or a configuration of one session server.
        backend_urls: the engines. None reads them from ``backend_url``, and the namespace as such a configuration:
            it knows address, port, name and timeout of its server as ``host``, ``port``, ``instance_id`` and
            ``timeout`` too.

    Raises:
        ArgumentErrors: everything that cannot work, a line each; also where ``hf_checkpoint`` or
            ``pause_generation_mode`` is missing.
    """
    urls = _read_urls(namespace) if backend_urls is None else backend_urls
    aliases = ALIASES if backend_urls is not None else {**ALIASES, **SERVER_ALIASES}
    overrides: dict[str, Any] = {"backend_url": urls}
    if not _read(namespace, "use_session_server"):
        overrides["use_session_server"] = "v1"
    if _is_one_server(namespace, aliases):
        overrides["session_server_workers"] = 1
    if unserved := find_unserved(namespace):
        raise ArgumentErrors("\n".join(unserved))
    return resolve_checked(options_from_namespace(namespace, overrides=overrides, aliases=aliases), Entry.TRAINER)


def find_unserved(namespace: object) -> tuple[str, ...]:
    """Find what the namespace asks for and this session server does not do; a message for each."""
    return tuple(
        f"{name} {value}: {remedy}"
        for name, (harmless, remedy) in UNSERVED.items()
        if (value := _read(namespace, name)) is not None and value not in harmless
    )


def _is_one_server(namespace: object, aliases: Mapping[str, str]) -> bool:
    """Return True if the namespace is that of one server among several, which its trainer starts one by one.

    It then names the server's instance, or its port as a number; flags give ports as a list, and 0 names none.
    """
    port = _read(namespace, _find_name(namespace, "session_server_port", aliases))
    instance = _read(namespace, _find_name(namespace, "session_server_instance_id", aliases))
    return instance is not None or (isinstance(port, int | str) and str(port) != "0")


def _read_urls(namespace: object) -> tuple[str, ...]:
    urls = _read(namespace, "backend_url")
    if not urls:
        raise ArgumentErrors("no engine to generate with: give backend_url, as an argument or in the configuration")
    return tuple(urls.split()) if isinstance(urls, str) else tuple(urls)


def _find_name(namespace: object, attribute: str, aliases: Mapping[str, str] = ALIASES) -> str:
    alias = aliases.get(attribute)
    return alias if alias and _read(namespace, attribute) is None and _read(namespace, alias) is not None else attribute


def _is_trainers_template(path: object) -> bool:
    """Tell a template that miles has filled in for a family from one that a user chose: families here need none."""
    return path == "autofix" or (isinstance(path, str) and Path(path).parts[-3:-1] == _TRAINERS_TEMPLATES)


def _is_lora_trained(namespace: object) -> bool:
    """Return True if the trainer trains an adapter that its engines sample with."""
    if _read(namespace, "lora_train_only"):
        return False
    return _has_rank(_read(namespace, "lora_rank")) or _read(namespace, "lora_adapter_path") is not None


def _has_rank(rank: Any) -> bool:
    """Return True if a rank above 0 is given, also as text, as some launchers hand options on."""
    try:
        return rank is not None and float(rank) > 0
    except (TypeError, ValueError):
        return False


def _read(namespace: object, name: str) -> Any:
    value = getattr(namespace, name, None)
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value
