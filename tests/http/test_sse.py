"""Server-sent events.

1. An event is its name (where given), one data line and a blank line.
2. What is encoded reads back; comments and an unfinished tail are skipped.
"""

from turnkeeper.http.sse import Event, encode_event, encode_text_event, parse_events


def test_an_event_ends_with_a_blank_line() -> None:
    assert encode_event({"a": 1}, "ping") == b'event: ping\ndata: {"a":1}\n\n'


def test_an_event_without_a_name_is_its_data() -> None:
    assert encode_text_event(b"[DONE]") == b"data: [DONE]\n\n"


def test_events_read_back_in_order() -> None:
    stream = b": hello\n\n" + encode_event([1], "a") + encode_text_event(b"x") + b"data: cut"
    assert list(parse_events(stream)) == [Event(name="a", data="[1]"), Event(name=None, data="x")]


def test_data_lines_are_joined() -> None:
    assert list(parse_events(b"data: a\r\ndata: b\r\n\r\n")) == [Event(name=None, data="a\nb")]
