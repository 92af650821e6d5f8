"""The log of one process, from its first line to its last."""

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from turnkeeper.choices import LogFormat, LogLevel
from turnkeeper.errors import ConfigError
from turnkeeper.logs.handler import OURS, LogHandler
from turnkeeper.logs.line import LineRenderer
from turnkeeper.logs.writer import LogWriter

logger = logging.getLogger("turnkeeper")

STDERR = 2
"""The descriptor of standard error: logs go there, data to standard output."""

LIBRARY_LEVEL = logging.WARNING
"""The least level of other libraries' records, unless the log's is higher or debug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How a process logs."""

    level: LogLevel = LogLevel.INFO
    form: LogFormat = LogFormat.TEXT
    sessions: tuple[str, ...] = ()
    """The ids of the sessions that are logged at debug, whatever the level."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The keys that no line may show."""
    worker: int | None = None
    """The number of this process; None where there is only one."""


@contextmanager
def logging_to(options: LogOptions, *, is_whole_process: bool, descriptor: int = STDERR) -> Generator[None]:
    """Log to a descriptor while the block runs, and write every line before the block is left.

    Args:
        options: how to log.
        is_whole_process: True where the process is the server's own, and what other libraries log belongs into the
            same log. Otherwise only the loggers of the server get a handler, and none do where the process has set up
            logging already: then its own handlers get everything.
        descriptor: where lines are written.
    """
    if not is_whole_process and logging.getLogger().handlers:
        yield
        return
    renderer = LineRenderer(options.form, secrets=options.secrets, worker=options.worker)
    writer = LogWriter(renderer, descriptor)
    level = logging.getLevelNamesMapping()[options.level.upper()]
    handler = LogHandler(writer, level=level, followed=options.sessions)
    restore = _install(handler, level, options, is_whole_process=is_whole_process)
    try:
        with logging_faults():
            yield
    finally:
        restore()
        writer.close()


def flush_log() -> None:
    """Write every line logged so far: for the moment before a signal ends the process."""
    for name in ("", *OURS):
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, LogHandler):
                handler.flush()


@contextmanager
def logging_faults() -> Generator[None]:
    """Log what ends the block unforeseen, and what ends a thread meanwhile, in the form of every other line."""

    def note(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            logger.error("a thread failed", exc_info=args.exc_value)

    before, threading.excepthook = threading.excepthook, note
    try:
        yield
    except Exception as error:
        if not isinstance(error, ConfigError):  # whoever started the server tells it in a sentence
            logger.critical("the server failed", exc_info=error)
        raise
    finally:
        threading.excepthook = before


def _install(
    handler: logging.Handler, level: int, options: LogOptions, *, is_whole_process: bool
) -> Callable[[], None]:
    """Give the loggers the handler and their levels; what is returned takes it back."""
    ours, others = (logging.DEBUG if options.sessions else level), max(level, LIBRARY_LEVEL)
    levels = {"turnkeeper": ours, "uvicorn": others}
    if is_whole_process:
        levels = {"": others, **levels}
    loggers = {name: logging.getLogger(name) for name in levels}
    before = {name: (each.level, each.propagate) for name, each in loggers.items()}
    handled = ("",) if is_whole_process else OURS
    for name, each in loggers.items():
        each.setLevel(levels[name])
    for name in handled:
        loggers[name].addHandler(handler)
        loggers[name].propagate = False

    def restore() -> None:
        for name in handled:
            loggers[name].removeHandler(handler)
        for name, (old, propagate) in before.items():
            loggers[name].setLevel(old)
            loggers[name].propagate = propagate

    return restore
