"""A group of processes that end together.

The parent hands each child its task over the child's stdin and keeps that pipe open: when the parent dies, however it
dies, the pipe ends and so does the child. Plain subprocesses, since a trainer may run the parent as a daemonic
process, which multiprocessing allows no children. Knows nothing of what the children do.
"""

import logging
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from types import FrameType

from turnkeeper.logs import LogEvent

logger = logging.getLogger("turnkeeper.workers")

_LENGTH = struct.Struct("<Q")
_ORDERLY = (0, -signal.SIGTERM)
"""The statuses of children that ended as they were told."""


def run_group(command: Sequence[str], tasks: Sequence[bytes], *, grace_s: float) -> int:
    """Run one process a task until one ends or this process is told to, then end all of them.

    Call it in the main thread: it answers SIGTERM and SIGINT while it runs. The second one is passed on, so that
    children which drain end at once; the third one kills.

    Args:
        command: the program of every child; it starts with `read_task`.
        tasks: what each child gets.
        grace_s: how long the children may take to end before they are killed.

    Returns:
        The exit status of the child that ended first, or 128 and the number of the signal that ended it, or that this
        process got first.
    """
    ended: SimpleQueue[int] = SimpleQueue()

    children: list[subprocess.Popen[bytes]] = []
    reporters: list[threading.Thread] = []
    told = 0

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal told
        told += 1
        for child in children if told > 1 else ():
            child.terminate() if told == 2 else child.kill()
        ended.put(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number, task in enumerate(tasks):
            children.append(_start(command, task))
            logger.info(LogEvent("worker_started", worker=number, pid=children[-1].pid))
            reporters.append(threading.Thread(target=_report, args=(number, children[-1], ended), daemon=True))
            reporters[-1].start()
        status = ended.get()
        told = max(told, 1)
        return status
    finally:
        _end(children, grace_s)
        for reporter in reporters:
            reporter.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def read_task(descriptor: int = 0) -> bytes:
    """Read this child's task, and end this process by SIGTERM once the parent is gone.

    Args:
        descriptor: where the parent writes; stdin unless told otherwise.
    """
    # os.read, since a thread that waits inside a buffered stream would hold its lock when the interpreter ends.
    (size,) = _LENGTH.unpack(_read_exactly(descriptor, _LENGTH.size))
    task = _read_exactly(descriptor, size)
    threading.Thread(target=_follow, args=(descriptor,), daemon=True).start()
    return task


def _read_exactly(descriptor: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = os.read(descriptor, size - len(data))
        if not piece:
            raise EOFError("the parent ended before it had written the task")
        data += piece
    return bytes(data)


def _start(command: Sequence[str], task: bytes) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches the parent alone, which then ends the children once.
    child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert child.stdin is not None
    try:
        child.stdin.write(_LENGTH.pack(len(task)) + task)
        child.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended already; its status says why
    return child


def _report(number: int, child: subprocess.Popen[bytes], ended: SimpleQueue[int]) -> None:
    status = child.wait()
    level = logging.INFO if status in _ORDERLY else logging.WARNING
    logger.log(level, LogEvent("worker_ended", worker=number, pid=child.pid, **describe_status(status)))
    ended.put(status if status >= 0 else 128 - status)


def describe_status(status: int) -> dict[str, int | str]:
    """Describe how a child ended: the field ``status``, or ``signal`` where a signal ended it."""
    if status >= 0:
        return {"status": status}
    try:
        return {"signal": signal.Signals(-status).name}
    except ValueError:  # a signal without a name, as those for real-time use
        return {"signal": str(-status)}


def _follow(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _end(children: Sequence[subprocess.Popen[bytes]], grace_s: float) -> None:
    for child in children:
        child.terminate()
    deadline = time.monotonic() + grace_s
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdin is not None:
            child.stdin.close()
