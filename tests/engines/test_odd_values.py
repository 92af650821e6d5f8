"""Replies in which any value may be another one: a boolean, a fraction, text, a number without end, nothing at all.

1. A reply is read and sound, or it is an `EngineError`; nothing else is ever raised.
2. What is accepted as an id is a whole number of the reply, and one of the model's; as a logprob, a finite number.
3. What only informs (counts of caches, versions, retractions) is taken as missing where it is odd.
"""

import json
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.builders import make_request
from tablekit import checking_table
from turnkeeper.engines import GenerateRequest, Generation, build_completion, check_generation, choose_versions
from turnkeeper.engines.reply import parse_reply
from turnkeeper.engines.sglang.chat import parse_chat_reply
from turnkeeper.engines.sglang.generate import StreamedReply, parse_generate_reply
from turnkeeper.engines.vllm.reply import StreamedChoice, parse_vllm_reply, read_vllm_reply
from turnkeeper.errors import ContextLengthError, EngineError, EngineProtocolError

URL = "http://engine"
VOCABULARY = 100
META: dict[str, Any] = {
    "id": "r",
    "finish_reason": {"type": "stop", "matched": 21},
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "cached_tokens": 2,
    "num_retractions": 0,
    "weight_version": "1",
    "weight_versions": [{"version": "1", "start": 0, "end": 3}],
    "output_token_logprobs": [[-0.5, 20, "a"], [-0.25, 1, None], [-1, 21, "b"]],
    "e2e_latency": 0.5,
}
MESSAGE = {
    "role": "assistant",
    "content": "ab",
    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
}
CHAT = {
    "id": "chatcmpl-1",
    "model": "m",
    "choices": [{"message": MESSAGE, "finish_reason": "stop", "matched_stop": 21, "meta_info": META}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 3},
}
GENERATE = {"text": "ab", "output_ids": [20, 1, 21], "meta_info": META}
VLLM_CHOICE = {
    "token_ids": [20, 1, 21],
    "finish_reason": "stop",
    "stop_reason": None,
    "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}, {"logprob": -1}]},
    "weight_versions": [{"version": "1", "start": 0, "end": 3}],
}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
VLLM = {"request_id": "r", "choices": [VLLM_CHOICE], "usage": USAGE}
COMPLETIONS = {
    "id": "cmpl-1",
    "choices": [VLLM_CHOICE | {"logprobs": {"token_logprobs": [-0.5, -0.25, -1]}}],
    "usage": USAGE,
}


def parse(request: GenerateRequest, ids: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "ab"}


def read_chat(body: bytes, request: GenerateRequest) -> Generation:
    return parse_chat_reply(body, URL, request)


def read_generate(body: bytes, request: GenerateRequest) -> Generation:
    return parse_generate_reply(parse_reply(body, URL), request, URL, parse)


def read_generate_stream(body: bytes, request: GenerateRequest) -> Generation:
    grown = StreamedReply(URL, 3)
    grown.feed(body)
    return parse_generate_reply(grown.finish(), request, URL, parse)


def read_vllm(body: bytes, request: GenerateRequest) -> Generation:
    return parse_vllm_reply(body, request, URL, parse)


def read_vllm_stream(body: bytes, request: GenerateRequest) -> Generation:
    grown = StreamedChoice(URL, 5)
    grown.feed(body)
    return read_vllm_reply(grown.finish(), request, URL, parse)


