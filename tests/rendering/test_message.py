"""Which call a tool result answers.

1. The one with the result's id; of equal ids, which engines give, those of the latest message, in their order.
2. Families that write a call's function or place beside its result find both so, wherever the append begins.
"""

import re

import pytest

from rendering.standins import standin
from rendering.talk import assistant, user
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering.message import OpenCalls


def call(name: str, call_id: str) -> JsonObject:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def tool(text: str, call_id: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


TWICE = assistant("", call("look", "a"), call("run", "a"))
AGAIN = assistant("", call("read", "a"))


@pytest.mark.parametrize(
    ("earlier", "messages", "names"),
    [
        pytest.param([TWICE], [tool("1", "a"), tool("2", "a")], ["look", "run"], id="one id twice"),
        pytest.param([TWICE, tool("1", "a")], [tool("2", "a")], ["run"], id="one of them answered before"),
        pytest.param([TWICE], [tool("1", "a"), tool("2", "a"), tool("3", "a")], ["look", "run", "run"], id="too many"),
        pytest.param([TWICE, tool("1", "a"), tool("2", "a"), AGAIN], [tool("3", "a")], ["read"], id="the latest"),
        pytest.param([], [TWICE, tool("1", "a"), AGAIN, tool("2", "a")], ["look", "read"], id="in place"),
        pytest.param([AGAIN], [tool("1", "b")], [None], id="unknown"),
        pytest.param([AGAIN], [{"role": "tool", "content": "1"}], [None], id="no id"),
        pytest.param([assistant("", call("look", "a")), AGAIN, user("u")], [user("v")], [], id="no results"),
    ],
)
def test_a_result_answers(earlier: list[Message], messages: list[Message], names: list[str | None]) -> None:
    calls = OpenCalls(earlier, messages)
    answered = [(message["role"], calls.take(message)) for message in messages]
    assert [found and found.name for role, found in answered if role == "tool"] == names


@pytest.mark.parametrize(
    ("family", "parts"),
    [
        ("gptoss", ["functions.look to=assistant", "seen", "functions.run to=assistant", "done"]),
        ("inkling", ["<|message_tool|>look", "seen", "<|message_tool|>run", "done"]),
        ("deepseekv4", ["<tool_result>seen", "<tool_result>done"]),
    ],
)
def test_families_pair_results_with_calls_of_one_id(family: str, parts: list[str]) -> None:
    renderer = standin(family)
    history = [user("u"), TWICE, tool("seen", "a"), tool("done", "a")]
    text = renderer.tokenizer.decode(renderer.render(history, [], {}).ids)
    assert re.search(".*".join(re.escape(part) for part in parts), text, re.DOTALL)
