"""Small builders for tests of engines."""

import base64
from typing import Any

import numpy as np

from channelkit import take_asked, take_payloads
from turnkeeper.channels import PackedIds, Payload
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines import GenerateRequest, Generation


def make_request(**fields: Any) -> GenerateRequest:
    """A request with five prompt ids."""
    prompt = fields.pop("prompt", [11, 12, 13, 14, 15])
    return GenerateRequest(
        **{
            "rid": "rid-1",
            "session_id": "5e" * 16,
            "prompt_ids": freeze_ids(prompt),
            "messages": ({"role": "user", "content": "hi"},),
            **take_asked(fields),
        }
    )


def make_generation(count: int = 4, **fields: Any) -> Generation:
    """A sound reply to `make_request` with so many sampled ids, 20 and up."""
    return Generation(
        **{
            "message": {"role": "assistant", "content": "x"},
            "ids": freeze_ids(range(20, 20 + count)),
            "logprobs": np.full(count, -0.5),
            "finish_reason": "stop",
            "prompt_tokens": 5,
            "completion_tokens": count,
            "weight_version": "1",
            "url": "http://engine",
            **take_payloads(fields),
        }
    )


def spell_payload(payload: Payload | None) -> str:
    """The text that a payload was decoded from."""
    assert payload is not None
    packed = payload if isinstance(payload, PackedIds) else PackedIds.pack(payload)
    assert not packed.error
    ids = np.concatenate([np.empty(0, np.int32), *packed.iter_units(1)], dtype=np.int32)
    return base64.b64encode(ids.tobytes()).decode()