Read = Callable[[bytes, GenerateRequest], Generation]
WIRES: dict[str, tuple[Read, Any]] = {
    "chat": (read_chat, CHAT),
    "generate": (read_generate, GENERATE),
    "generate, streamed": (read_generate_stream, GENERATE),
    "vllm": (read_vllm, VLLM),
    "vllm, streamed": (read_vllm_stream, VLLM),
    "vllm completions": (read_vllm, COMPLETIONS),
}
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    1.0,
    2.5,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1e308,
    99,
    100,
    2**31 - 1,
    2**31,
    2**63,
    2**64,
    10**400,
    "",
    "1",
    "true",
    "abort",
    "stop",
    "\ud83d",
    [],
    [1],
    [None],
    [[1, 2]],
    {},
    {"0": 1},
    {"type": "abort"},
]


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from list_paths(member, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = deepcopy(value)
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = new
    return copy


def find_ids(wire: str, value: Any) -> Any:
    """The ids as they stand in the reply."""
    if wire.startswith("vllm"):
        return value["choices"][0].get("token_ids") or []
    meta = value["choices"][0]["meta_info"] if wire == "chat" else value["meta_info"]
    return [pair[1] for pair in meta.get("output_token_logprobs") or []]


def read_checked(wire: str, value: Any) -> Generation:
    generation = WIRES[wire][0](json.dumps(value).encode(), make_request())
    check_generation(generation, make_request(), vocabulary_size=VOCABULARY)
    return generation


def check_reading(wire: str, value: Any) -> None:
    """Read a reply as a turn does; what comes out is held against the reply's own JSON."""
    try:
        generation = read_checked(wire, value)
        versions = choose_versions(generation, is_abort_mode=True, started_version="1", is_disturbed=False)
    except EngineError:
        return
    ids = find_ids(wire, json.loads(json.dumps(value)))
    assert generation.ids.tolist() == ids
    assert all(type(each) is int and 0 <= each < VOCABULARY for each in ids)
    assert all(math.isfinite(each) and each <= 1e-3 for each in generation.logprobs.tolist())
    assert len(generation.logprobs) == len(ids)
    assert all(span.version is None or isinstance(span.version, str) for span in versions)
    if not generation.is_aborted:
        assert 0 <= build_completion(generation, prompt_tokens=5, versions=versions).cached_tokens <= 5


@pytest.mark.parametrize("wire", WIRES)
def test_a_sound_reply_is_read(wire: str) -> None:
    generation = read_checked(wire, WIRES[wire][1])
    assert (generation.ids.tolist(), generation.logprobs.tolist()) == ([20, 1, 21], [-0.5, -0.25, -1.0])


@pytest.mark.parametrize("wire", WIRES)
def test_any_value_may_be_any_other(wire: str) -> None:
    """Each value of the reply, each odd one in its place."""
    good = WIRES[wire][1]
    for path in list_paths(good):
        for odd in ODD:
            check_reading(wire, put(good, path, odd))


@pytest.mark.parametrize("wire", WIRES)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_several_values_may_be_others(wire: str, data: st.DataObject) -> None:
    value = WIRES[wire][1]
    for _ in range(data.draw(st.integers(2, 4))):
        paths = [path for path in list_paths(value) if path]
        if not paths:
            break
        value = put(value, data.draw(st.sampled_from(paths)), data.draw(st.sampled_from(ODD)))
    check_reading(wire, value)


NO_IDS: list[Any] = [True, False, 1.0, 20.5, "1", "", None, [1], {"id": 1}, -1, 100, 2**31, 2**63, 2**64, 10**30]


def test_what_is_no_id_of_the_model_is_refused() -> None:
    with checking_table() as table:
        for wire in WIRES:
            for odd in NO_IDS:
                with table.case(repr(odd), wire):
                    value = deepcopy(WIRES[wire][1])
                    if wire.startswith("vllm"):
                        value["choices"][0]["token_ids"][1] = odd
                    else:
                        meta = value["choices"][0]["meta_info"] if wire == "chat" else value["meta_info"]
                        meta["output_token_logprobs"][1][1] = odd
                        if wire != "chat":
                            value["output_ids"][1] = odd
                    with pytest.raises(EngineProtocolError):
                        read_checked(wire, value)


def test_what_is_no_logprob_is_refused() -> None:
    with checking_table() as table:
        for wire in WIRES:
            for odd in [True, "-0.5", None, [], {}, math.nan, math.inf, -math.inf, 1.0, 10**400]:
                with table.case(repr(odd), wire):
                    value = deepcopy(WIRES[wire][1])
                    if wire == "vllm completions":
                        value["choices"][0]["logprobs"]["token_logprobs"][1] = odd
                    elif wire.startswith("vllm"):
                        value["choices"][0]["logprobs"]["content"][1]["logprob"] = odd
                    else:
                        meta = value["choices"][0]["meta_info"] if wire == "chat" else value["meta_info"]
                        meta["output_token_logprobs"][1][0] = odd
                    with pytest.raises(EngineProtocolError):
                        read_checked(wire, value)


def test_a_count_that_is_none_is_no_count_of_the_ids() -> None:
    with checking_table() as table:
        for wire in WIRES:
            for odd in [True, 3.0, "3", -3, None, [], 4, 10**30]:
                with table.case(repr(odd), wire):
                    value = deepcopy(WIRES[wire][1])
                    holder = value["usage"] if wire.startswith("vllm") else value.get("meta_info")
                    (holder or value["choices"][0]["meta_info"])["completion_tokens"] = odd
                    with pytest.raises(EngineProtocolError, match="completion_tokens"):
                        read_checked(wire, value)


@pytest.mark.parametrize("text", ["Input length (9 tokens) exceeds the maximum context length: 8", "too long"])
def test_an_error_event_about_the_length_names_the_length_of_the_prompt(text: str) -> None:
    message = f"The input is longer than the model's context length: {text}"
    event = json.dumps({"error": {"message": message, "code": 400}}).encode()
    with pytest.raises(ContextLengthError) as refused:
        StreamedReply(URL, 3).feed(event)
    assert refused.value.facts["prompt_tokens"] == 3
