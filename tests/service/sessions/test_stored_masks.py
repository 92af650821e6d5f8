"""Sampling masks of sessions in a store, and of idle ones on disk.

1. Another server that opens the store gives the same samples byte for byte, and goes on with the session.
2. Masks that are stored or moved to disk are not in memory, and stay what they were, with logprobs within them
   (SGLang) or without (vLLM).
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from service.sessions.test_storing import OPTIONS, collect, play, serving
from servicekit import FakeEngine, assistant, build_kit, user
from turnkeeper.channels.masks.channel import MaskPayload
from turnkeeper.engines import GenerateRequest, Generation
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.service.sessions.footprint import Part, measure_session

PINS: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9}
MASKED: dict[str, Any] = {"use_rollout_sampling_mask": True}
FORMS = pytest.mark.parametrize("has_logprobs", [True, False], ids=["sglang", "vllm"])
HISTORIES = pytest.mark.parametrize("version", ["v1", "v2"])


def build_mask(token: int, place: int) -> list[int]:
    """The mask of the token at this place of its reply."""
    return [token, *(1 + other for other in range(place % 3) if 1 + other != token)]


class MaskingFake(FakeEngine):
    """Sends masks with every reply."""

    def __init__(self, *, has_logprobs: bool) -> None:
        super().__init__()
        self.has_logprobs = has_logprobs

    async def generate(self, request: GenerateRequest, *, on_ids: Any = None) -> Generation:
        generation = await super().generate(request, on_ids=on_ids)
        ids = generation.ids.tolist()
        payload = MaskPayload(
            masks=[build_mask(token, place) for place, token in enumerate(ids)],
            logprobs=[logprob / 2 for logprob in generation.logprobs.tolist()] if self.has_logprobs else None,
            truncated=None,
            has_logprobs=self.has_logprobs,
        )
        return replace(generation, payloads={"sampling_mask": payload})


def check(sample: Sample, *, has_logprobs: bool) -> None:
    """Each turn of a sample begins a reply, and its tokens have the masks of their places in it."""
    ids, offsets = sample.tensors["rollout_sampling_mask_ids"], sample.tensors["rollout_sampling_mask_offsets"]
    response = sample.tokens[len(sample.tokens) - sample.response_length :].tolist()
    expected: list[list[int]] = [[] for _ in response]
    logprobs = [0.0] * len(response)
    for turn in sample.metadata["turnkeeper"]["turns"]:
        for place, at in enumerate(range(turn["start"], turn["end"])):
            expected[at] = build_mask(response[at], place)
            logprobs[at] = -(place + 1) / 8 / (2 if has_logprobs else 1)
    assert [ids[start:stop].tolist() for start, stop in pairwise(offsets)] == expected
    assert sample.rollout_log_probs.tolist() == logprobs
    assert (sample.rollout_full_log_probs is not None) == has_logprobs


@FORMS
@HISTORIES
async def test_another_server_gives_the_same_masks(tmp_path: Path, version: str, has_logprobs: bool) -> None:
    build = partial(MaskingFake, has_logprobs=has_logprobs)
    picker = {"session_sample_picker_path": "keep_siblings"} if version == "v2" else {}
    options = {**OPTIONS, **MASKED, "use_session_server": version, **picker}
    async with serving(tmp_path, engine=build(), **options) as kit:
        if version == "v2":
            session_id = await play(kit, **PINS)
        else:
            session_id = kit.create(**PINS)
            await kit.say(session_id, [user("a")], "first")
        payload = await collect(kit, session_id)
    async with serving(tmp_path, engine=build(), **options) as kit:
        assert await collect(kit, session_id) == payload
        runs = [run for turn in kit.look(session_id).forest.turns for run in list_runs(turn)]
        assert runs
        assert not any(run.in_memory for run in runs if len(run))
        await kit.say(session_id, [user("a"), assistant("first"), user("new")], "longer than before")
        longer = await collect(kit, session_id)
    async with serving(tmp_path, engine=build(), **options) as kit:
        assert await collect(kit, session_id) == longer
    batches = [decode_samples(each).samples for each in (payload, longer)]
    assert len(batches[1]) == (3 if version == "v2" else 1)
    for sample in (*batches[0], *batches[1]):
        check(sample, has_logprobs=has_logprobs)


def list_runs(turn: Any) -> list[Any]:
    return list(turn.completion.channels["sampling_mask"].runs)


@FORMS
async def test_masks_of_idle_sessions_move_to_disk(tmp_path: Path, has_logprobs: bool) -> None:
    engine = MaskingFake(has_logprobs=has_logprobs)
    kit = build_kit(engine=engine, max_memory_bytes=1, spill_directory=str(tmp_path), **MASKED)
    session_id = kit.create(**PINS)
    await kit.say(session_id, [user("a")], "first")
    before = (await kit.service.collect(session_id)).to_bytes()
    await kit.parts.memory.settle()
    entry = kit.find_entry(session_id)
    (turn,) = entry.session.forest.turns
    assert entry.spilled_bytes > 0
    assert not any(run.in_memory for run in list_runs(turn) if len(run))
    assert entry.held[Part.ROWS] == 0
    assert dict(entry.held) == dict(measure_session(entry))
    after = (await kit.service.collect(session_id)).to_bytes()
    assert decode_samples(after).samples[0].tensors.keys() == decode_samples(before).samples[0].tensors.keys()
    await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")
    (sample,) = decode_samples((await kit.service.collect(session_id)).to_bytes()).samples
    check(sample, has_logprobs=has_logprobs)
