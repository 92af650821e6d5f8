"""The log of a process.

1. A server's own process logs everything there, in one form; inside another process only the server's loggers get a
   handler, and none where logging is set up already. Afterwards logging is as it was.
2. Other libraries are heard from warnings on, or at the log's own level where that is higher.
3. What ends the process unforeseen, or a thread, is a line too; a configuration error is not.
4. A server that is embedded into another program, or run by a trainer, sets up nothing there.
"""

import json
import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from httpkit import running_site
from servicekit import user
from turnkeeper.choices import LogFormat, LogLevel
from turnkeeper.errors import ConfigError
from turnkeeper.logs import LogEvent, LogOptions, flush_log, logging_to
from turnkeeper.tiny.checkpoint import shipped_checkpoint
from turnkeeper.trainer import SessionServer

OURS = logging.getLogger("turnkeeper.test_setup")
OTHER = logging.getLogger("aiohttp.test_setup")
SECRET = "the agent's own words"


class Log:
    """The lines written so far."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def list_said(self) -> list[str]:
        return [each.get("message", each["event"]) for each in self.read()]


@contextmanager
def without_handlers() -> Generator[None]:
    """Hide the handlers that pytest gives the root logger."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = before


@contextmanager
def logging_into(path: Path, *, is_whole_process: bool = True, **options: Any) -> Generator[Log]:
    chosen = LogOptions(form=LogFormat.JSON, **options)
    with (
        path.open("ab") as file,
        without_handlers(),
        logging_to(chosen, is_whole_process=is_whole_process, descriptor=file.fileno()),
    ):
        yield Log(path)


def describe_logging() -> list[tuple[object, ...]]:
    loggers = [logging.getLogger(name) for name in ("", "turnkeeper", "uvicorn")]
    return [(each.level, each.propagate, list(each.handlers)) for each in loggers]


@pytest.mark.parametrize("is_whole_process", [True, False])
def test_logging_is_as_it_was_afterwards(is_whole_process: bool, tmp_path: Path) -> None:
    before = describe_logging()
    with logging_into(tmp_path / "log", is_whole_process=is_whole_process) as log:
        assert describe_logging() != before
    assert describe_logging() == before
    assert log.read() == []


@pytest.mark.parametrize(
    ("is_whole_process", "level", "said"),
    [
        (True, LogLevel.DEBUG, ["a", "b", "c", "d", "g", "h"]),
        (True, LogLevel.INFO, ["b", "c", "d", "g", "h"]),
        (True, LogLevel.ERROR, ["d", "h"]),
        (False, LogLevel.INFO, ["b", "c", "d"]),
        (False, LogLevel.WARNING, ["c", "d"]),
    ],
)
def test_the_level_and_the_loggers_choose(
    is_whole_process: bool, level: LogLevel, said: list[str], tmp_path: Path
) -> None:
    with logging_into(tmp_path / "log", is_whole_process=is_whole_process, level=level) as log:
        for name, number in zip("abcd", (10, 20, 30, 40), strict=True):
            OURS.log(number, LogEvent(name))
        for name, number in zip("efgh", (10, 20, 30, 40), strict=True):
            OTHER.log(number, name)
    assert log.list_said() == said


def test_a_process_that_logs_already_keeps_its_own_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = describe_logging()
    with (
        (tmp_path / "log").open("ab") as file,
        logging_to(LogOptions(), is_whole_process=False, descriptor=file.fileno()),
    ):
        assert describe_logging() == before
        OURS.warning(LogEvent("a", number=1))
    assert (tmp_path / "log").read_bytes() == b""
    assert [record.getMessage() for record in caplog.records] == ["a number=1"]


def test_a_followed_session_is_logged_at_debug(tmp_path: Path) -> None:
    with logging_into(tmp_path / "log", level=LogLevel.ERROR, sessions=("0" * 32,)) as log:
        OURS.debug(LogEvent("a", session="0" * 32))
        OURS.info(LogEvent("b", session="1" * 32))
        OURS.error(LogEvent("c", session="1" * 32))
    assert log.list_said() == ["a", "c"]


def test_what_is_logged_is_there_after_a_flush(tmp_path: Path) -> None:
    with logging_into(tmp_path / "log") as log:
        OURS.info(LogEvent("a"))
        flush_log()
        assert log.list_said() == ["a"]


def test_every_line_names_the_worker(tmp_path: Path) -> None:
    with logging_into(tmp_path / "log", worker=2) as log:
        OURS.info(LogEvent("a"))
    assert [each["worker"] for each in log.read()] == [2]


def test_a_crash_is_the_last_line(tmp_path: Path) -> None:
    with pytest.raises(KeyError), logging_into(tmp_path / "log") as log:
        raise KeyError(SECRET)
    (line,) = log.read()
    assert (line["level"], line["message"], line["error"]) == ("critical", "the server failed", "KeyError")
    assert SECRET not in log.path.read_text()


def test_a_configuration_that_cannot_work_is_told_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), logging_into(tmp_path / "log") as log:
        raise ConfigError("no folder")
    assert log.read() == []


def test_a_thread_that_fails_is_logged(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError(SECRET)

    with logging_into(tmp_path / "log") as log:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    (line,) = log.read()
    assert (line["message"], line["error"]) == ("a thread failed", "ValueError")
    assert SECRET not in log.path.read_text()


def test_the_options_of_a_log_show_no_key() -> None:
    assert "s3cret" not in repr(LogOptions(secrets=("s3cret",)))


async def test_a_server_inside_another_program_sets_up_no_logging(tmp_path: Path) -> None:
    before = describe_logging()
    async with running_site() as site:
        assert (await site.chat(await site.create(), [user("a")])).status == 200
        assert describe_logging() == before
    args = SimpleNamespace(hf_checkpoint=str(shipped_checkpoint()), tito_model="qwen3", pause_generation_mode="abort")
    SessionServer(args, "http://127.0.0.1:9")
    assert describe_logging() == before
