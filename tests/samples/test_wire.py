"""Samples as one safetensors payload, and back.

1. The payload holds exactly the tensors and JSON keys of the contract, in the contract's dtypes and shapes.
2. decode(encode(x)) is x bit for bit, signed zeros too; encoding again gives the same bytes; chunks are the payload.
3. A reader that knows only the contract and the safetensors library reads it.
4. Unknown JSON keys are ignored; what is missing, mistyped or left over is refused.
"""

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from channelkit import take_tensors
from turnkeeper.channels import CHANNELS
from turnkeeper.choices import HistoryKind
from turnkeeper.errors import AssemblyError, PayloadError
from turnkeeper.samples import EmptyReason, Sample, SampleStatus, decode_samples, encode_samples
from turnkeeper.samples.sample import PrefixCacheInfo, SpecInfo
from turnkeeper.samples.wire import list_fields

ROWS = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)


ROW_TENSORS = ("rollout_routed_experts", "rollout_indexer_topk")


def _sample(**fields: Any) -> Sample:
    known: dict[str, Any] = {
        "tokens": np.array([1, 2, 3, 4, 151645], np.int64),
        "loss_mask": np.array([1, 0, 1], np.uint8),
        "rollout_log_probs": np.array([-0.25, -0.0, -1e-300]),
        "response": "täglich\n",
        "status": SampleStatus.COMPLETED,
        "rollout_routed_experts": ROWS,
        "weight_versions": ("1", "default"),
        "prefix_cache_info": PrefixCacheInfo(cached_tokens=3, total_prompt_tokens=5),
        "metadata": {"lifecycle": {"t0": None, "t1": 1.5, "turn": 1}},
    }
    return Sample(**take_tensors({**known, **fields}))


