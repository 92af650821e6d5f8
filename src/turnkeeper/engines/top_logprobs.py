"""The likeliest tokens at each position of a reply (``top_logprobs``), read from the form of each wire.

Pure. They are reported to the agent and not trained on, so malformed entries are left out and no reply is refused for
them. Each position has at most as many as were asked for, the likeliest first::

    SGLang                  meta_info.output_top_logprobs   [[[-0.1, 5, "a"], [-2.3, 7, "b"]], ...]
    vLLM, generate route    logprobs.content                [{"top_logprobs": [{"token_id": 5, "logprob": -0.1}]}, ...]
    vLLM, completions       logprobs.top_logprobs           [{"token_id:5": -0.1, "token_id:7": -2.3}, ...]
"""

from typing import Any

from turnkeeper.core.turn import TopLogprobs
from turnkeeper.engines.engine import GenerateRequest
from turnkeeper.jsontypes import is_array, is_number, is_object

_ID_PREFIX = "token_id:"


def count_wanted(request: GenerateRequest | None) -> int:
    """Return how many tokens a request asks for at each position; 0 for none."""
    count: Any = 0 if request is None else request.forwarded.get("top_logprobs", 0)
    return count if isinstance(count, int) and not isinstance(count, bool) else 0


def read_top_logprobs(places: Any, *, tokens: int, wanted: int) -> TopLogprobs | None:
    """Read the likeliest tokens of each position; None where none were asked for, or not every position has them.

    Args:
        places: one entry for each sampled token, in any of the forms above.
        tokens: the number of sampled tokens.
        wanted: the number that was asked for at each position.
    """
    if not wanted or not is_array(places) or len(places) != tokens:
        return None
    return tuple(_read_place(place, wanted) for place in places)


def _read_place(place: Any, wanted: int) -> tuple[tuple[int, float], ...]:
    if is_array(place):
        pairs = [_read_triple(entry) for entry in place]
    elif not is_object(place):
        pairs = []
    elif is_array(inner := place.get("top_logprobs")):
        pairs = [_read_entry(entry) for entry in inner]
    else:
        pairs = [_read_name(*item) for item in place.items()]
    sound = [(token_id, float(logprob)) for token_id, logprob in pairs if _is_id(token_id) and is_number(logprob)]
    return tuple(sorted(sound, key=lambda pair: -pair[1])[:wanted])


def _read_triple(entry: Any) -> tuple[Any, Any]:
    return (entry[1], entry[0]) if is_array(entry) and len(entry) > 1 else (None, None)


def _read_entry(entry: Any) -> tuple[Any, Any]:
    return (entry.get("token_id"), entry.get("logprob")) if is_object(entry) else (None, None)


def _read_name(name: str, logprob: Any) -> tuple[Any, Any]:
    digits = name.removeprefix(_ID_PREFIX)
    return (int(digits), logprob) if digits != name and digits.isdecimal() and len(digits) < 19 else (None, None)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
