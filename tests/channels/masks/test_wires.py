"""Sampling masks on the engines' wires: what is asked for, and what is read of replies.

1. SGLang is asked on both routes; vLLM's server sends masks by its own flag, and nothing is asked.
2. Masks come out of ``meta_info`` or of the choice, compact or spaced as Python writes it, and leave no trace there.
"""

import json
from typing import Any

import orjson
import pytest

from engines.builders import make_request
from turnkeeper.channels import CHANNELS, CallFacts
from turnkeeper.channels.masks import MaskAsked, MaskCapture
from turnkeeper.engines import GenerateRequest, Generation
from turnkeeper.engines.reply import parse_reply
from turnkeeper.engines.sglang.chat import parse_chat_reply, render_chat_body
from turnkeeper.engines.sglang.generate import parse_generate_reply, render_generate_body
from turnkeeper.engines.vllm.generate import render_generate_body as render_vllm_body
from turnkeeper.engines.vllm.reply import parse_vllm_reply

ASKED = MaskAsked(payload_start=5, is_truncating=True, is_greedy=False)
MASKS, LOGPROBS = [[20, 7], [21], [5, 22, 6]], [-0.1, 0.0, -0.3]
META: dict[str, Any] = {
    "id": "r",
    "finish_reason": {"type": "stop", "matched": 22},
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "weight_version": "1",
    "output_token_logprobs": [[-0.5, 20, None], [-0.5, 21, None], [-0.5, 22, None]],
    "output_token_sampling_mask": MASKS,
    "output_token_sampling_logprobs": LOGPROBS,
    "output_token_sampling_mask_length": 3,
}
CHOICE: dict[str, Any] = {
    "index": 0,
    "token_ids": [20, 21, 22],
    "logprobs": {"content": [{"token_id": each, "logprob": -0.5} for each in (20, 21, 22)]},
    "finish_reason": "stop",
    "sampling_mask": MASKS,
}


def parse(request: GenerateRequest, ids: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "x"}


def read_chat(body: bytes, request: GenerateRequest) -> Generation:
    return parse_chat_reply(bytearray(body), "http://engine", request)


def read_generate(body: bytes, request: GenerateRequest) -> Generation:
    reply = parse_reply(bytearray(body), "http://engine", cut_logprobs=True, list_keys=request.list_keys)
    return parse_generate_reply(reply, request, "http://engine", parse)


def read_vllm(body: bytes, request: GenerateRequest) -> Generation:
    return parse_vllm_reply(bytearray(body), request, "http://engine", parse)


CHAT = {"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop", "meta_info": META}]}
GENERATE = {"text": "x", "output_ids": [20, 21, 22], "meta_info": META}
VLLM = {"choices": [CHOICE], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}


@pytest.mark.parametrize("spell", [orjson.dumps, lambda value: json.dumps(value).encode()], ids=["compact", "spaced"])
@pytest.mark.parametrize(
    ("read", "reply", "logprobs"),
    [(read_chat, CHAT, LOGPROBS), (read_generate, GENERATE, LOGPROBS), (read_vllm, VLLM, [])],
    ids=["chat", "generate", "vllm"],
)
def test_masks_are_read(read: Any, reply: Any, logprobs: list[float], spell: Any) -> None:
    found = read(spell(reply), make_request(asked={"sampling_mask": ASKED}))
    call = CallFacts(url=found.url, prompt_tokens=5, ids=found.ids)
    capture = MaskCapture(CHANNELS["sampling_mask"])
    items = capture.take(found.payloads["sampling_mask"], ASKED, call, held=(), earlier=()).items
    assert items is not None
    assert items.ids.array.tolist() == [each for mask in MASKS for each in mask]
    assert items.counts.array.tolist() == [2, 1, 3]
    assert items.logprobs.array.tolist() == logprobs
    assert not {name for name in found.meta if "sampling" in name}
    assert found.ids.tolist() == [20, 21, 22]


@pytest.mark.parametrize("read", [read_chat, read_generate, read_vllm])
def test_masks_that_nobody_asked_for_are_left_alone(read: Any) -> None:
    reply = {read_chat: CHAT, read_generate: GENERATE, read_vllm: VLLM}[read]
    found = read(orjson.dumps(reply), make_request())
    assert "sampling_mask" not in found.payloads
    assert not {name for name in found.meta if "sampling" in name}


@pytest.mark.parametrize("is_asked", [True, False])
def test_what_is_asked_for_on_each_wire(is_asked: bool) -> None:
    request = make_request(asked={"sampling_mask": ASKED} if is_asked else {})
    bodies = [render_chat_body(request), render_generate_body(request, is_stream=False)]
    assert [orjson.loads(body).get("return_sampling_mask") for body in bodies] == [True if is_asked else None] * 2
    assert b"sampling_mask" not in render_vllm_body(request)