def _read(payload: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The payload as anyone may read it."""
    tensors = safetensors.numpy.load(payload)
    return tensors, json.loads(tensors.pop("_samples_meta").tobytes().decode("utf-8"))


def test_a_payload_is_what_the_contract_says() -> None:
    tensors, meta = _read(encode_samples([_sample()], {"max_trim_tokens": 1}).to_bytes())
    assert {name: (array.dtype.str, array.shape) for name, array in tensors.items()} == {
        "tokens.0": ("<i8", (5,)),
        "loss_mask.0": ("|u1", (3,)),
        "rollout_log_probs.0": ("<f8", (3,)),
        "rollout_routed_experts.0": ("<i4", (4, 2, 3)),
    }
    assert meta == {
        "samples": [
            {
                "response": "täglich\n",
                "response_length": 3,
                "status": "completed",
                "weight_versions": ["1", "default"],
                "prefix_cache_info": {"cached_tokens": 3, "total_prompt_tokens": 5},
                "spec_info": {
                    "spec_accept_token_num": 0,
                    "spec_draft_token_num": 0,
                    "spec_verify_ct": 0,
                    "completion_token_num": 0,
                },
                "metadata": {"lifecycle": {"t0": None, "t1": 1.5, "turn": 1}},
                "nulls": ["rollout_indexer_topk"],
            }
        ],
        "session_metadata": {"max_trim_tokens": 1},
        "empty_reason": None,
    }


def test_a_linear_session_leaves_out_a_reward_that_is_null() -> None:
    for history in HistoryKind:
        _, meta = _read(encode_samples([_sample(reward=0.5)], {}, history=history).to_bytes())
        assert meta["samples"][0]["reward"] == 0.5
    _, meta = _read(encode_samples([_sample()], {}, history=HistoryKind.TREE).to_bytes())
    assert meta["samples"][0]["reward"] is None


@pytest.mark.parametrize("reason", list(EmptyReason))
def test_an_empty_reply_says_why(reason: EmptyReason) -> None:
    payload = encode_samples([], {"tree": {"nodes": []}}, reason).to_bytes()
    tensors, meta = _read(payload)
    assert (tensors, meta["samples"], meta["empty_reason"]) == ({}, [], str(reason))
    assert decode_samples(payload).empty_reason is reason


def test_chunks_are_the_payload_and_its_size_is_known_before() -> None:
    payload = encode_samples([_sample(), _sample()], {"a": 1})
    chunks = [bytes(chunk) for chunk in payload.iter_chunks()]
    assert b"".join(chunks) == payload.to_bytes()
    assert sum(map(len, chunks)) == payload.size_bytes
    assert len(chunks[0]) % 8 == 0


def test_rows_of_several_blocks_come_out_whole() -> None:
    rows = np.random.default_rng(0).integers(0, 256, size=(30_000, 10, 8)).astype(np.uint8)
    tokens = np.arange(30_001)
    payload = encode_samples([_sample(tokens=tokens, rollout_routed_experts=rows)], {})
    assert len(list(payload.iter_chunks())) > 4
    read = decode_samples(payload.to_bytes()).samples[0].rollout_routed_experts
    assert read is not None
    assert np.array_equal(read, rows)


def test_rows_of_a_slice_are_written_as_they_are_seen() -> None:
    wide = np.arange(4 * 2 * 6, dtype=np.int32).reshape(4, 2, 6)
    (read,) = decode_samples(encode_samples([_sample(rollout_routed_experts=wide[:, :, ::2])], {}).to_bytes()).samples
    assert read.rollout_routed_experts is not None
    assert read.rollout_routed_experts.tolist() == wide[:, :, ::2].tolist()


def _mended(payload: bytes, **changes: Any) -> bytes:
    """The payload with tensors replaced (None: removed) and `meta` changed by a function."""
    tensors = safetensors.numpy.load(payload)
    change = changes.pop("meta", None)
    for name, array in changes.items():
        if array is None:
            del tensors[name.replace("__", ".")]
        else:
            tensors[name.replace("__", ".")] = array
    if change is not None:
        meta = json.loads(tensors["_samples_meta"].tobytes())
        change(meta)
        tensors["_samples_meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    return safetensors.numpy.save(tensors)


PAYLOAD = encode_samples([_sample()], {}).to_bytes()


def test_keys_and_tensors_of_a_newer_server_are_ignored() -> None:
    def add(meta: dict[str, Any]) -> None:
        meta["news"] = 1
        meta["samples"][0]["news"] = 2
        del meta["samples"][0]["spec_info"]

    (sample,) = decode_samples(_mended(PAYLOAD, meta=add, rollout_news__0=np.zeros(1))).samples
    assert sample.spec_info == SpecInfo()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"not safetensors", "no samples payload"),
        (safetensors.numpy.save({"x": np.zeros(1)}), "lacks '_samples_meta'"),
        (_mended(PAYLOAD, tokens__0=None), "lacks 'tokens.0'"),
        (_mended(PAYLOAD, tokens__0=np.zeros(5, np.int32)), "tokens.0 must be int64, got int32"),
        (_mended(PAYLOAD, tokens__3=np.zeros(1, np.int64)), r"of no sample: \['tokens.3'\]"),
        (_mended(PAYLOAD, loss_mask__0=np.zeros(2, np.uint8)), "not parallel"),
        (_mended(PAYLOAD, meta=lambda meta: meta["samples"][0].pop("nulls")), "lacks 'nulls'"),
        (_mended(PAYLOAD, meta=lambda meta: meta.pop("empty_reason")), "lacks 'empty_reason'"),
        (_mended(PAYLOAD, meta=lambda meta: meta["samples"][0].update(status="odd")), "'odd' is not a valid"),
        (_mended(PAYLOAD, meta=lambda meta: meta.update(samples=3)), "no samples payload"),
    ],
    ids=[
        "no-container",
        "no-meta",
        "missing-tensor",
        "other-dtype",
        "left-over",
        "not-parallel",
        "no-nulls",
        "no-reason",
        "odd-status",
        "no-list",
    ],
)
def test_a_payload_of_another_form_is_refused(payload: bytes, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        decode_samples(payload)


def test_metadata_that_is_no_json_is_refused() -> None:
    with pytest.raises(AssemblyError, match="not JSON"):
        encode_samples([_sample(metadata={"odd": object()})], {})


@pytest.mark.parametrize(
    "fields",
    [
        {"rollout_log_probs": np.zeros(2)},
        {"tokens": np.zeros(2, np.int64), "rollout_routed_experts": None},
        {"rollout_routed_experts": ROWS[:3]},
        {"rollout_indexer_topk": np.zeros((5, 1, 1), np.int32)},
    ],
    ids=["logprobs", "tokens", "rows", "indexer"],
)
def test_an_ill_formed_sample_does_not_exist(fields: dict[str, Any]) -> None:
    with pytest.raises(AssemblyError):
        _sample(**fields)


def test_the_table_names_attributes_of_a_sample() -> None:
    assert all(hasattr(_sample(), field.name) for field in list_fields())


_texts = st.text(st.characters(codec="utf-8"), max_size=5)


@st.composite
def _samples(draw: st.DrawFn) -> Sample:
    length = draw(st.integers(1, 6))
    response = draw(st.integers(0, length))
    rows = st.integers(0, 2).flatmap(lambda topk: arrays(np.int32, (length - 1, 2, topk)))
    return Sample(
        tokens=draw(arrays(np.int64, length)),
        loss_mask=draw(arrays(np.uint8, response, elements=st.integers(0, 1))),
        rollout_log_probs=draw(arrays(np.float64, response, elements=st.floats(allow_nan=False, max_value=0.0))),
        response=draw(_texts),
        status=draw(st.sampled_from(SampleStatus)),
        tensors=draw(st.fixed_dictionaries({}, optional=dict.fromkeys(ROW_TENSORS, rows))),
        weight_versions=tuple(draw(st.lists(_texts, max_size=2))),
        reward=draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)),
        metadata=draw(st.dictionaries(_texts, st.integers(-9, 9) | _texts | st.none(), max_size=2)),
    )


def _bits(sample: Sample) -> list[Any]:
    names = ("tokens", "loss_mask", "rollout_log_probs", *ROW_TENSORS)
    arrays_of = [getattr(sample, name) for name in names]
    plain = (sample.response, sample.status, sample.weight_versions, sample.reward, sample.metadata)
    return [None if each is None else (each.dtype.str, each.shape, each.tobytes()) for each in arrays_of] + [*plain]


@settings(max_examples=60, deadline=None)
@given(st.lists(_samples(), max_size=3), st.dictionaries(_texts, st.lists(st.integers(0, 9)), max_size=2))
def test_a_round_trip_keeps_every_bit(samples: list[Sample], session_metadata: dict[str, Any]) -> None:
    payload = encode_samples(samples, session_metadata, history=HistoryKind.TREE)
    first = payload.to_bytes()
    batch = decode_samples(first)
    assert [_bits(sample) for sample in batch.samples] == [_bits(sample) for sample in samples]
    assert batch.session_metadata == session_metadata
    assert encode_samples(samples, session_metadata, history=HistoryKind.TREE).to_bytes() == first


def test_a_sample_as_a_dictionary_is_what_json_has_of_it() -> None:
    sample = _sample(reward={"answer": 1.0}, metadata={"ids": np.array([1, 2]), "list": [(np.int64(3),)]})
    shown = json.loads(json.dumps(sample.to_dict()))
    left_out = {tensor.name for tensor in CHANNELS.tensors if tensor.is_left_out_when_null}
    assert set(shown) == {field.name for field in list_fields()} - left_out
    assert shown["tokens"] == [1, 2, 3, 4, 151645]
    assert shown["rollout_routed_experts"] == ROWS.tolist()
    assert shown["rollout_indexer_topk"] is None
    assert (shown["status"], shown["response_length"], shown["weight_versions"]) == ("completed", 3, ["1", "default"])
    assert shown["metadata"] == {"ids": [1, 2], "list": [[3]]}
    assert shown["prefix_cache_info"] == {"cached_tokens": 3, "total_prompt_tokens": 5}


def test_a_sample_and_what_holds_it_are_shown_in_a_line() -> None:
    batch = decode_samples(encode_samples([_sample()], {}).to_bytes())
    shown = "<Sample completed: 5 tokens, 2 of 3 response tokens trained, reward None, with routing rows>"
    assert repr(batch.samples[0]) == shown
    assert repr(batch) == f"<SampleBatch of 1: [{shown}]>"
    assert repr(decode_samples(encode_samples([], {}, EmptyReason.NO_RECORDS).to_bytes())) == (
        "<SampleBatch of 0: no_records>"
    )
    payload = encode_samples([_sample()], {})
    assert repr(payload) == f"<SamplesPayload of {payload.size_bytes} bytes>"
