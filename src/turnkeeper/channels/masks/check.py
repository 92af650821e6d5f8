"""The check of sampling masks: each must be what its token can have been drawn from. Knows marks of broken routes."""

from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels.channel import CallFacts
from turnkeeper.channels.id_lists import IdLists
from turnkeeper.errors import EngineProtocolError

ROUNDING = 1e-3
"""The largest value that a logprob may have above 0 by rounding."""

_NO_MASKS = (
    "SGLang has masks from 0.5.16 on, on its chat route from 0.5.18 on; vLLM from 0.28.0 on, by --return-sampling-mask "
    "and on /inference/v1/generate alone; sglang-router 0.3.2 drops return_sampling_mask, smg keeps it"
)


def check_masks(masks: IdLists | None, call: CallFacts, *, is_greedy: bool, vocabulary_size: int | None) -> IdLists:
    """Return masks that fit the sampled ids.

    Raises:
        EngineProtocolError: there are none, or one of them is wrong.
    """
    if masks is None:
        _refuse(call, "sampling masks were asked for, and the reply has none", hint=_NO_MASKS)
    count = len(call.ids)
    if len(masks) != count:
        _refuse(call, f"{count} tokens were sampled, and {len(masks)} sampling masks came", hint="a stream lost some")
    if not masks.counts.all():
        _refuse(call, f"the sampling mask of sampled token {int(np.argmin(masks.counts))} is empty")
    limit = 1 << 31 if vocabulary_size is None else vocabulary_size
    if int(masks.ids.min()) < 0 or int(masks.ids.max()) >= limit:
        stray = int(masks.ids[int(np.argmax((masks.ids < 0) | (masks.ids >= limit)))])
        _refuse(call, f"a sampling mask holds {stray}, which is no id of the model's")
    is_own = masks.ids == np.repeat(call.ids, masks.counts)
    holds_own = np.logical_or.reduceat(is_own, np.cumsum(masks.counts) - masks.counts)
    if not holds_own.all():
        index = int(np.argmin(holds_own))
        _refuse(call, f"sampled token {index} is {call.ids[index]}, which its sampling mask does not hold")
    if is_greedy and (masks.counts != 1).any():
        index = int(np.argmax(masks.counts != 1))
        _refuse(call, f"decoding was greedy, and the mask of sampled token {index} has {masks.counts[index]} ids")
    return masks


def check_whole(truncated: object, call: CallFacts) -> None:
    """Refuse masks that the engine cut short: they are not what tokens were drawn from.

    Raises:
        EngineProtocolError: one of them was, or may have been.
    """
    flags = cast("list[Any]", truncated) if isinstance(truncated, list) else [truncated]
    if any(flag not in (None, False) for flag in flags):
        index = next(at for at, flag in enumerate(flags) if flag not in (None, False))
        _refuse(
            call,
            f"the engine cut the sampling mask of sampled token {index} short",
            hint="sample with a smaller top_k, or raise the engine's limit of ids in a mask",
        )


def read_logprobs(value: object, call: CallFacts) -> NDArray[np.float64]:
    """Read the logprobs of the sampled tokens within their masks, shape [C].

    Raises:
        EngineProtocolError: they are missing, of another number, or no log-probabilities.
    """
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    count = len(call.ids)
    if len(entries) != count:
        _refuse(call, f"{count} tokens were sampled, and output_token_sampling_logprobs has {len(entries)}")
    if not all(type(entry) in (float, int) for entry in entries):
        _refuse(call, "output_token_sampling_logprobs holds something else than a number for each sampled token")
    logprobs = np.array(entries, np.float64)
    wrong = ~np.isfinite(logprobs) | (logprobs > ROUNDING)
    if wrong.any():
        index = int(np.argmax(wrong))
        _refuse(call, f"the logprob of sampled token {index} within its mask is {logprobs[index]}")
    return logprobs


def _refuse(call: CallFacts, problem: str, *, hint: str = "") -> NoReturn:
    raise EngineProtocolError(f"the reply of {call.url}: {problem}", hint=hint, url=call.url, problem=problem)
