"""A group of processes that end together.

1. Each child gets its task.
2. When one ends, all end, and its status is the group's: 128 and the signal's number where a signal ended it.
3. A group that is told to end ends its children, with the status of the signal, and tells them again at the second
   time; a child that does not listen is killed after its grace or at the third time.
4. Children whose parent was killed end by themselves.
5. The log has a line for each child that starts and for each that ends, with its status or its signal.

No test waits by the clock: a pipe that every child holds ends when the last of them has.
"""

import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnkeeper.server.group import describe_status, run_group

CHILD = textwrap.dedent(
    """
    import os, signal, sys
    from turnkeeper.server.group import read_task
    task = read_task().decode()
    os.write(1, f"{task}\\n".encode())  # one write: the children share the pipe
    if task.startswith("exit"):
        sys.exit(int(task.split()[1]))
    if task == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "ignore":
        signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"told\\n"))
        os.write(1, b"ignoring\\n")
    while True:
        signal.pause()
    """
)
PARENT = textwrap.dedent(
    f"""
    import sys
    from turnkeeper.server.group import run_group
    tasks = [task.encode() for task in sys.argv[2:]]
    sys.exit(run_group([sys.executable, "-c", {CHILD!r}], tasks, grace_s=float(sys.argv[1])))
    """
)


def start(*tasks: str, grace_s: float = 30) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PARENT, str(grace_s), *tasks], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    process = start("a", "b")
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return sorted(process.stdout.readline().strip() for _ in range(count))


def test_the_first_child_to_end_ends_all(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_group([sys.executable, "-c", CHILD], [b"stay", b"exit 3"], grace_s=30) == 3
    assert "exit 3" in capfd.readouterr().out


def test_a_child_that_is_killed_gives_the_status_of_its_signal(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_group([sys.executable, "-c", CHILD], [b"stay", b"kill"], grace_s=30) == 128 + signal.SIGKILL
    assert "kill" in capfd.readouterr().out


def test_the_signal_handlers_of_before_are_back_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert run_group([sys.executable, "-c", CHILD], [b"exit 0"], grace_s=30) == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_child_that_does_not_end_is_killed() -> None:
    with start("ignore", "b", grace_s=0.1) as process:
        assert read_lines(process, 3) == ["b", "ignore", "ignoring"]
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
        assert (rest, process.returncode) == ("told\n", 143)


def test_the_second_signal_is_passed_on_and_the_third_kills() -> None:
    with start("ignore", "ignore") as process:
        assert read_lines(process, 4) == ["ignore", "ignore", "ignoring", "ignoring"]
        process.send_signal(signal.SIGTERM)
        assert read_lines(process, 2) == ["told", "told"]
        process.send_signal(signal.SIGTERM)
        assert read_lines(process, 2) == ["told", "told"]
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=25)
        assert (rest, process.returncode) == ("", 143)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_group_that_is_told_to_end_ends_its_children(parent: subprocess.Popen[str], number: int) -> None:
    assert read_lines(parent, 2) == ["a", "b"]
    os.kill(parent.pid, number)
    rest, _ = parent.communicate(timeout=60)
    assert (rest, parent.returncode) == ("", 128 + number)


def test_children_of_a_killed_parent_end_by_themselves(parent: subprocess.Popen[str]) -> None:
    assert read_lines(parent, 2) == ["a", "b"]
    parent.kill()
    rest, _ = parent.communicate(timeout=60)
    assert rest == ""


def test_the_log_tells_of_every_child(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "turnkeeper.workers")
    assert run_group([sys.executable, "-c", CHILD], [b"a", b"exit 3"], grace_s=30) == 3
    said = [re.sub(r" pid=\d+", "", record.getMessage()) for record in caplog.records]
    assert said[:3] == ["worker_started worker=0", "worker_started worker=1", "worker_ended worker=1 status=3"]
    assert said[3:] == ["worker_ended worker=0 signal=SIGTERM"]
    assert [record.levelno for record in caplog.records] == [20, 20, 30, 20]


@pytest.mark.parametrize(
    ("status", "said"), [(0, {"status": 0}), (2, {"status": 2}), (-9, {"signal": "SIGKILL"}), (-40, {"signal": "40"})]
)
def test_an_end_is_described(status: int, said: dict[str, object]) -> None:
    assert describe_status(status) == said
