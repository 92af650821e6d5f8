"""Events: what the log says of something that happened, as a name with fields instead of a sentence."""

from collections.abc import Mapping
from typing import TypeAlias

Scalar: TypeAlias = str | int | float | bool
FieldValue: TypeAlias = Scalar | tuple[str, ...] | Mapping[str, Scalar] | None
"""What a field may hold. A field that is None is left out of the line."""


_NUMBERS = (int, float)


class LogEvent:
    """A message for the standard library's loggers: ``logger.info(LogEvent("session_began", session=session_id))``.

    The log of `turnkeeper.logs` writes its fields as keys; any other handler shows the text ``session_began
    session=...``. Fields hold numbers, names and ids, and never what an agent wrote.
    """

    __slots__ = ("fields", "name")

    def __init__(self, name: str, /, **fields: FieldValue) -> None:
        """Name what happened, in snake case, and say with which values."""
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        """The name and the fields, as the text form of the log has them."""
        return " ".join((self.name, *render_fields(self.fields)))


def render_fields(fields: Mapping[str, FieldValue]) -> list[str]:
    """Render fields as ``key=value``; a value that holds blanks, quotes or ``=`` stands in quotes."""
    return [f"{name}={render_value(value)}" for name, value in fields.items() if value is not None]


def render_value(value: FieldValue) -> str:
    """Render one value of the text form, without control characters."""
    if type(value) is int:  # asking in vain whether a value is of a class takes longer than comparing its class
        return str(value)
    if type(value) is float:
        return f"{value:.6f}".rstrip("0").rstrip(".")
    if isinstance(value, str):
        text = escape(value)
    elif isinstance(value, bool):
        return "true" if value else "false"
    elif isinstance(value, _NUMBERS):
        return str(value)
    elif isinstance(value, tuple):
        text = escape(",".join(value))
    else:
        text = escape(" ".join(f"{name}={render_value(each)}" for name, each in (value or {}).items()))
    if text and not (" " in text or '"' in text or "=" in text or "\\" in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def escape(text: str) -> str:
    r"""Write every character that is not printable as ``\n``, ``\x1b`` or ``\u2028``: no value can begin a line or
    steer a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
