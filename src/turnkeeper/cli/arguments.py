"""The arguments of this process as others see them: what a process list shows of a server has no keys in it."""

import ctypes
import re
from collections.abc import Iterable
from pathlib import Path

_ARG_START, _ARG_END = 45, 46
"""The places of ``arg_start`` and ``arg_end`` in ``/proc/self/stat``, counted behind the program's name."""

_USERINFO = re.compile(rb"(?<=//)[^/?#\s]*(?=@)")


def hide_arguments(secrets: Iterable[str]) -> None:
    """Overwrite keys in this process's arguments, and the user and password of every URL in them.

    What this process has read of its arguments stays. Where a system keeps no such memory (only Linux is known to),
    nothing happens.

    Args:
        secrets: those that stand as an argument, or behind the equals sign of one.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        start, size = int(fields[_ARG_START]), int(fields[_ARG_END]) - int(fields[_ARG_START])
    except (OSError, ValueError, IndexError):
        return
    if not start:  # the system does not tell
        return
    for first, last in find_secrets(ctypes.string_at(start, size), secrets):
        ctypes.memset(start + first, ord("*"), last - first)


def find_secrets(arguments: bytes, secrets: Iterable[str]) -> list[tuple[int, int]]:
    """Find where secrets stand in the arguments, as first and last place. Pure.

    Args:
        arguments: each ends with a NUL.
        secrets: those that stand as an argument, or behind the equals sign of one.
    """
    hidden = {each.encode() for each in secrets if each}
    found: list[tuple[int, int]] = []
    place = 0
    for argument in arguments.split(b"\0"):
        value = argument if argument in hidden else argument.partition(b"=")[2]
        if value in hidden:
            found.append((place + len(argument) - len(value), place + len(argument)))
        else:
            found += [(place + each.start(), place + each.end()) for each in _USERINFO.finditer(argument)]
        place += len(argument) + 1
    return found
