"""How a failed engine call is accounted for.

1. What the error says was sampled is dropped for its reason.
2. An engine that was not reached, refused or was paused sampled nothing.
3. After any other failure of an engine nobody knows: the call is counted.
"""

import pytest

from turnkeeper.core import DropReason
from turnkeeper.errors import (
    EngineError,
    EnginePausedError,
    EngineProtocolError,
    EngineRefusedError,
    EngineTimeoutError,
    RequestError,
    TurnAbortedError,
)
from turnkeeper.service.turns.in_flight import Loss, list_losses

UNKNOWN = (Loss(reason=DropReason.REFUSED_REPLY, sampled_tokens=None),)
CASES: dict[str, tuple[Exception, tuple[Loss, ...]]] = {
    "refused reply": (
        EngineProtocolError("x", sampled_tokens=3),
        (Loss(reason=DropReason.REFUSED_REPLY, sampled_tokens=3),),
    ),
    "final abort": (
        TurnAbortedError("x", sampled_tokens=0, aborted_tokens=4),
        (Loss(reason=DropReason.ABORTED_PIECE, sampled_tokens=4),),
    ),
    "both": (
        EngineProtocolError("x", sampled_tokens=3, aborted_tokens=4),
        (
            Loss(reason=DropReason.ABORTED_PIECE, sampled_tokens=4),
            Loss(reason=DropReason.REFUSED_REPLY, sampled_tokens=3),
        ),
    ),
    "abort before the first token": (TurnAbortedError("x", sampled_tokens=0, aborted_tokens=0), ()),
    "not reached": (EngineError("x", accepted=False), ()),
    "refused": (EngineRefusedError("x", engine_status=400), ()),
    "paused": (EnginePausedError("x"), ()),
    "refused here": (RequestError("x"), ()),
    "a bug": (ValueError("x"), ()),
    "broke off": (EngineError("x", sampled_tokens=0), UNKNOWN),
    "no answer in time": (EngineTimeoutError("x"), UNKNOWN),
}


@pytest.mark.parametrize(("error", "losses"), CASES.values(), ids=CASES.keys())
def test_a_failed_call_is_accounted_for(error: Exception, losses: tuple[Loss, ...]) -> None:
    assert list_losses(error) == losses
