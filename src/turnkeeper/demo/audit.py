"""The audit of a run: each figure is counted where it arises, and the figures have to agree.

Sampled tokens are counted from the engines' traces, trainable and masked ones from the samples as a trainer decodes
them, dropped ones from the sessions' reasons, prefix breaks from the prompts that the engines received, rows against
what the engines computed. Nothing here asks the session server's own code what is right.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from turnkeeper.demo.evidence import Collected, EngineCall, Evidence
from turnkeeper.samples import Sample
from turnkeeper.tiny.engine import DEFAULT_VERSION


class Invariant(StrEnum):
    """What a run has to hold."""

    PLAYED = "played"
    """Every rollout came to its end and gave exactly one sample."""
    ACCOUNTED = "accounted"
    """Tokens sampled = trainable + masked + dropped."""
    PREFIX = "prefix"
    """Every prompt starts with all that was sampled before it in its session."""
    TOKENS = "tokens"
    """Every trainable token and its logprob are what an engine sampled, in one finished call."""
    ROWS = "rows"
    """A sample of T tokens has T-1 rows, each as the engine computed it."""
    VERSIONS = "versions"
    """Every sampled token carries the version of the weights that sampled it."""
    UPDATED = "updated"
    """The weights changed, to other weights, while turns were in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken invariant."""

    invariant: Invariant
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the table shows."""

    sessions: int
    turns: int
    sampled: int
    trainable: int
    masked: int
    dropped: int
    prefix_breaks: int
    rows_checked: int
    versions: tuple[str, ...]
    solved: int
    in_flight_at_update: int
    """Calls that the update aborted, retracted, or let go on under the new weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The audit's result."""

    figures: Figures
    violations: tuple[Violation, ...]


def audit(evidence: Evidence) -> Report:
    """Check a run."""
    calls = _group_by_session(evidence.calls)
    samples = [(one, sample) for one in evidence.sessions for sample in one.samples]
    breaks = [line for own in calls.values() for line in _find_prefix_breaks(own)]
    rows = [_check_rows(sample, _find_path_calls(sample, calls.get(one.session_id, ()))) for one, sample in samples]
    figures = Figures(
        sessions=len(evidence.sessions),
        turns=sum(outcome.turns for outcome in evidence.outcomes),
        sampled=sum(len(call.output_ids) for call in evidence.calls),
        trainable=sum(int(sample.loss_mask.sum()) for _, sample in samples),
        masked=sum(_count_masked(sample) for _, sample in samples),
        dropped=sum(_count_dropped(one) for one in evidence.sessions),
        prefix_breaks=len(breaks),
        rows_checked=sum(checked.count for checked in rows),
        versions=_list_versions(sample for _, sample in samples),
        solved=sum(outcome.is_solved for outcome in evidence.outcomes),
        in_flight_at_update=sum(map(_was_in_flight, evidence.calls)),
    )
    violations = [
        *_check_played(evidence),
        *_check_accounted(figures),
        *(Violation(invariant=Invariant.PREFIX, message=line) for line in breaks),
        *(line for one, sample in samples for line in _check_tokens(sample, one, calls.get(one.session_id, ()))),
        *(Violation(invariant=Invariant.ROWS, message=line) for checked in rows for line in checked.problems),
        *_check_updated(evidence, figures),
    ]
    return Report(figures=figures, violations=tuple(violations))


def _group_by_session(calls: Sequence[EngineCall]) -> dict[str, list[EngineCall]]:
    grouped: dict[str, list[EngineCall]] = {}
    for call in calls:
        grouped.setdefault(call.session_id, []).append(call)
    return grouped


def _starts_with(ids: np.ndarray, prefix: np.ndarray) -> bool:
    return len(ids) >= len(prefix) and np.array_equal(ids[: len(prefix)], prefix)


def _find_prefix_breaks(calls: Sequence[EngineCall]) -> Iterator[str]:
    """The agent of the demo never rewrites its history, so each finished call has to extend all finished before it."""
    longest: EngineCall | None = None
    for call in sorted((call for call in calls if not call.is_aborted), key=lambda call: len(call.prompt_ids)):
        if longest is not None and not _starts_with(call.prompt_ids, longest.path_ids):
            at = int(np.argmin(_compare_heads(call.prompt_ids, longest.path_ids)))
            yield f"session {call.session_id}: a prompt of {len(call.prompt_ids)} tokens leaves its path at token {at}"
        longest = call


