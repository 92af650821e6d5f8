"""Agents for tests, one for each dialect: they hold a conversation as its clients do, with nothing but HTTP.

::

    agent = AGENTS["messages"](site, session)
    agent.say("what is 1 + 1?")
    for call in await agent.step():                 # the calls of the reply
        agent.answer(call.id, "2")

Each keeps its own history in its own protocol's form, made of what the server sent.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from anthropic.lib.streaming._messages import accumulate_event

from httpkit import Reply, Site
from turnkeeper.dialects import parse_events
from turnkeeper.jsontypes import JsonObject

SYSTEM = "You are brief."
TOOL = {"name": "bash", "description": "Runs a command.", "schema": {"type": "object", "properties": {}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that the model made."""

    id: str
    name: str
    arguments: Any


@dataclass(slots=True)
class Agent:
    """What the agents of all dialects share."""

    site: Site
    session: str
    streams: bool = False
    headers: dict[str, str] = field(default_factory=dict[str, str])
    history: list[JsonObject] = field(default_factory=list[JsonObject])
    text: str = ""
    """The text of the last reply."""

    path = ""

    async def step(self, **fields: Any) -> Sequence[Call]:
        """Take a turn; the calls of its reply."""
        reply = await self.ask(**fields)
        assert reply.status == 200, reply.body
        return self.read(self.assemble(reply.body) if self.streams else reply.json())

    async def ask(self, **fields: Any) -> Reply:
        """Send the conversation as it stands."""
        body = {**self.build_body(), "stream": self.streams, **fields}
        return await self.site.call("POST", f"{self.session}/{self.path}", body, **self.headers)

    def say(self, text: str) -> None:
        """The user says something."""
        self.history.append({"role": "user", "content": text})

    def answer(self, results: Sequence[tuple[str, str]]) -> None:
        """The tools' results, by the id of their call, in the order in which they finished."""
        raise NotImplementedError

    def build_body(self) -> JsonObject:
        """The request for the history."""
        raise NotImplementedError

    def assemble(self, stream: bytes) -> JsonObject:
        """The whole reply that a stream stands for."""
        raise NotImplementedError

    def read(self, reply: JsonObject) -> Sequence[Call]:
        """Put a reply into the history; its calls."""
        raise NotImplementedError


class ChatAgent(Agent):
    """Chat completions."""

    path = "v1/chat/completions"

    def answer(self, results: Sequence[tuple[str, str]]) -> None:
        self.history += [{"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in results]

    def build_body(self) -> JsonObject:
        function = {"name": TOOL["name"], "description": TOOL["description"], "parameters": TOOL["schema"]}
        messages = [{"role": "system", "content": SYSTEM}, *self.history]
        return {"model": "m", "messages": messages, "tools": [{"type": "function", "function": function}]}

    def assemble(self, stream: bytes) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": ""}
        for event in parse_events(stream):
            if event.data == "[DONE]":
                return {"choices": [{"message": message}]}
            for choice in json.loads(event.data)["choices"]:
                delta = choice["delta"]
                for name in ("content", "reasoning_content"):
                    if delta.get(name):
                        message[name] = message.get(name, "") + delta[name]
                message.setdefault("tool_calls", []).extend(delta.get("tool_calls") or ())
        raise AssertionError(f"the stream is not done: {stream!r}")

    def read(self, reply: JsonObject) -> Sequence[Call]:
        message = reply["choices"][0]["message"]
        self.history.append(message)
        self.text = message["content"]
        return [
            Call(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]


class MessagesAgent(Agent):
    """Anthropic Messages."""

    path = "v1/messages"

    def answer(self, results: Sequence[tuple[str, str]]) -> None:
        blocks = [
            {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": text}]}
            for call_id, text in results
        ]
        self.history.append({"role": "user", "content": blocks})

    def build_body(self) -> JsonObject:
        tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["schema"]}
        return {"model": "m", "system": SYSTEM, "messages": self.history, "tools": [tool]}

    def assemble(self, stream: bytes) -> JsonObject:
        snapshot: Any = None
        buffers: dict[int, bytes] = {}
        for event in parse_events(stream):
            data: Any = json.loads(event.data)
            assert event.name != "error", event.data
            if event.name != "ping":
                snapshot = accumulate_event(event=data, current_snapshot=snapshot, json_bufs=buffers)
        return snapshot.to_dict()

    def read(self, reply: JsonObject) -> Sequence[Call]:
        self.history.append({"role": "assistant", "content": reply["content"]})
        self.text = "".join(block["text"] for block in reply["content"] if block["type"] == "text")
        return [
            Call(id=block["id"], name=block["name"], arguments=json.dumps(block["input"]))
            for block in reply["content"]
            if block["type"] == "tool_use"
        ]


class ResponsesAgent(Agent):
    """OpenAI Responses."""

    path = "v1/responses"

    def answer(self, results: Sequence[tuple[str, str]]) -> None:
        self.history += [
            {"type": "function_call_output", "call_id": call_id, "output": text} for call_id, text in results
        ]

    def build_body(self) -> JsonObject:
        tool = {
            "type": "function",
            "name": TOOL["name"],
            "description": TOOL["description"],
            "parameters": TOOL["schema"],
        }
        return {"model": "m", "instructions": SYSTEM, "input": self.history, "tools": [tool], "store": False}

    def assemble(self, stream: bytes) -> JsonObject:
        *_, last = parse_events(stream)
        event = json.loads(last.data)
        assert event["type"] in ("response.completed", "response.incomplete"), event
        return event["response"]

    def read(self, reply: JsonObject) -> Sequence[Call]:
        self.history += reply["output"]
        self.text = "".join(
            part["text"] for item in reply["output"] if item["type"] == "message" for part in item["content"]
        )
        return [
            Call(id=item["call_id"], name=item["name"], arguments=item["arguments"])
            for item in reply["output"]
            if item["type"] == "function_call"
        ]


AGENTS: dict[str, type[Agent]] = {"chat": ChatAgent, "messages": MessagesAgent, "responses": ResponsesAgent}
