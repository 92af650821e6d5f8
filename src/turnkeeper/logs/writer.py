"""The thread that writes the log: whoever logs hands a line over and goes on at once.

A line waits in a bounded queue. Where the reader of the log is slower than what is logged, lines are dropped and
counted, and the log says how many: the server neither waits nor grows. Lines are gathered for a moment, so that a busy
server wakes the thread some twenty times a second rather than once a turn, and are written as whole lines.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from turnkeeper.logs.line import LONGEST_LINE_BYTES, LineRenderer, LogLine

MAX_WAITING_LINES = 20_000
"""The lines that may wait to be written: several seconds of the busiest server."""

GATHER_S = 0.05
"""The time for which lines are gathered before they are written."""

FLUSH_TIMEOUT_S = 2.0
"""How long the end of a process waits for a reader that does not read the log."""

DROPPED = "log_lines_dropped"
"""The event that says how many lines are missing before it."""


class LogWriter:
    """Writes lines to a file descriptor, in a thread of its own."""

    def __init__(
        self,
        renderer: LineRenderer,
        descriptor: int,
        *,
        max_waiting: int = MAX_WAITING_LINES,
        gather_s: float = GATHER_S,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        """Begin to write.

        Args:
            renderer: makes the bytes of each line.
            descriptor: where they are written; it stays open.
            max_waiting: the number of lines that may wait.
            gather_s: the time for which lines are gathered.
            write: writes some of the bytes, and returns how many, as ``os.write``.
        """
        self._renderer = renderer
        self._descriptor = descriptor
        self._max_waiting = max_waiting
        self._gather_s = gather_s
        self._write_some = write
        self._waiting: deque[LogLine | threading.Event] = deque()
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._closing = threading.Event()
        self.dropped = 0
        """The number of lines dropped so far; the log has said so of all but the newest."""
        self._told = 0
        self._thread = threading.Thread(target=self._run, name="turnkeeper-log", daemon=True)
        self._thread.start()

    def put(self, line: LogLine) -> None:
        """Hand over a line; any thread may, and none waits. A closed writer takes no lines."""
        if self._closing.is_set() or len(self._waiting) >= self._max_waiting:
            self.dropped += 1
            return
        self._waiting.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Wait until every line handed over so far is written; give up after a while where nobody reads."""
        if not self._closing.is_set():
            written = threading.Event()
            self._waiting.append(written)
            self._hurry.set()
            self._wake.set()
            written.wait(timeout_s)

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Write what waits, and end the thread; give up after a while where nobody reads. Repeating it does nothing."""
        self._closing.set()
        self._hurry.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._hurry.wait(self._gather_s)
            self._hurry.clear()
            self._wake.clear()
            self._write_waiting()
        self._write_waiting()

    def _write_waiting(self) -> None:
        flushed: list[threading.Event] = []
        for chunk in join_lines(self._render_waiting(flushed)):
            try:
                self._write(chunk)
            except OSError:  # the disk is full, or the reader has left: nothing can be told there
                self.dropped += chunk.count(b"\n")
        for each in flushed:
            each.set()

    def _render_waiting(self, flushed: list[threading.Event]) -> Iterator[bytes]:
        """Render the lines that wait, and list who waits for them to be written."""
        for _ in range(len(self._waiting)):
            line = self._waiting.popleft()
            if isinstance(line, threading.Event):
                flushed.append(line)
                continue
            try:
                yield self._renderer.render(line)
            except Exception:  # one bad line must not end the log
                self.dropped += 1
        if (lines := self.dropped - self._told) > 0:
            self._told += lines
            fields = {"lines": lines}
            yield self._renderer.render(LogLine(at=time.time(), level=logging.WARNING, event=DROPPED, fields=fields))

    def _write(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while rest:
            rest = rest[self._write_some(self._descriptor, bytes(rest)) :]


def join_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join lines into pieces of whole lines that a pipe takes at once."""
    piece = bytearray()
    for line in lines:
        if len(piece) + len(line) > LONGEST_LINE_BYTES and piece:
            yield bytes(piece)
            piece.clear()
        piece += line
    if piece:
        yield bytes(piece)
