"""SGLang's generate wire.

1. Sampling goes out under this wire's names; what it cannot do is refused before a call.
2. The message is read from the ids; ids and logprobs must be of the same tokens.
3. A streamed reply is the unstreamed one, and its deltas are its ids, cumulative or not.
4. A stream that breaks off, reports an error or contradicts itself is an error.
5. What an event of increments costs does not grow with the events before it.
"""

import json
import tracemalloc
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from engines.builders import make_request, spell_payload
from turnkeeper.channels.routing import RowsRequest
from turnkeeper.core.tokens import TokenIds
from turnkeeper.engines import EngineClient, GenerateRequest, SglangGenerateEngine
from turnkeeper.engines.sglang.generate import StreamedReply, render_generate_body
from turnkeeper.errors import ContextLengthError, EngineError, EngineProtocolError, EngineRefusedError, TurnkeeperError
from turnkeeper.testing import MoeShape, Phase, ScriptedEngine, ScriptedReply, running


def parse(request: GenerateRequest, ids: TokenIds) -> dict[str, Any]:
    text = bytes(int(each) - 16 for each in ids if each >= 16).decode()
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return message | ({"tool_calls": [{"id": "call_0"}]} if text.startswith("call") else {})


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


def body_of(**fields: Any) -> dict[str, Any]:
    return json.loads(render_generate_body(make_request(**fields), is_stream=False))


def test_the_body_has_this_wires_names() -> None:
    body = body_of(
        sampling={"max_tokens": 9, "min_tokens": 1, "seed": 4, "temperature": 0.5, "stop": ["x"], "top_p": None},
        forwarded={"max_completion_tokens": 7, "x_new": 1, "stop_token_ids": [5]},
        stop_token_ids=(2,),
        rows=RowsRequest(start_len=4, held_rows=4),
        cache_salt="v",
    )
    assert body.pop("sampling_params") == {
        "max_new_tokens": 7,
        "min_new_tokens": 1,
        "sampling_seed": 4,
        "temperature": 0.5,
        "stop": ["x"],
        "stop_token_ids": [5, 2],
        "n": 1,
        "no_stop_trim": False,
    }
    assert body == {
        "input_ids": [11, 12, 13, 14, 15],
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": False,
        "rid": "rid-1",
        "x_new": 1,
        "return_routed_experts": True,
        "routed_experts_start_len": 4,
        "cache_salt": "v",
    }


@pytest.mark.parametrize(
    ("asked", "params"),
    [
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"json_schema": '{"type": "object"}'}),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}},
            {"json_schema": '{"type":"null"}'},
        ),
    ],
)
def test_a_response_format_becomes_a_grammar(asked: dict[str, Any], params: dict[str, Any]) -> None:
    found = body_of(sampling={"response_format": asked})["sampling_params"]
    assert {name: value for name, value in found.items() if name not in ("n", "no_stop_trim")} == params


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_forced_tool_call_is_refused(choice: object) -> None:
    with pytest.raises(EngineRefusedError, match="--engine-wire chat") as caught:
        body_of(forwarded={"tool_choice": choice})
    assert caught.value.http_status == 400


@pytest.mark.parametrize("is_incremental", [False, True])
@pytest.mark.parametrize("count", [1, 3, 4, 9])
async def test_a_streamed_reply_is_the_unstreamed_one(client: EngineClient, is_incremental: bool, count: int) -> None:
    text = "abcdefgh"[: count - 1]
    engine = ScriptedEngine(default=ScriptedReply(text=text), moe=MoeShape(), is_incremental=is_incremental)
    async with running(engine) as url:
        wire = SglangGenerateEngine(url, client, parse)
        request = make_request(rows=RowsRequest(start_len=0, held_rows=0))
        whole = await wire.generate(request)
        seen: list[list[int]] = []
        streamed = await wire.generate(request, on_ids=lambda ids: seen.append(ids.tolist()))
    assert [i for piece in seen for i in piece] == streamed.ids.tolist() == whole.ids.tolist()
    assert len(seen) == -(-count // 3)
    assert (streamed.message, streamed.message["content"]) == (whole.message, text)
    assert streamed.logprobs.tolist() == whole.logprobs.tolist()
    assert spell_payload(streamed.payloads.get("routed_experts")) == spell_payload(whole.payloads.get("routed_experts"))
    assert (streamed.finish_reason, streamed.completion_tokens) == (whole.finish_reason, count)


async def test_calls_in_the_ids_end_the_turn_as_calls_and_stop_strings_leave_the_text(client: EngineClient) -> None:
    replies = [
        ScriptedReply(text="call it"),
        ScriptedReply(text="okEND", meta={"finish_reason": {"type": "stop", "matched": "END"}}),
    ]
    async with running(ScriptedEngine(replies)) as url:
        wire = SglangGenerateEngine(url, client, parse)
        first, second = [await wire.generate(make_request()) for _ in range(2)]
    assert first.finish_reason == "tool_calls"
    assert (second.message["content"], second.matched_stop) == ("ok", "END")


def _drop_an_id(value: dict[str, Any]) -> None:
    value["output_ids"].pop()


def _change_an_id(value: dict[str, Any]) -> None:
    value["output_ids"][0] += 1


def _break_an_id(value: dict[str, Any]) -> None:
    value["output_ids"][0] = "x"


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        pytest.param(ScriptedReply(edit=_drop_an_id), EngineProtocolError, "output_ids but", id="lengths differ"),
        pytest.param(ScriptedReply(edit=_change_an_id), EngineProtocolError, "output_ids but", id="ids differ"),
        pytest.param(ScriptedReply(edit=_break_an_id), EngineProtocolError, "token ids", id="no ids"),
        pytest.param(ScriptedReply(edit=lambda v: v.pop("meta_info")), EngineProtocolError, "meta_info", id="no meta"),
        pytest.param(ScriptedReply(body=b"<html>"), EngineProtocolError, "<html>", id="html"),
        pytest.param(
            ScriptedReply(status=400, body=b'{"error":{"message":"bad"}}'), EngineRefusedError, "bad", id="400"
        ),
    ],
)
async def test_a_reply_that_is_none_is_refused(
    client: EngineClient, reply: ScriptedReply, kind: type[TurnkeeperError], said: str
) -> None:
    async with running(ScriptedEngine([reply])) as url:
        with pytest.raises(kind, match=said):
            await SglangGenerateEngine(url, client, parse).generate(make_request())


