"""The work that no session server can leave out, timed on the machine that is measured.

A turn's figures in milliseconds say as much of the machine as of the server: the same commit took 5 ms a turn on one
and 19 on another. Its figures in yardsticks compare. One yardstick is the CPU time that this process takes, in the same
run, for one turn of the case: parse the agent's body, tokenize what the turn adds, parse the engine's reply and decode
the routing rows in it. All of it is done by libraries, without a line of the session server.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any

import orjson
import pybase64

from turnkeeper.bench.load.text import TokenRuler
from turnkeeper.bench.load.workload import MODELS, TOOLS, CannedReply, Speaker
from turnkeeper.bench.mock import MockEngine, build_canned
from turnkeeper.bench.rows import build_rows
from turnkeeper.bench.scenario import Case, Rows
from turnkeeper.jsontypes import Message
from turnkeeper.rendering import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """The bytes and the text that any session server has to read for one turn."""

    body: bytes
    """The agent's request."""
    added: str
    """The text that the turn adds to the prompt."""
    answer: bytes
    """The engine's reply."""


def measure_yardstick(
    case: Case, tokenizer: Tokenizer, ruler: TokenRuler, replies: Sequence[CannedReply], *, seed: int
) -> float:
    """Measure the CPU time in milliseconds of one turn's unavoidable work: the mean over a conversation of the case.

    Args:
        case: says how long the conversation is, and which rows come with the replies.
        tokenizer: of the checkpoint. The ``tokenizers`` library encodes, whatever the server of the case uses, so that
            all cases of one run are measured by one yardstick.
        ruler: cuts the text.
        replies: what the mock engine answers.
        seed: of the texts and rows.
    """
    taken_s = 0.0
    for turn in _play(case, ruler, replies, seed):
        started = thread_time()
        orjson.loads(turn.body)
        tokenizer.encode(turn.added)
        _decode_rows(orjson.loads(turn.answer))
        taken_s += thread_time() - started
    return taken_s * 1e3 / case.turns_each


def _play(case: Case, ruler: TokenRuler, replies: Sequence[CannedReply], seed: int) -> Iterator[_Turn]:
    """Play the turns of one conversation, as agent and engine write them."""
    engine = MockEngine(replies=[build_canned(reply) for reply in replies], rows=build_rows(MODELS[case.model], seed))
    speaker, path_tokens = Speaker(case.talk, ruler, seed), 0
    added = speaker.open()
    messages: list[Message] = []
    for number in range(case.turns_each):
        messages += added
        prompt_tokens = path_tokens + (case.talk.prompt_tokens if number else case.talk.first_tokens)
        asked: dict[str, Any] = {"bench_prompt_tokens": prompt_tokens}
        if case.rows is not Rows.NONE:
            start = max(0, path_tokens - 1) if case.rows is Rows.INCREMENTAL else 0
            asked |= {"return_routed_experts": True, "routed_experts_start_len": start}
        body = orjson.dumps({"messages": messages, "tools": TOOLS})
        answer = b"".join(engine.answer(b"/v1/chat/completions", orjson.dumps(asked)))
        yield _Turn(body=body, added="".join(message["content"] for message in added), answer=answer)
        path_tokens = prompt_tokens + case.talk.reply_tokens
        reply = replies[number % len(replies)].message
        messages.append(reply)
        added = speaker.answer(reply)


def _decode_rows(reply: Any) -> None:
    payload: str | None = reply["choices"][0]["meta_info"].get("routed_experts")
    if payload is not None:
        pybase64.b64decode(payload, validate=True)
