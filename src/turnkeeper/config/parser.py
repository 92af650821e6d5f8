"""Command-line flags out of the options: for our own commands, and for a parser that a trainer owns.

Knows nothing of other sources: our own parser returns only what was written, so that environment and file can
stand behind it.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from turnkeeper.config.load import Source, load
from turnkeeper.config.option import OPTIONS, SECTIONS, Option, get_section_summary, get_section_title
from turnkeeper.errors import ArgumentErrors, ConfigError
from turnkeeper.texts import guess_name

OTHER_NAMES: Mapping[str, str] = {
    "--host": "--session-server-ip",
    "--port": "--session-server-port",
    "--workers": "--session-server-workers",
    "--instance-id": "--session-server-instance-id",
    "--timeout": "--engine-timeout",
    "--model": "--hf-checkpoint",
    "--model-path": "--hf-checkpoint",
    "--tokenizer-path": "--hf-checkpoint",
    "--url": "--backend-url",
    "--engine-url": "--backend-url",
}
"""What other servers call our options, for the hint behind an unknown flag."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, hint=f"`{self.prog} --help` lists the options")


def parse_flags(arguments: Sequence[str], *, program: str) -> tuple[dict[str, Any], Path | None]:
    """Read a command line of ours.

    Returns:
        The values that were given, by attribute, as text or (switches) bool; and the file that ``--config`` names.

    Raises:
        ConfigError: an unknown flag, a flag without its value, or a stray word.
    """
    parser = _Parser(prog=program, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path)
    for option in OPTIONS:
        parser.add_argument(option.flag, **_describe(option), default=argparse.SUPPRESS)
    namespace, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        raise _explain_unknown(unknown, program)
    given = vars(namespace)
    return given, given.pop("config", None)


def _explain_unknown(words: Sequence[str], program: str) -> ConfigError:
    """Name the flags that are no option and, where there are none, the words that belong to no flag."""
    flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    if not flags:
        return ConfigError(
            f"{' '.join(words)} belongs to no option", hint=f"`{program} --help` says how options are written"
        )
    guesses = [OTHER_NAMES.get(flag) or guess_name(flag, [option.flag for option in OPTIONS]) for flag in flags]
    message = "\n".join(f"{program} has no option {flag}" for flag in flags)
    known = [guess for guess in guesses if guess is not None]
    hint = f"did you mean {' and '.join(known)}?" if known else f"`{program} --help` lists the options"
    return ArgumentErrors(message, hint=hint)


def add_arguments(
    parser: argparse.ArgumentParser, *, environment: Mapping[str, str] | None = None
) -> argparse.ArgumentParser:
    """Add every option to a parser that somebody else owns.

    Flags that the parser already has stay as they are. Defaults are those of `turnkeeper.config.schema`, or what the
    environment says.

    Args:
        parser: gets one argument group for each section.
        environment: None reads the process's own.

    Returns:
        The parser that was given.

    Raises:
        ArgumentErrors: variables whose values are not of their options.
    """
    loaded = load({}, source=Source.ENVIRONMENT, environment=os.environ if environment is None else environment)
    for section in SECTIONS:
        group = parser.add_argument_group(get_section_title(section), get_section_summary(section))
        for option in (option for option in OPTIONS if option.section == section):
            default = getattr(getattr(loaded.settings, section), option.field)
            if option.is_repeatable and not loaded.is_given(option.attribute):
                default = None  # argparse would append to a default, not replace it
            try:
                group.add_argument(option.flag, **_describe(option) | _convert(option), default=default)
            except argparse.ArgumentError:
                continue
    return parser


def _describe(option: Option) -> dict[str, Any]:
    text = argparse.SUPPRESS if option.is_hidden else option.help.replace("%", "%%")
    facts: dict[str, Any] = {"dest": option.attribute, "help": text}
    if option.is_switch:
        return facts | {"action": argparse.BooleanOptionalAction}
    facts["metavar"] = option.metavar.strip("[]")
    if option.is_repeatable:
        return facts | {"action": "extend", "nargs": "+"}
    if option.value_when_alone is not None:
        return facts | {"nargs": "?", "const": option.value_when_alone}
    return facts


def _convert(option: Option) -> dict[str, Any]:
    if option.is_switch:
        return {}

    def convert(text: str) -> Any:
        try:
            value = option.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return value[0] if option.is_repeatable else value

    return {"type": convert}
