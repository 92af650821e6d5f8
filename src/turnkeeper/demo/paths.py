"""Samples against the engine calls that they are made of: ids, logprobs, versions and rows.

A path's calls are the finished ones, and the aborted ones that another call goes on from: those are pieces of one turn.
Nothing here asks the session server's own code what is right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from turnkeeper.demo.evidence import EngineCall
from turnkeeper.samples import Sample


def group_by_session(calls: Sequence[EngineCall]) -> dict[str, list[EngineCall]]:
    """Group the calls of each session, in their order."""
    grouped: dict[str, list[EngineCall]] = {}
    for call in calls:
        grouped.setdefault(call.session_id, []).append(call)
    return grouped


def find_lost_calls(calls: Sequence[EngineCall]) -> list[EngineCall]:
    """Find the calls of one session that ended with the server that had made them, before their turn was stored.

    The agent asks again, so the first prompt of a later life is where the stored session ends, and calls that begin
    there or behind are lost. The shortest prompt is the first one, since an agent's history only grows.
    """
    lost: list[EngineCall] = []
    for call in calls:
        later = [other.prompt_ids for other in calls if other.life > call.life]
        if later and _starts_with(call.prompt_ids, min(later, key=len)):
            lost.append(call)
    return lost


def find_prefix_breaks(calls: Sequence[EngineCall]) -> Iterator[str]:
    """Find what breaks the prefix rule in one session of an agent that never rewrites its history.

    Each finished call then has to extend all that were finished before it.
    """
    longest: EngineCall | None = None
    for call in sorted((call for call in calls if not call.is_aborted), key=lambda call: len(call.prompt_ids)):
        if longest is not None and not _starts_with(call.prompt_ids, longest.path_ids):
            at = int(np.argmin(_compare_heads(call.prompt_ids, longest.path_ids)))
            yield f"session {call.session_id}: a prompt of {len(call.prompt_ids)} tokens leaves its path at token {at}"
        longest = call


def find_path_calls(sample: Sample, calls: Sequence[EngineCall]) -> list[EngineCall]:
    """Find the calls of its session that a sample is made of, shortest first."""
    prompts = {call.prompt_ids.tobytes() for call in calls}
    kept = (
        call for call in calls if not call.is_aborted or (len(call.output_ids) and call.path_ids.tobytes() in prompts)
    )
    return sorted((call for call in kept if _starts_with(sample.tokens, call.path_ids)), key=_get_length)


def check_tokens(sample: Sample, path: Sequence[EngineCall]) -> Iterator[str]:
    """Trainable tokens whose ids and logprobs over the whole vocabulary are not what the path's calls sampled."""
    first = len(sample.tokens) - sample.response_length
    logprobs = np.full(sample.response_length, np.nan)
    for call in path:
        start = len(call.prompt_ids) - first
        logprobs[start : start + len(call.output_ids)] = call.logprobs
    full = sample.rollout_full_log_probs
    told = sample.rollout_log_probs if full is None else full
    wrong = np.flatnonzero((sample.loss_mask == 1) & (told != logprobs))
    if wrong.size:
        what = f"{wrong.size} trainable tokens are not what an engine sampled"
        yield f"{what}, the first at response position {wrong[0]}"


def check_masks(sample: Sample, path: Sequence[EngineCall]) -> Iterator[str]:
    """Trainable tokens whose masks, or logprobs within them, are not those of the engine that drew them."""
    ids, offsets = sample.rollout_sampling_mask_ids, sample.rollout_sampling_mask_offsets
    if ids is None or offsets is None:
        yield "a sample has no masks"
        return
    first = len(sample.tokens) - sample.response_length
    wrong: list[int] = []
    for call in path:
        if call.masks is None or call.sampling_logprobs is None:
            continue
        start = len(call.prompt_ids) - first
        for at, (mask, logprob) in enumerate(zip(call.masks, call.sampling_logprobs, strict=True), start):
            found = ids[offsets[at] : offsets[at + 1]]
            if sample.loss_mask[at] and (tuple(found.tolist()) != mask or sample.rollout_log_probs[at] != logprob):
                wrong.append(at)
    if wrong:
        yield f"{len(wrong)} masks are not those that an engine drew from, the first at response position {wrong[0]}"


def check_versions(sample: Sample, path: Sequence[EngineCall]) -> Iterator[str]:
    """Trainable tokens that bear another version than that of the weights which sampled them."""
    first = len(sample.tokens) - sample.response_length
    versions = [""] * sample.response_length
    for call in path:
        start = len(call.prompt_ids) - first
        versions[start : start + len(call.output_ids)] = call.versions
    told = read_versions(sample)
    differing = [at for at in np.flatnonzero(sample.loss_mask == 1) if told[at] != versions[at]]
    if differing:
        at = differing[0]
        yield f"token {at} is of weights {versions[at]!r}, its sample says {told[at]!r}"


def read_versions(sample: Sample) -> list[str]:
    """Read the version of each response token as the sample tells it; "" where it tells none."""
    versions = [""] * sample.response_length
    for span in sample.metadata["turnkeeper"]["versions"]:
        versions[span["start"] : span["end"]] = [span["version"] or ""] * (span["end"] - span["start"])
    return versions


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRows:
    """A sample's rows, compared."""

    count: int
    problems: tuple[str, ...]


def check_rows(sample: Sample, path: Sequence[EngineCall]) -> CheckedRows:
    """Compare each row with that of the call that owns it: a call owns the rows from the last token of the call before
    it."""
    rows, needed = sample.rollout_routed_experts, len(sample.tokens) - 1
    if rows is None or len(rows) != needed:
        found = "no rows" if rows is None else f"{len(rows)} rows"
        return CheckedRows(count=0, problems=(f"a sample of {needed + 1} tokens has {found}, expected {needed}",))
    start, problems = 0, list[str]()
    for call in path:
        stop = len(call.path_ids) - 1
        if not np.array_equal(rows[start:stop], call.experts_RLK[start:stop]):
            problems.append(f"session {call.session_id}: rows {start}..{stop} are not those that the engine computed")
        start = stop
    if start != needed:
        problems.append(f"rows {start}..{needed} of a sample belong to no engine call")
    return CheckedRows(count=start, problems=tuple(problems))


def _get_length(call: EngineCall) -> int:
    return len(call.prompt_ids) + len(call.output_ids)


def _starts_with(ids: np.ndarray, prefix: np.ndarray) -> bool:
    return len(ids) >= len(prefix) and np.array_equal(ids[: len(prefix)], prefix)


def _compare_heads(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    size = min(len(left), len(right))
    return np.append(left[:size] == right[:size], False)
