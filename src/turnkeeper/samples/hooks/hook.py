"""Hooks by name: the picker and the postprocessor of a server, built in or found by import path."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from turnkeeper.errors import ConfigError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples.hooks import reference_picker
from turnkeeper.samples.hooks.picker import drop_retries, keep_siblings
from turnkeeper.samples.hooks.postprocessor import (
    default_postprocess,
    non_positive_attempts,
    reference_postprocess,
)

HookFunction = Callable[[list[Any], JsonObject], Any]

_REFERENCE_HOOKS = "miles.rollout.session.v2"


def _name_hooks(
    own: Mapping[str, HookFunction], hub: str, reference: Mapping[str, HookFunction]
) -> Mapping[str, HookFunction]:
    """Name hooks: ours by their names, and the reference trainer's by the import paths of its package, which is not
    imported."""
    paths = {f"{_REFERENCE_HOOKS}.{hub}.{name}": function for name, function in reference.items()}
    modules = {f"{path}.{path.rpartition('.')[2]}": function for path, function in paths.items()}
    return {**own, **paths, **modules}


PICKERS = _name_hooks(
    {
        "drop_retries": drop_retries,
        "keep_siblings": keep_siblings,
        "drop_retries_same_prompt": reference_picker.drop_retries_same_prompt,
        "drop_rolled_back_leaves": reference_picker.drop_rolled_back_leaves,
    },
    "picker_hub",
    {
        "drop_retries": reference_picker.drop_retries,
        "drop_retries_same_prompt": reference_picker.drop_retries_same_prompt,
        "drop_same_prompt_retries": reference_picker.drop_retries_same_prompt,
        "drop_rolled_back_leaves": reference_picker.drop_rolled_back_leaves,
    },
)
"""Built-in pickers by name. ``drop_retries`` is ours; the reference's import path of that name means its own rule."""

POSTPROCESSORS = _name_hooks(
    {"default_postprocess": default_postprocess, "non_positive_attempts": non_positive_attempts},
    "postprocessor_hub",
    {"default_postprocess": reference_postprocess, "non_positive_attempts": non_positive_attempts},
)
"""Built-in postprocessors by name, likewise."""

_BUILT_IN = frozenset((*PICKERS.values(), *POSTPROCESSORS.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A function with the name under which the user knows it."""

    name: str
    """``--option value``, for messages."""
    function: HookFunction

    @property
    def is_built_in(self) -> bool:
        """True for a function of ours, which needs no check."""
        return self.function in _BUILT_IN


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The picker and the postprocessor of a server."""

    picker: Hook
    postprocessor: Hook


def load_hooks(picker: str = "drop_retries", postprocessor: str = "default_postprocess") -> Hooks:
    """Find both hooks, each by built-in name or import path (``package.module.function``).

    Raises:
        ConfigError: nothing there, not callable, or a coroutine function (hooks are called, not awaited).
    """
    return Hooks(
        picker=_load("--session-sample-picker-path", picker, PICKERS),
        postprocessor=_load("--session-sample-postprocessor-path", postprocessor, POSTPROCESSORS),
    )


def _load(option: str, path: str, built_in: Mapping[str, HookFunction]) -> Hook:
    function: Any = built_in.get(path) or _import(option, path, built_in)
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ConfigError(f"{option} must name a plain function, {path} is {function!r}")
    return Hook(name=f"{option} {path}", function=function)


def _import(option: str, path: str, built_in: Mapping[str, HookFunction]) -> object:
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except Exception as error:  # a module of the user's may raise anything while it is imported
        names = ", ".join(name for name in built_in if "." not in name)
        raise ConfigError(
            f"{option} {path} cannot be imported: {type(error).__name__}: {error}",
            hint=f"give package.module.function, or one of {names}",
        ) from error
