"""The log of a server: structured lines, written by a thread, that hold no key and no word of an agent."""

from turnkeeper.logs.context import add_ids, get_ids, with_ids
from turnkeeper.logs.event import LogEvent
from turnkeeper.logs.fault import describe_error
from turnkeeper.logs.path import shorten_path
from turnkeeper.logs.reports import log_report
from turnkeeper.logs.setup import LogOptions, flush_log, logging_to

__all__ = [
    "LogEvent",
    "LogOptions",
    "add_ids",
    "describe_error",
    "flush_log",
    "get_ids",
    "log_report",
    "logging_to",
    "shorten_path",
    "with_ids",
]
