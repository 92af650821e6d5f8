"""Small builders for tests of engines."""

from typing import Any

import numpy as np

from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines.engine import GenerateRequest, Generation


def make_request(**fields: Any) -> GenerateRequest:
    """A request with five prompt ids."""
    prompt = fields.pop("prompt", [11, 12, 13, 14, 15])
    return GenerateRequest(
        **{
            "rid": "rid-1",
            "session_id": "5e" * 16,
            "prompt_ids": freeze_ids(prompt),
            "messages": ({"role": "user", "content": "hi"},),
            **fields,
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
            **fields,
        }
    )
