"""One line of the log, as text or as a JSON object; bounded in length, without control characters and keys."""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias, cast

import orjson

from turnkeeper.choices import LogFormat
from turnkeeper.ids import SESSION_KEY, SESSION_KEY_LENGTH
from turnkeeper.logs.event import FieldValue, escape, render_fields

LONGEST_LINE_BYTES = 4096
"""The length of the longest line, its end included: so much a pipe takes at once, and the lines of several processes
that write into one pipe do not get mixed."""

HIDDEN = "[key]"
"""Stands where a key stood."""

CUT = "..."
"""Stands at the end of a value that was cut."""

_LENGTHS = (2000, 500, 100, 20)
"""The longest values of a line that is too long, tried one after the other."""

_LONGEST_INT_BITS = 63
"""A longer number is written as text: readers of JSON do not agree on it."""

_NUMBERS = {int, float, bool, type(None)}
"""The kinds of values beside texts that need no cleaning, if they are not too long."""

Fields: TypeAlias = Mapping[str, FieldValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """What one line says."""

    at: float
    """Unix seconds."""
    level: int
    """One of the levels of the standard library's logging."""
    event: str
    fields: Fields
    """In the order in which they are written; ids come first."""


class LineRenderer:
    """Renders lines in one format."""

    def __init__(self, form: LogFormat, *, secrets: Iterable[str] = (), worker: int | None = None) -> None:
        """Render lines in this format.

        Args:
            form: text, or JSON.
            secrets: the keys that no line shows, beside the keys of sessions, which are known by their form.
            worker: the number of this process among several, for every line; None where there is one process.
        """
        self._form = form
        known = [each for each in secrets if each]
        self._known = tuple(known)
        self._secret = re.compile("|".join([SESSION_KEY.pattern, *map(re.escape, known)]))
        self._shortest_secret = min((len(each) for each in known), default=SESSION_KEY_LENGTH)
        self._worker = {} if worker is None else {"worker": worker}
        self._second, self._second_text = -1, ""

    def render(self, line: LogLine) -> bytes:
        """Render one line with its end, at most `LONGEST_LINE_BYTES` long."""
        fields = {**self._worker, **line.fields}
        if not self._is_plain(fields.values()):
            fields = {name: self._clean(value) for name, value in fields.items()}
        rendered = self._render(line, fields)
        for length in _LENGTHS:
            if len(rendered) <= LONGEST_LINE_BYTES:
                return rendered
            rendered = self._render(line, {**_shorten(fields, length), "cut": True})
        if len(rendered) <= LONGEST_LINE_BYTES:
            return rendered
        return self._render(line, {**self._worker, "cut": True})

    def _is_plain(self, values: Iterable[FieldValue]) -> bool:
        """Return True where no value needs cleaning, which is nearly always so; all texts are looked at together."""
        texts: list[str] = []
        for value in values:
            kind = type(value)
            if kind is str:
                texts.append(cast(str, value))
            elif (kind is int and cast(int, value).bit_length() > _LONGEST_INT_BITS) or kind not in _NUMBERS:
                return False
        said = " ".join(texts)
        return said.isprintable() and not any(key in said for key in self._known) and not SESSION_KEY.search(said)

    def _render(self, line: LogLine, fields: Fields) -> bytes:
        time = self._format_time(line.at)
        if self._form is LogFormat.JSON:
            level = logging.getLevelName(line.level).lower()
            rounded = {
                name: round(value, 6) if isinstance(value, float) else value
                for name, value in fields.items()
                if value is not None
            }
            return orjson.dumps({"time": time, "level": level, "event": line.event, **rounded}) + b"\n"
        parts = [time, logging.getLevelName(line.level), line.event, *render_fields(fields)]
        return " ".join(parts).encode() + b"\n"

    def _format_time(self, at: float) -> str:
        """UTC in milliseconds; the seconds of the last line are kept, since most lines are of one second."""
        second, micros = divmod(round(at * 1_000_000), 1_000_000)
        if second != self._second:
            self._second, self._second_text = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._second_text}.{micros // 1000:03d}Z"

    def _clean(self, value: FieldValue) -> FieldValue:
        if isinstance(value, str):
            return self._clean_text(value)
        if value is None or isinstance(value, int | float):
            return None if value is None else _clean_number(value)
        if isinstance(value, tuple):
            return tuple(map(self._clean_text, value))
        return {
            name: self._clean_text(each) if isinstance(each, str) else _clean_number(each)
            for name, each in value.items()
        }

    def _clean_text(self, text: str) -> str:
        if len(text) >= self._shortest_secret:
            text = self._secret.sub(HIDDEN, text)
        return escape(text)


def _clean_number(value: int | float) -> int | float | str:
    return hex(value) if isinstance(value, int) and value.bit_length() > _LONGEST_INT_BITS else value


def _shorten(fields: Fields, length: int) -> Fields:
    return {name: _shorten_value(value, length) for name, value in fields.items()}


def _shorten_value(value: FieldValue, length: int) -> FieldValue:
    if isinstance(value, str):
        return value if len(value) <= length else value[:length] + CUT
    if isinstance(value, tuple):
        kept = _fit(value, length)
        return value if len(kept) == len(value) else (*kept, CUT)
    if isinstance(value, Mapping):
        names = _fit(tuple(value), length // 2)
        return {name: each[:length] if isinstance(each := value[name], str) else each for name in names}
    return value


def _fit(texts: tuple[str, ...], length: int) -> tuple[str, ...]:
    """The first texts that have so many characters together."""
    kept, used = list[str](), 0
    for text in texts:
        used += len(text)
        if used > length:
            break
        kept.append(text)
    return tuple(kept)
