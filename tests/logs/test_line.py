"""One line of the log.

1. A JSON line is one object with the keys of its event; a text line has the same keys.
2. No line is longer than a pipe takes at once; what was cut ends with a mark.
3. No value begins a line of its own, steers a terminal or breaks the JSON.
4. No line shows a key: neither those of the server nor that of a session.
"""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.choices import LogFormat
from turnkeeper.ids import build_session_id, build_session_key
from turnkeeper.logs import LogEvent
from turnkeeper.logs.event import FieldValue
from turnkeeper.logs.line import CUT, HIDDEN, LONGEST_LINE_BYTES, LineRenderer, LogLine

SESSION_ID = build_session_id(bytes(16))


def build(event: str = "turn_ended", **fields: FieldValue) -> LogLine:
    return LogLine(at=1_796_126_400.123, level=logging.INFO, event=event, fields=fields)


def test_a_json_line_is_one_object_with_its_keys_in_order() -> None:
    line = build(session=SESSION_ID, turn=3, gate_s=0.25, label="branch", error=None, facts={"limit_tokens": 8})
    assert LineRenderer(LogFormat.JSON).render(line) == (
        b'{"time":"2026-12-01T12:00:00.123Z","level":"info","event":"turn_ended",'
        b'"session":"00000000000000000000000000000000","turn":3,"gate_s":0.25,"label":"branch",'
        b'"facts":{"limit_tokens":8}}\n'
    )


def test_a_text_line_has_the_same_keys() -> None:
    line = build(session=SESSION_ID, turn=3, gate_s=0.25, reason="not fit", is_paused=True, urls=("a", "b"))
    assert LineRenderer(LogFormat.TEXT, worker=1).render(line).decode() == (
        "2026-12-01T12:00:00.123Z INFO turn_ended worker=1 session=00000000000000000000000000000000 turn=3 "
        'gate_s=0.25 reason="not fit" is_paused=true urls=a,b\n'
    )


def test_an_event_says_the_same_to_any_other_handler() -> None:
    assert str(LogEvent("engine_changed", url="http://e", state="paused", error=None)) == (
        "engine_changed url=http://e state=paused"
    )


HOSTILE = (
    "two\nlines",
    "\r\x1b[2Jcleared",
    "\u2028\u2029\x85\x7f\x00",
    "\ud800 half a surrogate",
    'a" b="c',
    "\U0001f600" * 3000,
    "x" * 100_000,
)


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_value_breaks_a_line(form: LogFormat, text: str) -> None:
    line = build(message=text, frames=(text, text), facts={"url": text})
    rendered = LineRenderer(form).render(line)
    assert len(rendered) <= LONGEST_LINE_BYTES
    decoded = rendered.decode()
    assert decoded.splitlines() == [decoded.removesuffix("\n")]
    assert decoded.removesuffix("\n").isprintable()
    if form is LogFormat.JSON:
        assert json.loads(decoded)["event"] == "turn_ended"


def test_a_line_that_was_cut_says_so() -> None:
    said = json.loads(LineRenderer(LogFormat.JSON).render(build(session=SESSION_ID, message="x" * 10_000)))
    assert said["cut"] is True
    assert said["session"] == SESSION_ID
    assert said["message"].endswith(CUT)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,12}", fullmatch=True), st.text() | st.integers() | st.none()))
def test_any_fields_make_one_line(fields: dict[str, str | int | None]) -> None:
    for form in LogFormat:
        rendered = LineRenderer(form).render(LogLine(at=0.0, level=logging.INFO, event="e", fields=fields))
        assert len(rendered) <= LONGEST_LINE_BYTES
        assert rendered.count(b"\n") == 1


@pytest.mark.parametrize("form", LogFormat)
def test_no_line_shows_a_key(form: LogFormat) -> None:
    admin, session = "s3cret+admin", build_session_key(SESSION_ID, bytes(16))
    renderer = LineRenderer(form, secrets=[admin, ""])
    texts = (f"x {admin}", f"/sessions/{session}/v1", "n" * 1990 + admin)
    rendered = renderer.render(build(first=texts[0], path=texts[1], many=texts, facts={"url": admin})).decode()
    assert HIDDEN in rendered
    assert admin not in rendered
    assert session not in rendered
    assert admin[:6] not in rendered
