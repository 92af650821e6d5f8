"""The handler that turns records of the standard library's logging into lines.

Which records become lines: those at the level of the log, and all of the sessions that are followed. What a line of
another library says is its template alone, since its arguments may quote what came over the wire.
"""

import logging
from collections.abc import Collection

from turnkeeper.logs.context import get_ids
from turnkeeper.logs.event import FieldValue, LogEvent
from turnkeeper.logs.fault import describe_fault
from turnkeeper.logs.line import Fields, LogLine
from turnkeeper.logs.writer import LogWriter

ID_KEYS = ("session", "turn", "number", "request")
"""The ids that lines carry where there are any, in this order and before every other key."""

MESSAGE = "message"
"""The event of a record that is a sentence, and the key of the sentence."""

OURS = ("turnkeeper", "uvicorn")
"""The loggers whose sentences are known to quote nobody."""


class LogHandler(logging.Handler):
    """Makes a line of each record, and hands it over."""

    def __init__(self, writer: LogWriter, *, level: int, followed: Collection[str] = ()) -> None:
        """Hand lines to a writer.

        Args:
            writer: takes a line, and returns at once.
            level: the least level of a record.
            followed: ids of sessions of which every record becomes a line.
        """
        super().__init__()
        self._writer = writer
        self._least = level
        self._followed = frozenset(followed)

    def handle(self, record: logging.LogRecord) -> bool:
        """Make a line of the record; without the lock that other handlers need around their streams."""
        ids = get_ids()
        if record.levelno < self._least and self._find_session(record, ids) not in self._followed:
            return False
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Make a line of the record."""
        try:
            self._writer.put(build_line(record))
        except Exception:  # a line that cannot be made must not end what it is about
            self.handleError(record)

    def flush(self) -> None:
        """Wait until the lines are written; the standard library calls it when the process ends."""
        self._writer.flush()

    @staticmethod
    def _find_session(record: logging.LogRecord, ids: Fields) -> object:
        named = record.msg.fields.get("session") if isinstance(record.msg, LogEvent) else None
        return named or ids.get("session")


def build_line(record: logging.LogRecord) -> LogLine:
    """Build the line of a record, with the ids of what runs now."""
    if isinstance(record.msg, LogEvent):
        event, said = record.msg.name, record.msg.fields
    else:
        event, said = MESSAGE, {"logger": record.name, "message": read_message(record)}
    context = get_ids()
    fields: dict[str, FieldValue] = {}
    for name in ID_KEYS:
        value = said.get(name)
        if value is None:
            value = context.get(name)
        if value is not None:
            fields[name] = value
    fields |= {name: value for name, value in said.items() if value is not None}  # an id keeps its place
    if record.exc_info and record.exc_info[1] is not None:
        fields |= describe_fault(record.exc_info[1])
    return LogLine(at=record.created, level=record.levelno, event=event, fields=fields)


def read_message(record: logging.LogRecord) -> str:
    """Read the sentence of a record; of other libraries its template up to where it may quote something."""
    if record.name.partition(".")[0] in OURS:
        return record.getMessage()
    template = str(record.msg).partition("\n")[0]
    return template if record.args else template[: _find_quote(template)].rstrip()


def _find_quote(text: str) -> int:
    return next((index for index, each in enumerate(text) if each in "<>()[]{}'\"`:="), len(text))