def _compare_heads(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    size = min(len(left), len(right))
    return np.append(left[:size] == right[:size], False)


def _check_played(evidence: Evidence) -> Iterator[Violation]:
    expected = int(evidence.run["tasks"]) * int(evidence.run["rollouts"])
    if len(evidence.outcomes) != expected:
        message = f"{expected} rollouts were asked for, {len(evidence.outcomes)} came to their end"
        yield Violation(invariant=Invariant.PLAYED, message=message)
    played = {outcome.session_id for outcome in evidence.outcomes}
    for one in evidence.sessions:
        if len(one.samples) != 1 or one.session_id not in played:
            message = f"session {one.session_id} gave {len(one.samples)} samples, expected exactly 1"
            yield Violation(invariant=Invariant.PLAYED, message=message)
    if len(evidence.sessions) != expected:
        message = f"{expected} rollouts were asked for, {len(evidence.sessions)} sessions were collected"
        yield Violation(invariant=Invariant.PLAYED, message=message)


def _check_accounted(figures: Figures) -> Iterator[Violation]:
    kept = figures.trainable + figures.masked + figures.dropped
    if figures.sampled != kept:
        message = (
            f"the engines sampled {figures.sampled} tokens, but {figures.trainable} trainable "
            f"+ {figures.masked} masked + {figures.dropped} dropped = {kept}"
        )
        yield Violation(invariant=Invariant.ACCOUNTED, message=message)


def _find_path_calls(sample: Sample, calls: Sequence[EngineCall]) -> list[EngineCall]:
    """The finished calls whose prompt and output begin the sample, shortest first."""
    finished = (call for call in calls if not call.is_aborted and _starts_with(sample.tokens, call.path_ids))
    return sorted(finished, key=lambda call: len(call.path_ids))


def _check_tokens(sample: Sample, one: Collected, calls: Sequence[EngineCall]) -> Iterator[Violation]:
    """Trainable tokens, logprobs and versions against the calls that sampled them."""
    first = len(sample.tokens) - sample.response_length
    logprobs = np.full(sample.response_length, np.nan)
    versions = [""] * sample.response_length
    for call in _find_path_calls(sample, calls):
        start = len(call.prompt_ids) - first
        logprobs[start : start + len(call.output_ids)] = call.logprobs
        versions[start : start + len(call.output_ids)] = call.versions
    trained = sample.loss_mask == 1
    wrong = np.flatnonzero(trained & (sample.rollout_log_probs != logprobs))
    if wrong.size:
        what = f"{wrong.size} trainable tokens are not what an engine sampled"
        message = f"session {one.session_id}: {what}, the first at response position {wrong[0]}"
        yield Violation(invariant=Invariant.TOKENS, message=message)
    told = _token_versions(sample)
    differing = [at for at in np.flatnonzero(trained) if told[at] != versions[at]]
    if differing:
        at = differing[0]
        message = f"session {one.session_id}: token {at} is of weights {versions[at]!r}, its sample says {told[at]!r}"
        yield Violation(invariant=Invariant.VERSIONS, message=message)


def _token_versions(sample: Sample) -> list[str]:
    """The version of each response token as the sample tells it; "" where it tells none."""
    versions = [""] * sample.response_length
    for span in sample.metadata["turnkeeper"]["versions"]:
        versions[span["start"] : span["end"]] = [span["version"] or ""] * (span["end"] - span["start"])
    return versions


def _list_versions(samples: Iterable[Sample]) -> tuple[str, ...]:
    """The one that the engines start with comes first."""
    seen = dict.fromkeys(version for sample in samples for version in _token_versions(sample) if version)
    return tuple(sorted(seen, key=lambda version: (version != DEFAULT_VERSION, version)))


def _count_masked(sample: Sample) -> int:
    return sum(run["end"] - run["start"] for run in sample.metadata["turnkeeper"]["masked"])


def _count_dropped(one: Collected) -> int:
    return sum(one.info["turnkeeper"]["accounting"]["dropped"].values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedRows:
    count: int
    problems: tuple[str, ...]


def _check_rows(sample: Sample, path: Sequence[EngineCall]) -> _CheckedRows:
    """Each row against the call that owns it: a call owns the rows from the last token of the call before it."""
    rows, needed = sample.rollout_routed_experts, len(sample.tokens) - 1
    if rows is None or len(rows) != needed:
        found = "no rows" if rows is None else f"{len(rows)} rows"
        return _CheckedRows(count=0, problems=(f"a sample of {needed + 1} tokens has {found}, expected {needed}",))
    start, problems = 0, list[str]()
    for call in path:
        stop = len(call.path_ids) - 1
        if not np.array_equal(rows[start:stop], call.experts_RLK[start:stop]):
            problems.append(f"session {call.session_id}: rows {start}..{stop} are not those that the engine computed")
        start = stop
    if start != needed:
        problems.append(f"rows {start}..{needed} of a sample belong to no engine call")
    return _CheckedRows(count=start, problems=tuple(problems))


def _was_in_flight(call: EngineCall) -> bool:
    return call.is_aborted or call.is_retracted or len(set(call.versions)) > 1


def _check_updated(evidence: Evidence, figures: Figures) -> Iterator[Violation]:
    problems: list[str] = []
    if len(set(evidence.run["weights"])) < 2:
        problems.append("the update went to the same weights")
    if len(figures.versions) < 2:
        problems.append(f"samples know the versions {', '.join(figures.versions) or 'none'}, expected two")
    if not figures.in_flight_at_update:
        problems.append("no turn was in flight when the weights changed")
    yield from (Violation(invariant=Invariant.UPDATED, message=problem) for problem in problems)
