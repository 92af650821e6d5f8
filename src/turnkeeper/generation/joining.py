"""The parts of a turn that was aborted and resumed, joined into one reply.

Pure. The text of a part cannot be trusted: a character, a marker, a tool call or a stop string may lie across a cut.
The message is therefore parsed from the joined ids.

::

    prompt | a b c (abort)                       part 1: three ids, held
    prompt   a b c | d e f <stop>                part 2: generated behind the first, with the rest of the token budget
    prompt | a b c   d e f <stop>                one reply: ids, logprobs, versions and rows joined, message parsed anew
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from turnkeeper.channels import Capture
from turnkeeper.core.tokens import TokenIds, join_ids
from turnkeeper.core.turn import FinishReason, TopLogprobs, VersionSpan
from turnkeeper.engines.engine import DecodeIds, GenerateRequest, Generation, ParseMessage
from turnkeeper.engines.message import trim_stop
from turnkeeper.jsontypes import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplyPart:
    """The part of a turn's reply that one engine call generated, checked. A turn that is never resumed has one part."""

    request: GenerateRequest
    generation: Generation
    versions: tuple[VersionSpan, ...]
    """The version spans over the ids of this part."""
    taken: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What was taken of side channels of this part, by the channel's name; see `Capture.take`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedReply:
    """The parts of a turn as one reply."""

    generation: Generation
    versions: tuple[VersionSpan, ...]
    taken: Mapping[str, Any]
    """What was taken of side channels, joined."""
    cut_tokens: int = 0
    """The number of sampled ids behind a stop string that lay across a cut, which no turn records."""


def join_parts(
    parts: Sequence[ReplyPart],
    *,
    captures: Sequence[Capture] = (),
    parse: ParseMessage | None = None,
    decode: DecodeIds | None = None,
) -> JoinedReply:
    """Join the parts of a turn, the last of which ended it, into one reply.

    Args:
        parts: in their order, at least one.
        captures: the side channels that may have been asked for.
        parse: parses the joined ids; needed for more than one part.
        decode: finds stop strings that lie across a cut.
    """
    if len(parts) == 1:
        only = parts[0]
        return JoinedReply(generation=only.generation, versions=only.versions, taken=only.taken)
    if parse is None:
        raise ValueError("parts are joined with a parser")
    first, last = parts[0], parts[-1].generation
    ids = join_ids([part.generation.ids for part in parts])
    stop = _find_stop(ids, first, decode)
    count = stop.count if stop is not None else len(ids)
    finish, matched = (FinishReason.STOP, stop.text) if stop is not None else (last.finish_reason, last.matched_stop)
    message = parse(first.request, ids[:count])
    if isinstance(matched, str):
        message = trim_stop(message, matched)
    if message.get("tool_calls") and finish == FinishReason.STOP:
        finish = FinishReason.TOOL_CALLS
    generation = replace(
        last,
        message=message,
        ids=ids[:count],
        logprobs=np.concatenate([part.generation.logprobs for part in parts])[:count],
        top_logprobs=_join_top_logprobs(parts, count),
        finish_reason=str(finish),
        matched_stop=matched,
        prompt_tokens=None if last.prompt_tokens is None else len(first.request.prompt_ids),
        completion_tokens=count,
        cached_tokens=first.generation.cached_tokens,
        is_cache_counted=first.generation.is_cache_counted,
        spans=None,
        num_retractions=sum(part.generation.num_retractions for part in parts),
        meta=_join_meta(parts, count),
    )
    return JoinedReply(
        generation=generation,
        versions=_join_versions(parts, count),
        taken=_join_taken(parts, captures, count),
        cut_tokens=len(ids) - count,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    text: str
    count: int
    """The number of ids until the stop string is complete."""


def _find_stop(ids: TokenIds, first: ReplyPart, decode: DecodeIds | None) -> _Stop | None:
    """Find the first stop string in the joined ids; None where there is none."""
    stops = first.request.stop_strings
    if not stops or decode is None:
        return None
    whole = decode(ids)
    present = [text for text in stops if text in whole]
    if not present:
        return None

    def has_stop(count: int) -> str | None:
        text = decode(ids[:count])
        return next((stop for stop in present if stop in text), None)

    low, high = 1, len(ids)  # the number of ids wanted lies in low..high: more ids never lose a stop string
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if has_stop(middle) else (middle + 1, high)
    return _Stop(text=has_stop(low) or present[0], count=low)


def _join_top_logprobs(parts: Sequence[ReplyPart], count: int) -> TopLogprobs | None:
    """Join the likeliest tokens of the parts; None where a part has none."""
    reports = [part.generation.top_logprobs for part in parts if len(part.generation.ids)]
    if None in reports:
        return None
    return tuple(place for report in reports for place in report or ())[:count]


def _join_versions(parts: Sequence[ReplyPart], count: int) -> tuple[VersionSpan, ...]:
    """Join the version spans of the parts, equal neighbours as one, cut at ``count``."""
    joined: list[VersionSpan] = []
    offset = 0
    for part in parts:
        for span in part.versions:
            start, stop = offset + span.start, min(offset + span.stop, count)
            if start >= stop:
                continue
            if joined and joined[-1].version == span.version:
                joined[-1] = replace(joined[-1], stop=stop)
            else:
                joined.append(VersionSpan(version=span.version, start=start, stop=stop))
        offset += len(part.generation.ids)
    return tuple(joined)


def _join_taken(parts: Sequence[ReplyPart], captures: Sequence[Capture], count: int) -> Mapping[str, Any]:
    """Join what was taken of each side channel, cut at ``count`` sampled ids."""
    joined: dict[str, Any] = {}
    for capture in captures:
        name = capture.channel.name
        found = [part for part in parts if name in part.taken]
        if found:
            joined[name] = capture.join(
                [part.taken[name] for part in found],
                prompt_tokens=len(parts[0].request.prompt_ids),
                counts=[len(part.generation.ids) for part in found],
                count=count,
            )
    return joined


def _join_meta(parts: Sequence[ReplyPart], count: int) -> JsonObject:
    """Join the parts' ``meta_info``: the last one with the counts of the whole, and sums of times and speculative
    counters."""
    metas = [part.generation.meta for part in parts]
    meta: JsonObject = {**metas[-1], "prompt_tokens": len(parts[0].request.prompt_ids), "completion_tokens": count}
    meta["cached_tokens"] = parts[0].generation.cached_tokens
    for name in {name for each in metas for name in each}:
        values = [each[name] for each in metas if isinstance(each.get(name), int | float)]
        if (name == "e2e_latency" or (name.startswith("spec_") and name.endswith(("_num", "_ct")))) and values:
            meta[name] = sum(values)
    return meta
