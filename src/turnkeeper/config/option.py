"""One option as the outside sees it: flag, environment variable, TOML key, attribute of a namespace.

Derived from the fields of `turnkeeper.config.schema`; adds no fact of its own. Knows nothing of where values come
from.
"""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Union, cast, get_args, get_origin

from pydantic import ByteSize, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from turnkeeper.config.schema import ForTests, Settings, SettingsSection

ENVIRONMENT_PREFIX = "TURNKEEPER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A field of a section, with the names it goes by."""

    section: str
    """The section's name in `Settings`."""
    field: str
    """The field's name in its section."""
    info: FieldInfo
    """Type, default and help, as pydantic holds them."""

    @property
    def attribute(self) -> str:
        """The name in a trainer's namespace: the flag's, with underscores."""
        return self.field.removesuffix("_s")

    @property
    def key(self) -> str:
        """The key in a TOML file: the flag without its dashes in front."""
        return self.attribute.replace("_", "-")

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return f"--{self.key}"

    @property
    def environment(self) -> str:
        """The environment variable."""
        return ENVIRONMENT_PREFIX + self.attribute.upper()

    @property
    def unit(self) -> str:
        """The unit of the value, empty where it has none."""
        if self.field.endswith("_s"):
            return "s"
        return "bytes" if self.field.endswith("_bytes") else ""

    @property
    def help(self) -> str:
        """One line on what the option does."""
        return self._read_paragraph(0)

    @property
    def when_to_change(self) -> str:
        """One sentence on when there is reason to change the option; empty for an option that is hidden."""
        return self._read_paragraph(1)

    def _read_paragraph(self, index: int) -> str:
        paragraphs = (self.info.description or "").split("\n\n")
        return " ".join(paragraphs[index].split()) if index < len(paragraphs) else ""

    @property
    def is_hidden(self) -> bool:
        """True if help and reference page leave the option out, because only tests change it."""
        return any(isinstance(mark, ForTests) for mark in self.info.metadata)

    @property
    def is_secret(self) -> bool:
        """True if the value is a key, which is hidden where options are shown."""
        return not self.info.repr

    @property
    def default(self) -> Any:
        """The value when nobody gives one."""
        return self.info.get_default(call_default_factory=True)

    @property
    def is_switch(self) -> bool:
        """True if the flag stands alone: on, or ``--no-...`` for off."""
        return self.info.annotation is bool

    @property
    def is_repeatable(self) -> bool:
        """True if the option takes several values."""
        return get_origin(self.info.annotation) is tuple

    @property
    def value_when_alone(self) -> str | None:
        """The value of the flag without one; None where it needs a value."""
        return "v1" if self.field == "use_session_server" else None

    @property
    def kind(self) -> type[StrEnum] | None:
        """The enumeration of its values, None where it has none."""
        for kind in _members(self.info.annotation):
            if isinstance(kind, type) and issubclass(kind, StrEnum):
                return kind
        return None

    @property
    def choices(self) -> tuple[str, ...]:
        """The closed list of values, empty where the list is open."""
        if self.kind is not None:
            return tuple(str(member) for member in self.kind)
        literals = [kind for kind in _members(self.info.annotation) if get_origin(kind) is Literal]
        return get_args(literals[0]) if literals else ()

    @property
    def metavar(self) -> str:
        """The word that stands for the value in help."""
        if self.is_switch:
            return ""
        if self.choices:
            return "|".join(self.choices)
        return _METAVARS.get(self.field) or (self.unit and _UNIT_METAVARS[self.unit]) or _kind_metavar(self.info)

    @property
    def default_text(self) -> str:
        """The default as one would write it, empty where unset or off."""
        default = self.default
        if self.is_repeatable:
            return " ".join(str(value) for value in default)
        if default is None or default is False or default == {}:
            return ""
        if self.unit == "bytes":
            return default.human_readable(separator="").replace(".0", "")
        return f"{default:g}" if self.unit == "s" else str(default)

    def parse(self, value: object) -> Any:
        """Check one value, text or typed.

        Raises:
            ValueError: the value is not one of this option; says what was expected and what came.
        """
        try:
            return TypeAdapter(self.info.rebuild_annotation()).validate_python(value)
        except ValidationError as error:
            raise ValueError(_explain(error, value)) from None


def _explain(error: ValidationError, value: object) -> str:
    reasons = dict.fromkeys(detail["msg"].removeprefix("Value error, ") for detail in error.errors())
    first = next(iter(reasons)).partition(", unable to")[0]
    if first.startswith("Input "):
        return f"{first.removeprefix('Input ')}, got {value!r}"
    return f"cannot be read ({first[:1].lower()}{first[1:]}), got {value!r}"


_METAVARS = {
    "hf_checkpoint": "DIR",
    "spill_directory": "DIR",
    "store": "DIR",
    "store_keep_s": "AGE",
    "chat_template_path": "FILE",
    "apply_chat_template_kwargs": "JSON",
    "backend_url": "URL",
    "use_session_server": "[v1|v2]",
    "session_server_ip": "ADDRESS",
    "session_server_port": "PORT",
    "api_key": "KEY",
    "api_key_file": "FILE",
    "engine_api_key": "KEY",
    "engine_api_key_file": "FILE",
    "pass_through": "ROUTE",
    "log_session": "ID",
}
_UNIT_METAVARS = {"s": "SECONDS", "bytes": "BYTES"}


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for member in get_args(annotation) if member is not type(None))
    return (annotation,)


def _kind_metavar(info: FieldInfo) -> str:
    kinds = {get_args(member)[0] if get_args(member) else member for member in _members(info.annotation)}
    return "N" if kinds & {int, float, ByteSize} else "NAME"


def get_section(name: str) -> type[SettingsSection]:
    """Get the model of a section by its name in `Settings`."""
    return cast("type[SettingsSection]", Settings.model_fields[name].annotation)


def get_section_title(name: str) -> str:
    """Get a section's heading: the words before the colon of its docstring."""
    return (get_section(name).__doc__ or name).partition(": ")[0]


def get_section_summary(name: str) -> str:
    """Get what a section is about: the words behind the colon of its docstring."""
    summary = (get_section(name).__doc__ or "").partition(": ")[2]
    return summary[:1].upper() + summary[1:]


def _read_options() -> Iterator[Option]:
    for section in Settings.model_fields:
        for field, info in get_section(section).model_fields.items():
            yield Option(section=section, field=field, info=info)


SECTIONS: tuple[str, ...] = tuple(Settings.model_fields)
"""The sections, in the order of help and docs."""

OPTIONS: tuple[Option, ...] = tuple(_read_options())
"""Every option, by section."""

SHOWN_OPTIONS: tuple[Option, ...] = tuple(option for option in OPTIONS if not option.is_hidden)
"""Every option that help and reference page show."""

BY_ATTRIBUTE: dict[str, Option] = {option.attribute: option for option in OPTIONS}
"""Every option by its name in a namespace; names are unique over all sections."""
