"""What a turn keeps of its request's fields.

1. Fields that reached no engine are listed under ``marks.dropped_fields`` in records and samples and counted by name,
   those that the agent's body lost as well as those that the engine's wire does not have.
2. The adapter goes along with every turn, and stands with its versions.
3. A reply that counts no prompt tokens is served and marked, with one warning a route; with routing rows it is refused.
4. The likeliest tokens that an agent asks for are delivered with the reply, and shown in its record.
5. The number of names that are counted one by one is bounded.
"""

import json
import logging
from typing import Any

import pytest

from servicekit import Kit, build_kit, user
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples import decode_samples


async def describe(kit: Kit, session_id: str) -> JsonObject:
    return json.loads(await kit.service.describe(session_id))


async def read_turn(kit: Kit, session_id: str) -> JsonObject:
    (turn,) = (await describe(kit, session_id))["metadata"]["turnkeeper"]["turns"]
    return turn


async def take_turn(kit: Kit, session_id: str, fields: JsonObject | None = None, **reply: Any) -> None:
    turn = await kit.begin(session_id, [user("hi")], **(fields or {}))
    kit.engine.answer(**reply)
    await turn.read()


async def test_fields_that_reached_no_engine_are_listed_and_counted() -> None:
    kit = build_kit()
    session_id = kit.create()
    await take_turn(
        kit, session_id, {"x_new": 1, "stop_regex": "a", "temperature": 0.5}, dropped_fields=("stop_regex",)
    )
    assert (await read_turn(kit, session_id))["marks"]["dropped_fields"] == ["stop_regex", "x_new"]
    (record,) = (await describe(kit, session_id))["records"]
    assert record["request"]["temperature"] == 0.5
    assert not {"x_new", "stop_regex"} & set(record["request"])
    counted = kit.backend.metrics.render().decode()
    assert 'turnkeeper_fields_dropped_total{field="other"} 1.0' in counted
    assert 'turnkeeper_fields_dropped_total{field="stop_regex"} 1.0' in counted


async def test_names_that_agents_invent_are_counted_together() -> None:
    kit = build_kit()
    before = kit.backend.metrics.render().decode().count("_fields_dropped_total{")
    for number in range(4):
        invented = {f"invented_{number}_{each}": 1 for each in range(30)}
        await take_turn(kit, kit.create(), {**invented, "x" * 65: 1, 'evil"}\n': 1})
    counted = [line for line in kit.backend.metrics.render().decode().splitlines() if "_fields_dropped_total{" in line]
    assert len(counted) == before
    assert 'turnkeeper_fields_dropped_total{field="other"} 128.0' in counted


async def test_what_a_session_forbids_never_reaches_the_engine() -> None:
    kit = build_kit()
    session_id = kit.create(sampling_params={"temperature": None, "max_tokens": None})
    await take_turn(kit, session_id, {"temperature": 0.2, "max_tokens": 5, "top_p": 0.5})
    assert dict(kit.engine.calls[0].request.sampling) == {"top_p": 0.5}
    turn = await read_turn(kit, session_id)
    assert turn["marks"]["overridden"] == {"temperature": 0.2, "max_tokens": 5}
    assert turn["notes"] == [
        "left out temperature: the session forbids it",
        "left out max_tokens: the session forbids it",
    ]


async def test_the_adapter_goes_along_with_every_turn_and_stands_with_its_versions() -> None:
    kit = build_kit(lora_name="mine", pause_generation_mode="abort")
    session_id = kit.create()
    await take_turn(kit, session_id)
    assert kit.engine.calls[0].request.lora_name == "mine"
    assert (await read_turn(kit, session_id))["lora_name"] == "mine"
    assert (await describe(kit, session_id))["records"][0]["request"]["lora_path"] == "mine"
    (sample,) = decode_samples((await kit.service.collect(session_id)).to_bytes()).samples
    (span,) = sample.metadata["turnkeeper"]["versions"]
    assert (span["version"], span["lora_name"]) == ("v0", "mine")


async def test_without_an_adapter_none_is_named() -> None:
    kit = build_kit()
    session_id = kit.create()
    await take_turn(kit, session_id)
    assert "lora_name" not in await read_turn(kit, session_id)
    assert "lora_path" not in (await describe(kit, session_id))["records"][0]["request"]


async def test_a_reply_that_counts_no_prompt_tokens_is_marked_with_one_warning_a_route(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kit = build_kit()
    with caplog.at_level(logging.WARNING, "turnkeeper"):
        for _ in range(3):
            session_id = kit.create()
            await take_turn(kit, session_id, prompt_tokens=None)
            assert (await read_turn(kit, session_id))["marks"]["prompt_unverified"] is True
    assert [record.args for record in caplog.records if "prompt_unverified" in record.getMessage()] == [
        ("http://engine",)
    ]


async def test_the_likeliest_tokens_are_delivered_and_shown() -> None:
    kit = build_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("hi")], logprobs=True, top_logprobs=2)
    assert kit.engine.calls[0].request.forwarded == {"top_logprobs": 2}
    count = len(kit.engine.build(kit.engine.calls[0], text="ok").ids)
    kit.engine.answer(text="ok", top_logprobs=(((5, -0.5), (6, -1.0)),) * count)
    content = (await turn.read())["choices"][0]["logprobs"]["content"]
    assert [[entry["logprob"] for entry in place["top_logprobs"]] for place in content] == [[-0.5, -1.0]] * count
    (record,) = (await describe(kit, session_id))["records"]
    shown = record["response"]["choices"][0]["meta_info"]["output_top_logprobs"]
    assert shown == [[[-0.5, 5, None], [-1.0, 6, None]]] * count
