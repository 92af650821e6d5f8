"""What a sampler does to the distribution: cut it off, which a mask explains, or change it, which no mask does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnkeeper.fields import Use, list_fields
from turnkeeper.jsontypes import is_number, is_object

_EXPLAINED = frozenset({"temperature", "top_p", "top_k", "min_p", "tool_choice"})
_UNEXPLAINED = tuple(
    row for use in (Use.SAMPLING, Use.FORMAT) for row in list_fields(use) if row.shapes and row.name not in _EXPLAINED
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskAsked:
    """What a turn asks for: the masks of what it samples. There is no start."""

    payload_start: int
    """The length of the prompt: masks cover none of it."""
    is_truncating: bool
    """True where masks are asked for; False for a turn that is only marked."""
    is_greedy: bool
    """True where the likeliest token is taken, so that each mask is the token alone."""
    unexplained: tuple[str, ...] = ()
    """The fields that change weights in a way that no mask explains."""


def is_truncating(sampling: Mapping[str, Any]) -> bool:
    """Return True if a sampler leaves ids out: top-p below 1, a finite top-k, or min-p above 0.

    What a request leaves out counts as not truncating: an engine is not to take defaults from a checkpoint.
    """
    top_p, top_k, min_p = (sampling.get(name) for name in ("top_p", "top_k", "min_p"))
    return (is_number(top_p) and top_p < 1) or (is_number(top_k) and top_k > 0) or (is_number(min_p) and min_p > 0)


def is_greedy(sampling: Mapping[str, Any]) -> bool:
    """Return True if a sampler takes the likeliest token."""
    temperature, top_k = sampling.get("temperature"), sampling.get("top_k")
    return (is_number(temperature) and temperature == 0) or (is_number(top_k) and top_k == 1)


def list_unexplained(sampling: Mapping[str, Any]) -> tuple[str, ...]:
    """List the fields that change weights before or beside the truncation: penalties, biases, grammars and others."""
    found = [row.name for row in _UNEXPLAINED if row.name in sampling and not row.is_neutral(sampling[row.name])]
    choice = sampling.get("tool_choice")
    return (*found, *(("tool_choice",) if choice == "required" or is_object(choice) else ()))