def events(*values: object) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


CHUNK = {
    "output_ids": [20],
    "meta_info": {"completion_tokens": 1, "finish_reason": None, "output_token_logprobs": [[-1.0, 20, None]]},
}


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        pytest.param(ScriptedReply(fault=Phase.HEADERS), EngineError, "broke off", id="cut before headers"),
        pytest.param(ScriptedReply(fault=Phase.BODY), EngineError, "broke off", id="cut inside"),
        pytest.param(ScriptedReply(body=events(CHUNK)), EngineError, "ended before", id="ends early"),
        pytest.param(ScriptedReply(body=b""), EngineError, "ended before", id="empty"),
        pytest.param(
            ScriptedReply(body=b"data: {nope\n\n"), EngineProtocolError, "expected a JSON object", id="garbage"
        ),
        pytest.param(
            ScriptedReply(body=events({"error": {"message": "too long: context length of 8", "code": 400}})),
            ContextLengthError,
            "context length",
            id="an error event",
        ),
        pytest.param(ScriptedReply(body=events({"error": "boom"})), EngineError, "boom", id="an error that is text"),
        pytest.param(ScriptedReply(status=429), EngineRefusedError, "refuses", id="429"),
    ],
)
async def test_a_stream_that_fails_is_an_error(
    client: EngineClient, reply: ScriptedReply, kind: type[TurnkeeperError], said: str
) -> None:
    async with running(ScriptedEngine([reply])) as url:
        with pytest.raises(kind, match=said):
            await SglangGenerateEngine(url, client, parse).generate(make_request(), on_ids=lambda ids: None)


async def test_ids_that_a_stream_lost_are_noticed(client: EngineClient) -> None:
    final = {
        "output_ids": [21],
        "meta_info": {
            "completion_tokens": 3,
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [[-1.0, 20, None], [-1.0, 9, None], [-1.0, 21, None]],
        },
    }
    async with running(ScriptedEngine([ScriptedReply(body=events(CHUNK, final))])) as url:
        with pytest.raises(EngineProtocolError, match="2 output_ids but 3"):
            await SglangGenerateEngine(url, client, parse).generate(make_request(), on_ids=lambda ids: None)


def _spell_increment(place: int) -> bytes:
    """An event with one new token, as a server spells it that streams increments."""
    meta = {"completion_tokens": place + 1, "output_token_logprobs": [[-0.5, place + 16, None]]}
    return json.dumps({"output_ids": [place + 16], "meta_info": meta}).encode()


def _measure_peaks(streamed: StreamedReply, events: list[bytes]) -> list[int]:
    """The bytes that each event takes at most, beside what was there before it."""
    peaks: list[int] = []
    tracemalloc.start()
    try:
        for event in events:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            streamed.feed(event)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return peaks


def test_an_event_of_increments_does_not_copy_the_events_before_it() -> None:
    count = 4_000
    streamed = StreamedReply("http://engine", 5)
    peaks = sorted(_measure_peaks(streamed, [_spell_increment(place) for place in range(count)])[count // 2 :])
    # A list grows by an eighth at a time, so a few events take more than the others.
    assert peaks[len(peaks) * 9 // 10] < 8_000
    assert sum(peaks) < 8_000 * len(peaks)


def test_increments_are_joined_in_their_order() -> None:
    streamed = StreamedReply("http://engine", 5)
    events = [_spell_increment(place) for place in range(100)]
    last = json.loads(events[-1])
    last["meta_info"]["finish_reason"] = {"type": "stop", "matched": None}
    fed = [streamed.feed(event).tolist() for event in [*events[:-1], json.dumps(last).encode()]]
    whole = streamed.finish().value
    assert fed == [[place + 16] for place in range(100)]
    assert whole["output_ids"] == [place + 16 for place in range(100)]
    assert [entry[1] for entry in whole["meta_info"]["output_token_logprobs"]] == whole["output_ids"]
