"""From what an operator wrote to checked values: flags, then environment, then a TOML file, then defaults.

Each value keeps where it came from. All values that cannot be read are reported at once. Reads one file; the
environment comes in as an argument. Knows no rule between options.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from turnkeeper.config.option import BY_ATTRIBUTE, ENVIRONMENT_PREFIX, OPTIONS, SECTIONS, Option
from turnkeeper.config.schema import Settings
from turnkeeper.errors import ArgumentErrors, ConfigError
from turnkeeper.texts import guess_name

CONFIG_VARIABLE = f"{ENVIRONMENT_PREFIX}CONFIG"
"""Names the TOML file where no ``--config`` does."""


class Source(StrEnum):
    """The kinds of places that values come from; an earlier one wins."""

    FLAG = "flag"
    """The command line."""
    NAMESPACE = "namespace"
    """Arguments that a trainer parsed."""
    ENVIRONMENT = "environment"
    """An environment variable."""
    FILE = "file"
    """A TOML file."""
    DEFAULT = "default"
    """Nobody gave one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where one value came from."""

    source: Source
    name: str
    """The flag, attribute, variable or file, as the operator wrote it."""

    def __str__(self) -> str:
        """Return the name."""
        return self.name


DEFAULT_ORIGIN = Origin(source=Source.DEFAULT, name="default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Every option's value and where it came from."""

    settings: Settings
    origins: Mapping[str, Origin]
    """By attribute, every option."""
    warnings: tuple[str, ...] = ()
    """What looks like a mistake but stops nothing."""

    def is_given(self, attribute: str) -> bool:
        """Return True if a flag, a namespace, a variable or a file gives the option, even with its default value."""
        return self.origins[attribute].source is not Source.DEFAULT


def load(
    given: Mapping[str, Any],
    *,
    source: Source = Source.FLAG,
    names: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Loaded:
    """Lay the sources over each other and check each value.

    Args:
        given: values by attribute, as text or typed; None counts as not given.
        source: where ``given`` comes from.
        names: what a given value was called there, by attribute, where not by its flag or attribute.
        environment: the process's environment; None reads none.
        file: a TOML file; None takes the one that `CONFIG_VARIABLE` names, if any.

    Raises:
        ConfigError: the file cannot be read.
        ArgumentErrors: values that are not of their options, and keys of the file that are no option.
    """
    environment = environment or {}
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    table = read_table(file) if file else {}
    layers = (
        _Layer(source=source, values=given, names=_flags() if source is Source.FLAG else names or {}),
        _read_environment(environment),
        _Layer(
            source=Source.FILE,
            values={key.replace("-", "_"): value for key, value in table.items()},
            names=dict.fromkeys(BY_ATTRIBUTE, str(file)),
        ),
    )
    problems = [_explain_unknown_key(key, file) for key in table if key.replace("-", "_") not in BY_ATTRIBUTE]
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    origins = dict.fromkeys(BY_ATTRIBUTE, DEFAULT_ORIGIN)
    for option in OPTIONS:
        layer = next((layer for layer in layers if layer.values.get(option.attribute) is not None), None)
        if layer is None:
            continue
        origin = origins[option.attribute] = layer.get_origin(option.attribute)
        try:
            values[option.section][option.field] = option.parse(layer.values[option.attribute])
        except ValueError as error:
            problems.append(_place(option, origin, str(error)))
    if problems:
        raise ArgumentErrors("\n".join(problems))
    settings = Settings.model_validate(values)
    return Loaded(settings=settings, origins=origins, warnings=_find_near_misses(environment))


def read_table(file: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: there is none, or it is not TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file} is not TOML: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    source: Source
    values: Mapping[str, Any]
    """By attribute, unchecked; None counts as absent."""
    names: Mapping[str, str]
    """What the operator called each, by attribute, where not by the attribute."""

    def get_origin(self, attribute: str) -> Origin:
        return Origin(source=self.source, name=self.names.get(attribute, attribute))


def _flags() -> dict[str, str]:
    return {option.attribute: option.flag for option in OPTIONS}


def _read_environment(environment: Mapping[str, str]) -> _Layer:
    """Read the variables that are options; an empty one counts as absent."""
    return _Layer(
        source=Source.ENVIRONMENT,
        values={option.attribute: environment.get(option.environment) or None for option in OPTIONS},
        names={option.attribute: option.environment for option in OPTIONS},
    )


def _place(option: Option, origin: Origin, problem: str) -> str:
    where = "" if origin.source is Source.FLAG else f" (from {origin})"
    return f"{option.flag}{where} {problem}"


def _explain_unknown_key(key: str, file: Path | None) -> str:
    near = guess_name(key.replace("_", "-"), [option.key for option in OPTIONS])
    return f"{file}: {key} is no option" + (f"; did you mean {near}?" if near else "")


def _find_near_misses(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Name variables that are one slip away from an option's; others with the prefix may be anybody's."""
    known = [option.environment for option in OPTIONS]
    unknown = [
        name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in {*known, CONFIG_VARIABLE}
    ]
    near = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.9) for name in sorted(unknown)}
    return tuple(f"{name} is no option; did you mean {match[0]}?" for name, match in near.items() if match)
