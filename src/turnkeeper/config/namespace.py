"""Options out of a namespace that a trainer owns.

Attributes are named as the flags, with underscores. What is missing or None counts as not given, so that the
environment and the defaults stand behind it. The namespace is never changed.
"""

import argparse
import logging
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from turnkeeper.config.load import Loaded, Source, load
from turnkeeper.config.option import OPTIONS
from turnkeeper.config.resolve import ResolvedConfig, resolve_checked
from turnkeeper.config.rule import Entry
from turnkeeper.config.rules import check
from turnkeeper.errors import ArgumentErrors

ALIASES = {"engine_timeout": "miles_router_timeout"}
"""Options that trainers also know under another attribute, which counts where ours is not there."""

TRAINERS_LORA_NAME = "miles_lora"
"""What miles calls the adapter that it trains, in the engines that it starts."""

_TRAINERS_TEMPLATES = ("chat_template_utils", "templates")

_logger = logging.getLogger("turnkeeper.config")


def options_from_namespace(
    namespace: object, *, environment: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None
) -> Loaded:
    """Read the options that a namespace has.

    Args:
        namespace: anything with attributes; those that are no option are left alone.
        environment: None reads the process's own.
        overrides: values by attribute that win over the namespace's.

    Raises:
        ArgumentErrors: every value that is not of its option, with its attribute.
    """
    names = {option.attribute: _find_name(namespace, option.attribute) for option in OPTIONS}
    given = {attribute: _read(namespace, name) for attribute, name in names.items()}
    if _is_trainers_template(given["chat_template_path"]):
        given["chat_template_path"] = None
    if given["lora_name"] is None and _is_lora_trained(namespace):
        given["lora_name"] = TRAINERS_LORA_NAME
    return load(
        {**given, **(overrides or {})},
        source=Source.NAMESPACE,
        names=names,
        environment=os.environ if environment is None else environment,
    )


def validate_args(namespace: argparse.Namespace | object) -> None:
    """Check a trainer's arguments, with a session server or without; log what is only risky.

    Raises:
        ArgumentErrors: everything that cannot work, a line each.
    """
    loaded = options_from_namespace(namespace)
    findings = check(loaded, Entry.TRAINER)
    for warning in (*loaded.warnings, *findings.warnings):
        _logger.warning(warning)
    if findings.errors:
        raise ArgumentErrors("\n".join(findings.errors))


miles_validate_args = validate_args
"""The name that miles gives it."""


def resolve_namespace(namespace: object, backend_urls: tuple[str, ...]) -> ResolvedConfig:
    """Resolve a trainer's arguments for a session server, which is on whether they say so or not.

    Raises:
        ArgumentErrors: everything that cannot work, a line each; also where ``hf_checkpoint`` or
            ``pause_generation_mode`` is missing.
    """
    overrides: dict[str, Any] = {"backend_url": backend_urls}
    if not _read(namespace, "use_session_server"):
        overrides["use_session_server"] = "v1"
    return resolve_checked(options_from_namespace(namespace, overrides=overrides), Entry.TRAINER)


def _find_name(namespace: object, attribute: str) -> str:
    alias = ALIASES.get(attribute)
    return alias if alias and _read(namespace, attribute) is None and _read(namespace, alias) is not None else attribute


def _is_trainers_template(path: object) -> bool:
    """Tell a template that miles has filled in for a family from one that a user chose: families here need none."""
    return path == "autofix" or (isinstance(path, str) and Path(path).parts[-3:-1] == _TRAINERS_TEMPLATES)


def _is_lora_trained(namespace: object) -> bool:
    """Whether the trainer trains an adapter that its engines sample with."""
    if _read(namespace, "lora_train_only"):
        return False
    rank = _read(namespace, "lora_rank")
    has_rank = isinstance(rank, int) and rank > 0
    return has_rank or _read(namespace, "lora_adapter_path") is not None


def _read(namespace: object, name: str) -> Any:
    value = getattr(namespace, name, None)
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value
