"""From records of the standard library's logging to lines.

1. A line carries the ids of what runs, and what an event says; a sentence is the event `message`.
2. Lines below the level of the log are left out, except those of sessions that are followed.
3. An exception is told by its type, its places and its cause, never by its words.
4. What other libraries log may quote what came over the wire, so only their templates are written.
"""

import asyncio
import logging

import pytest

from turnkeeper.errors import EngineRefusedError, RequestError
from turnkeeper.logs import LogEvent, add_ids, get_ids, with_ids
from turnkeeper.logs.handler import LogHandler, build_line
from turnkeeper.logs.line import LogLine
from turnkeeper.logs.writer import LogWriter

SECRET = "the agent's own words"


class KeptLines(LogWriter):
    """A writer that keeps lines instead of writing them."""

    def __init__(self) -> None:
        self.lines: list[LogLine] = []

    def put(self, line: LogLine) -> None:
        self.lines.append(line)


def build_record(message: object, *args: object, name: str = "turnkeeper", error: BaseException | None = None):
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(name, logging.INFO, "file.py", 1, message, args, exc_info)


def test_a_line_carries_the_ids_first() -> None:
    with with_ids(session="s", request="r"):
        add_ids(turn=4)
        line = build_line(build_record(LogEvent("turn_matched", kind="branch")))
    assert (line.event, list(line.fields.items())) == (
        "turn_matched",
        [("session", "s"), ("turn", 4), ("request", "r"), ("kind", "branch")],
    )


def test_an_event_of_another_turn_names_its_own_ids() -> None:
    with with_ids(session="s", turn=1):
        line = build_line(build_record(LogEvent("turn_ended", session="other", turn=2)))
    assert line.fields == {"session": "other", "turn": 2}


async def test_tasks_have_the_ids_of_the_request_that_began_them() -> None:
    async def work() -> object:
        return get_ids().get("session")

    with with_ids(session="s", request=""):
        task = asyncio.create_task(work())
        assert dict(get_ids()) == {"session": "s"}
    assert not get_ids()
    assert await task == "s"


def test_a_sentence_is_an_event_too() -> None:
    line = build_line(build_record("%d sessions are left", 3, name="turnkeeper.tasks"))
    assert line.event == "message"
    assert line.fields == {"logger": "turnkeeper.tasks", "message": "3 sessions are left"}


def test_the_level_and_the_followed_sessions_choose() -> None:
    kept = KeptLines()
    logger = logging.getLogger("turnkeeper.test_handler")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    handler = LogHandler(kept, level=logging.WARNING, followed=["followed"])
    logger.addHandler(handler)
    try:
        logger.info(LogEvent("a"))
        logger.info(LogEvent("b", session="other"))
        logger.debug(LogEvent("c", session="followed"))
        with with_ids(session="followed"):
            logger.debug("d")
        with with_ids(session="other"):
            logger.debug("e")
            logger.warning(LogEvent("f"))
    finally:
        logger.removeHandler(handler)
    assert [line.fields.get("message", line.event) for line in kept.lines] == ["c", "d", "f"]


def fail(error: BaseException) -> BaseException:
    try:
        try:
            int(SECRET)
        except ValueError as cause:
            raise error from cause
    except BaseException as raised:
        return raised


def test_an_exception_is_told_without_its_words() -> None:
    line = build_line(build_record("unforeseen %s", "KeyError", error=fail(KeyError(SECRET))))
    assert line.fields["error"] == "KeyError"
    assert line.fields["because"] == ("ValueError",)
    assert line.fields["frames"] == (f"logs/test_handler.py:{fail.__code__.co_firstlineno + 5} fail",)
    assert SECRET not in str(line)


def test_an_error_of_ours_is_told_by_its_code_and_facts() -> None:
    error = EngineRefusedError(SECRET, hint="do this", url="http://e", engine_status=400, said=SECRET)
    line = build_line(build_record("failed", error=fail(error)))
    assert line.fields["code"] == "engine_refused"
    assert line.fields["facts"] == {"url": "http://e", "engine_status": 400}
    assert line.fields["hint"] == "do this"
    assert SECRET not in str(line)


@pytest.mark.parametrize(
    ("param", "shown"),
    [
        ("messages[3].content", True),
        ("temperature", True),
        ("lora_of_mine", False),
        ("tools[0].mine", False),
        ("sampling_params.top_p", True),
        (SECRET, False),
        ("a" * 300, False),
        (7, True),
    ],
)
def test_a_parameter_is_named_where_its_words_are_known(param: object, shown: bool) -> None:
    line = build_line(build_record("refused", error=RequestError("x", param=param)))
    assert ((line.fields["facts"] or {}) == {"param": param}) is shown


def test_the_operating_system_says_why() -> None:
    line = build_line(build_record("x", error=ConnectionRefusedError(111, SECRET)))
    assert line.fields["error"] == "ConnectionRefusedError: Connection refused"


@pytest.mark.parametrize(
    ("name", "message", "args", "said"),
    [
        ("aiohttp.client", "cannot read %s", (SECRET,), "cannot read %s"),
        ("asyncio", f"Task exception was never retrieved\nfuture: {SECRET}", (), "Task exception was never retrieved"),
        ("asyncio", f"Exception in callback <{SECRET}>", (), "Exception in callback"),
        ("uvicorn.error", "Started server process [%d]", (3,), "Started server process [3]"),
    ],
)
def test_a_library_is_quoted_by_its_template(name: str, message: str, args: tuple[object, ...], said: str) -> None:
    assert build_line(build_record(message, *args, name=name)).fields["message"] == said
