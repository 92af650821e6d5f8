"""Server-sent events.

1. An event is its name (where given), one data line and a blank line.
2. What is encoded reads back; comments and an unfinished tail are skipped.
3. No character of the data ends a line, not even for clients that split lines as ``str.splitlines`` does.
"""

import json

import pytest

from turnkeeper.dialects import Event, parse_events
from turnkeeper.dialects.sse import encode_event, encode_text_event


def test_an_event_ends_with_a_blank_line() -> None:
    assert encode_event({"a": 1}, "ping") == b'event: ping\ndata: {"a":1}\n\n'


def test_an_event_without_a_name_is_its_data() -> None:
    assert encode_text_event(b"[DONE]") == b"data: [DONE]\n\n"


def test_events_read_back_in_order() -> None:
    stream = b": hello\n\n" + encode_event([1], "a") + encode_text_event(b"x") + b"data: cut"
    assert list(parse_events(stream)) == [Event(name="a", data="[1]"), Event(name=None, data="x")]


def test_data_lines_are_joined() -> None:
    assert list(parse_events(b"data: a\r\ndata: b\r\n\r\n")) == [Event(name=None, data="a\nb")]


BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


@pytest.mark.parametrize("text", [*BREAKS, BREAKS, f"a{BREAKS}b\r\n{BREAKS}", "Â\u2020\u202a…"])
@pytest.mark.parametrize("name", [None, "delta"])
def test_no_text_ends_a_line_for_clients_that_split_as_python_does(text: str, name: str | None) -> None:
    payload = {"text": text, "arguments": json.dumps({text: text}, ensure_ascii=False)}
    lines = encode_event(payload, name).decode().splitlines()
    assert lines[-1] == ""
    assert len(lines) == (2 if name is None else 3)
    assert json.loads(lines[-2].removeprefix("data: ")) == payload
