"""The messages of a measurement's agents, and the replies of the mock engine.

A conversation is a system prompt and a task, then a tool call and its result again and again: what coding agents do.
Replies are canned: a message with a tool call, and the ids that spell it.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from turnkeeper.bench.load.text import Corpus, TokenRuler
from turnkeeper.channels.routing import RoutingShape
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering import Tokenizer

REPLIES = 64
"""Canned replies of one mock engine; each call gets the next one."""

CALL_ID = "call_0000000000000000"
"""Stands for the call's id, which the mock makes unique."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """The shape of a conversation."""

    name: str
    turns: int
    first_tokens: int
    """About how many tokens the first prompt has, tools aside."""
    prompt_tokens: int
    """About how many tokens each further turn adds before its reply."""
    reply_tokens: int = 332

    @property
    def path_tokens(self) -> int:
        """About how many tokens the whole conversation has."""
        return self.first_tokens + (self.turns - 1) * self.prompt_tokens + self.turns * self.reply_tokens


SHORT = Talk(name="32k", turns=20, first_tokens=1_350, prompt_tokens=1_350)
LONG = Talk(name="128k", turns=60, first_tokens=1_800, prompt_tokens=1_800)
MODELS = {
    "Qwen3-30B-A3B": RoutingShape(layers=48, topk=8, experts=128),
    "GLM-4.7": RoutingShape(layers=92, topk=8, experts=160),
}
"""How the models route; the tokenizer is the same for all."""

TOOLS: tuple[JsonObject, ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": kind, "description": text} for argument, kind, text in arguments},
                "required": [arguments[0][0]],
            },
        },
    }
    for name, description, arguments in (
        (
            "read_file",
            "Read a part of a file of the project.",
            (("path", "string", "File, from the project's root."), ("line", "integer", "First line, from 1.")),
        ),
        (
            "run_command",
            "Run a shell command in the project's root and return what it prints.",
            (("command", "string", "The command line."), ("timeout", "integer", "Seconds until it is ended.")),
        ),
        (
            "edit_file",
            "Replace a text that stands once in a file by another one.",
            (("path", "string", "File."), ("old", "string", "What stands there."), ("new", "string", "What shall.")),
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CannedReply:
    """One assistant message and the tokens that spell it."""

    message: Message
    ids: list[int]
    texts: list[str]
    """The text of each id."""

    def to_json(self) -> JsonObject:
        """Return the reply as the script of the mock has it."""
        return {"message": self.message, "ids": self.ids, "texts": self.texts}


def build_replies(tokenizer: Tokenizer, talk: Talk, seed: int, count: int = REPLIES) -> list[CannedReply]:
    """Replies of about ``talk.reply_tokens`` tokens: text from source, then a tool call."""
    corpus, ruler = Corpus(seed + 1), TokenRuler(tokenizer)
    return [_build_reply(tokenizer, ruler.take(corpus, talk.reply_tokens - 45), number) for number in range(count)]


def _build_reply(tokenizer: Tokenizer, content: str, number: int) -> CannedReply:
    arguments = orjson.dumps({"path": f"src/module_{number}.py", "line": 10 * number}).decode()
    spelled = f'{{"name": "read_file", "arguments": {arguments}}}'
    ids = tokenizer.encode(f"{content}\n<tool_call>\n{spelled}\n</tool_call><|im_end|>")
    call = {"id": CALL_ID, "type": "function", "function": {"name": "read_file", "arguments": arguments}}
    return CannedReply(
        message={"role": "assistant", "content": content, "tool_calls": [call]},
        ids=ids.tolist(),
        texts=[tokenizer.decode(ids[place : place + 1]) for place in range(len(ids))],
    )


class Speaker:
    """The messages of one agent, turn by turn; every agent says something else."""

    def __init__(self, talk: Talk, ruler: TokenRuler, seed: int) -> None:
        """Begin a conversation."""
        self._talk = talk
        self._ruler = ruler
        self._corpus = Corpus(seed)
        self._corpus.take(random.Random(seed).randrange(50_000) + 1)

    def open(self) -> list[Message]:
        """Build the messages of the first request."""
        return [
            {"role": "system", "content": "You are a careful engineer. Work on the task with the tools you have."},
            {"role": "user", "content": f"Explain this file.\n\n{self._take(self._talk.first_tokens - 450)}"},
        ]

    def answer(self, message: Message) -> list[Message]:
        """Build the results of the calls of a reply."""
        calls: list[Any] = message.get("tool_calls") or [{"id": CALL_ID}]
        text = self._take(self._talk.prompt_tokens - 20)
        return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]

    def _take(self, tokens: int) -> str:
        return self._ruler.take(self._corpus, max(1, tokens))


def write_config(folder: Path, shape: RoutingShape) -> None:
    """Write a ``config.json`` of a mixture of experts of that shape, with room for long conversations."""
    config = {
        "num_hidden_layers": shape.layers,
        "num_experts_per_tok": shape.topk,
        "num_experts": shape.experts,
        "max_position_embeddings": 262_144,
    }
    (folder / "config.json").write_bytes(orjson.dumps(config))
