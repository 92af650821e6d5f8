"""One agent of the load: it keeps its conversation as ready JSON, sends it, reads the reply, appends.

An agent talks to the session server, or to the mock engine directly: the same bodies, and fields that tell the mock
how long a prompt is and which rows to send, so that its replies have the size that the session server gets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import orjson

from turnkeeper.bench.load.client import Client
from turnkeeper.bench.load.workload import TOOLS, CannedReply, Speaker, Talk
from turnkeeper.dialects.sse import parse_events
from turnkeeper.jsontypes import JsonObject, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectRows:
    """Which rows an agent asks the mock for by itself, where no session server does."""

    is_incremental: bool


class Agent:
    """One conversation."""

    def __init__(
        self,
        client: Client,
        base: str,
        speaker: Speaker,
        *,
        wants_stream: bool = False,
        canned: Sequence[CannedReply] = (),
        direct_rows: DirectRows | None = None,
        talk: Talk,
    ) -> None:
        """Begin.

        Args:
            client: its connection.
            base: what stands before its routes: the path of its session, nothing for the mock.
            speaker: what it says.
            wants_stream: whether it asks for streams.
            canned: the replies to go on with where it talks to the mock directly and does not read what comes.
            direct_rows: the rows that it asks the mock for.
            talk: the shape of the conversation.
        """
        self.client = client
        self.base = base
        self._speaker = speaker
        self._canned = canned
        self._direct_rows = direct_rows
        self._talk = talk
        self.turns = 0
        """Turns taken so far."""
        self._path_tokens = 0
        self._messages: list[bytes] = []
        self._add(speaker.open())
        fields: JsonObject = {"model": "bench", "tools": TOOLS, "stream": wants_stream, "max_tokens": 4096}
        self._tail = b"]," + orjson.dumps(fields)[1:-1]
        self._wants_stream = wants_stream

    async def take_turn(self) -> float:
        """Ask, and get ready for the next turn; how long the reply took, in seconds."""
        body = self._build_body()
        started = perf_counter()
        path = f"{self.base}/v1/chat/completions"
        answer = await self.client.request("POST", path, body, keeps=not self._canned)
        taken = perf_counter() - started
        message = self._canned[self.turns % len(self._canned)].message if self._canned else self._read(answer)
        self.turns += 1
        self._add([message, *self._speaker.answer(message)])
        return taken

    def _build_body(self) -> bytes:
        return b"".join((b'{"messages":[', b",".join(self._messages), self._tail, self._ask_directly(), b"}"))

    def _ask_directly(self) -> bytes:
        if not self._canned:
            return b""
        start = max(0, self._path_tokens - 1)
        talk = self._talk
        self._path_tokens += talk.prompt_tokens if self.turns else talk.first_tokens
        fields: JsonObject = {"bench_prompt_tokens": self._path_tokens}
        self._path_tokens += talk.reply_tokens
        if self._direct_rows is not None:
            fields["return_routed_experts"] = True
            fields |= {"routed_experts_start_len": start} if self._direct_rows.is_incremental else {}
        return b"," + orjson.dumps(fields)[1:-1]

    def _add(self, messages: Sequence[Message]) -> None:
        self._messages += [orjson.dumps(message) for message in messages]

    def _read(self, answer: bytes | bytearray) -> Message:
        if self._wants_stream:
            return join_deltas(bytes(answer))
        message: Message = orjson.loads(answer)["choices"][0]["message"]
        return message


def join_deltas(stream: bytes) -> Message:
    """Join the deltas of a chat stream to its message."""
    content = ""
    calls: list[Any] = []
    for event in parse_events(stream):
        if event.data == "[DONE]":
            break
        for choice in orjson.loads(event.data)["choices"]:
            content += choice["delta"].get("content") or ""
            calls += choice["delta"].get("tool_calls") or ()
    return {"role": "assistant", "content": content, "tool_calls": calls}
