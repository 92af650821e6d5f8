"""The thread that writes the log.

1. Every line is written, in order and whole, before the writer is closed.
2. Whoever logs never waits: where nobody reads, lines are dropped, counted and told.
3. Writes hold whole lines, and no more than a pipe takes at once.
4. A log that cannot be written ends nothing.
"""

import json
import logging
import os
import threading
from pathlib import Path

import pytest

from turnkeeper.choices import LogFormat
from turnkeeper.logs.line import LONGEST_LINE_BYTES, LineRenderer, LogLine
from turnkeeper.logs.writer import DROPPED, LogWriter, join_lines

RENDERER = LineRenderer(LogFormat.JSON)


def build(number: int) -> LogLine:
    return LogLine(at=0.0, level=logging.INFO, event="e", fields={"number": number})


def read_numbers(data: bytes) -> list[int]:
    return [said["number"] for line in data.splitlines() if (said := json.loads(line))["event"] == "e"]


def test_every_line_is_written_in_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        writer = LogWriter(RENDERER, file.fileno())
        for number in range(500):
            writer.put(build(number))
        writer.close()
    assert read_numbers((tmp_path / "log").read_bytes()) == list(range(500))


def test_what_is_flushed_is_written(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        writer = LogWriter(RENDERER, file.fileno(), gather_s=60)
        writer.put(build(1))
        writer.flush()
        assert read_numbers((tmp_path / "log").read_bytes()) == [1]
        writer.close()
        writer.close()
        writer.flush()
        writer.put(build(2))
    assert read_numbers((tmp_path / "log").read_bytes()) == [1]
    assert writer.dropped == 1


class Stalled:
    """A reader that reads nothing until it is told to."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.reads = threading.Event()
        self.data = bytearray()

    def write(self, _: int, data: bytes) -> int:
        self.entered.set()
        assert self.reads.wait(30)
        self.data += data
        return len(data)


def test_lines_are_dropped_and_told_where_nobody_reads() -> None:
    reader = Stalled()
    writer = LogWriter(RENDERER, 2, max_waiting=10, gather_s=0, write=reader.write)
    writer.put(build(0))
    assert reader.entered.wait(30)
    for number in range(1, 31):
        writer.put(build(number))  # returns although the thread is stuck
    writer.close(timeout_s=0.01)
    assert writer.dropped == 20
    reader.reads.set()
    writer.close(timeout_s=30)
    said = [json.loads(line) for line in reader.data.splitlines()]
    assert read_numbers(bytes(reader.data)) == list(range(11))
    assert [(each["event"], each["lines"]) for each in said if each["event"] != "e"] == [(DROPPED, 20)]


def test_writes_hold_whole_lines() -> None:
    lines = [bytes([65 + index % 26]) * (index * 37 % 3000) + b"\n" for index in range(200)]
    pieces = list(join_lines(lines))
    assert b"".join(pieces) == b"".join(lines)
    assert all(piece.endswith(b"\n") and len(piece) <= LONGEST_LINE_BYTES for piece in pieces)
    assert len(pieces) < len(lines)


def test_a_short_write_is_finished() -> None:
    data = bytearray()

    def write(_: int, piece: bytes) -> int:
        data.extend(piece[:7])
        return min(7, len(piece))

    writer = LogWriter(RENDERER, 2, write=write)
    for number in range(3):
        writer.put(build(number))
    writer.close()
    assert read_numbers(bytes(data)) == [0, 1, 2]


@pytest.mark.parametrize("number", [1, 50])
def test_a_log_that_cannot_be_written_ends_nothing(number: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LogWriter(RENDERER, writing)
    for each in range(number):
        writer.put(build(each))
    writer.close()
    os.close(writing)
    assert writer.dropped >= number
