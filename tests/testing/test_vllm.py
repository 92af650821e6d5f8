"""The scripted vLLM speaks as the real one was recorded.

1. Asked what the real server was asked, it answers with the same status, the same members and the same kinds of
   values; what it leaves out nobody reads.
2. Its older self holds calls back while it is paused by an abort, its newer one refuses them.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from turnkeeper.engines import EngineClient
from turnkeeper.testing import MoeShape, ScriptedReply, ScriptedVllm, running

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "vllm" / "recorded-0.32.0.json").read_text()
)
UNREAD = {
    *("model", "prompt_logprobs", "prompt_token_id_logprobs", "prompt_token_ids", "mm_placeholders", "metrics"),
    *("kv_transfer_params", "ec_transfer_params", "service_tier", "system_fingerprint", "sampling_mask"),
    *("prompt_tokens_details", "completion_tokens_details", "param", "top_logprobs", "text_offset", "tokens"),
}
REPLIES = [name for name, kept in RECORDED.items() if name.startswith(("generate_", "stream_", "completions_"))]
NOT_JUDGED = {
    *("generate_no_such_id", "generate_bad_parameter", "generate_bad_salt", "completions_no_such_model"),
    "completions_budget_too_long",
}
"""Refusals of values at which the scripted server does not look."""
CONTROL = [name for name in RECORDED if name not in REPLIES and name not in ("models", "pause_bad_mode")]


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


def restore(request: dict[str, Any] | None) -> bytes | None:
    """The request as it was sent: long prompts were recorded by their length."""
    if request is None:
        return None
    sent = dict(request)
    for name in ("token_ids", "prompt"):
        if isinstance(sent.get(name), str):
            sent[name] = [5] * int(sent[name].split()[0])
    return json.dumps(sent).encode()


def describe(value: Any) -> Any:
    """The kinds of a reply's values by name, lists by their first entry; what nobody reads is left out."""
    if isinstance(value, dict):
        return {name: describe(item) for name, item in value.items() if name not in UNREAD}
    if isinstance(value, list):
        return [describe(value[0])] if value else []
    return type(value).__name__


def script(kept: dict[str, Any]) -> ScriptedReply:
    """A reply that ends as the recorded one did."""
    last = kept["body"] if "body" in kept else kept["events"][-2] if len(kept["events"]) > 1 else {}
    choices = (last or {}).get("choices")
    if not choices:
        return ScriptedReply()
    choice = choices[0]
    ids = choice["token_ids"]
    if "events" in kept:
        ids = [i for event in kept["events"] for each in event["choices"] for i in each["token_ids"]]
    spans = [(span["version"], span["start"], span["end"]) for span in choice.get("weight_versions") or ()]
    return ScriptedReply(
        ids=ids,
        finish_reason=choice["finish_reason"],
        matched_stop=choice["stop_reason"],
        spans=spans,
        chunk_ids=1,
        text="",
    )


@pytest.mark.parametrize("name", [name for name in REPLIES if name not in NOT_JUDGED])
async def test_a_reply_has_the_members_of_the_recorded_one(client: EngineClient, name: str) -> None:
    kept = RECORDED[name]
    engine = ScriptedVllm([script(kept)], moe=MoeShape(layers=4), context_length=1024)
    engine.has_generate_route, engine.refuses_while_paused = name != "generate_off", False
    async with running(engine) as url:
        reply = await client.call("POST", f"{url}{kept['path']}", body=restore(kept["request"]))
    assert reply.status == kept["status"]
    if "events" in kept:
        lines = bytes(reply.body).decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
        assert [describe(event) for event in events] == [describe(event) for event in kept["events"]]
    elif name == "generate_paused_waiting":  # nothing is scripted for a call that never ran
        assert json.loads(bytes(reply.body))["choices"][0]["token_ids"] == []
    else:
        assert describe(json.loads(bytes(reply.body))) == describe(kept["body"])


@pytest.mark.parametrize("name", CONTROL)
async def test_a_control_route_answers_as_recorded(client: EngineClient, name: str) -> None:
    kept = RECORDED[name]
    engine = ScriptedVllm()
    engine.version = "0.32.0"
    if name == "is_paused_yes":
        engine.pause("abort")
    async with running(engine) as url:
        method = "POST" if name not in ("version", "weight_info", "is_paused_no", "is_paused_yes") else "GET"
        reply = await client.call(method, f"{url}{kept['path']}", body=restore(kept["request"]))
    assert reply.status == kept["status"]
    assert (json.loads(bytes(reply.body)) if reply.body else None) == kept["body"]


async def test_the_older_one_holds_calls_back_and_the_newer_one_refuses_them(client: EngineClient) -> None:
    call = restore(RECORDED["generate_length"]["request"])
    for refuses in (False, True):
        engine = ScriptedVllm()
        engine.refuses_while_paused = refuses
        async with running(engine) as url:
            engine.pause("abort")
            turn = asyncio.create_task(client.call("POST", f"{url}/inference/v1/generate", body=call))
            await engine.wait_for_generations(1)
            if not refuses:
                engine.resume()
            assert (await turn).status == (503 if refuses else 200)
