"""A dialect translates without a server.

1. Importing the dialects imports no front door, no service, and nothing that opens sockets or waits.
2. Each dialect reads a body into a canonical request, and writes a reply as a body and as events that a client of it
   reads back, from values alone.
3. Equal values give equal bytes: nothing is drawn, and no clock is asked.
4. The example on the page of the dialects runs, and prints what the page says.
"""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from dialectkit import CALLS, CONTEXT, START, make_reply
from turnkeeper.dialects import DIALECTS, MESSAGES, RESPONSES, AgentCall, Dialect, parse_events, parse_object
from turnkeeper.errors import RequestError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "dialects.md"
MESSAGE = {"role": "assistant", "content": "It is two.", "reasoning_content": "1 + 1", "tool_calls": CALLS[:1]}
QUESTION = {"role": "user", "content": "What is 1 + 1?"}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [QUESTION], "max_tokens": 9},
    "messages": {"model": "m", "messages": [QUESTION], "max_tokens": 9},
    "responses": {"model": "m", "input": [QUESTION], "max_output_tokens": 9},
}
TERMINAL = {"chat": "[DONE]", "messages": "message_stop", "responses": "response.completed"}
"""How the last event of a stream is known: by its data, or by its name."""


def parse(dialect: Dialect) -> AgentCall:
    return dialect.parse_request(parse_object(orjson.dumps(BODIES[dialect.name])), CONTEXT)


def test_the_import_brings_no_server_along() -> None:
    outside = ("asyncio", "socket", "ssl", "logging", "starlette", "uvicorn", "aiohttp", "pydantic")
    ours = ("turnkeeper.http", "turnkeeper.service", "turnkeeper.engines", "turnkeeper.config", "turnkeeper.rendering")
    script = f"import sys, turnkeeper.dialects; print([name for name in {(*outside, *ours)} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_body_becomes_a_canonical_request(dialect: Dialect) -> None:
    request = parse(dialect).request
    assert request.messages == (QUESTION,)
    assert request.sampling == {"max_tokens": 9}
    assert (request.dialect, request.model) == (dialect.name, "m")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_reply_becomes_a_body_that_holds_its_texts_and_calls(dialect: Dialect) -> None:
    body = parse(dialect).render_reply(make_reply(MESSAGE))
    assert parse_object(body)["id"] == START.response_id
    for said in ("It is two.", "1 + 1", "c0"):
        assert said.encode() in body


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_reply_becomes_events_that_end_with_the_terminal_one(dialect: Dialect) -> None:
    stream = parse(dialect).open_stream(START)
    said = stream.heartbeat() + stream.extend(reasoning="1 + 1", content="It is")
    events = list(parse_events(said + stream.finish(make_reply(MESSAGE))))
    assert TERMINAL[dialect.name] in (events[-1].name, events[-1].data)
    assert "".join(event.data for event in events).count("It is") >= 1


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_equal_values_give_equal_bytes(dialect: Dialect) -> None:
    first, second = parse(dialect), parse(dialect)
    reply = make_reply(MESSAGE)
    assert first.render_reply(reply) == second.render_reply(reply)
    assert first.open_stream(START).finish(reply) == second.open_stream(START).finish(reply)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_what_is_refused_becomes_the_error_body_of_the_dialect(dialect: Dialect) -> None:
    member = "input" if dialect is RESPONSES else "messages"
    with pytest.raises(RequestError) as raised:
        dialect.parse_request({member: 5}, CONTEXT)
    body = parse_object(dialect.render_error(raised.value))
    assert member in body["error"]["message"]
    assert ("type" in body) == (dialect is MESSAGES)


def test_the_example_of_the_page_prints_what_the_page_says() -> None:
    section = PAGE.read_text().partition("## Without a server")[2]
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", section, flags=re.DOTALL)[:2]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, str(PAGE), "exec"), {})
    assert output.getvalue() == printed
