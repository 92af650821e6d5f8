"""The audit of a run: each figure is counted where it arises, and the figures have to agree.

Sampled tokens are counted from the engines' traces, trainable and masked ones from the samples as a trainer decodes
them, dropped ones from the sessions' reasons, prefix breaks from the prompts that the engines received, rows against
what the engines computed. Nothing here asks the session server's own code what is right.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.demo.evidence import CollectedSession, EngineCall, Evidence
from turnkeeper.demo.killing import DUE
from turnkeeper.demo.paths import (
    check_rows,
    check_tokens,
    check_versions,
    find_lost_calls,
    find_path_calls,
    find_prefix_breaks,
    group_by_session,
    read_versions,
)
from turnkeeper.samples import Sample
from turnkeeper.tiny.engine import DEFAULT_VERSION


class Invariant(StrEnum):
    """A condition that must hold for a run."""

    PLAYED = "played"
    """Every rollout came to its end and gave exactly one sample."""
    ACCOUNTED = "accounted"
    """Tokens sampled = trainable + masked + dropped, and lost where the session server was killed."""
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
    KILLED = "killed"
    """The session server was killed as often as it should be, each time while turns were in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenInvariant:
    """One broken invariant."""

    invariant: Invariant
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of the table."""

    sessions: int
    turns: int
    sampled: int
    trainable: int
    masked: int
    dropped: int
    lost: int
    """Of calls that ended with the server that had made them; their turns were played again."""
    prefix_breaks: int
    rows_checked: int
    versions: tuple[str, ...]
    solved: int
    in_flight_at_update: int
    """Calls that the update aborted, retracted, or let go on under the new weights."""
    in_flight_at_kills: tuple[int, ...]
    """For each kill of the session server the calls that were lost with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The audit's result."""

    figures: Figures
    violations: tuple[BrokenInvariant, ...]


def audit(evidence: Evidence) -> AuditReport:
    """Check a run."""
    made = group_by_session(evidence.calls)
    lost = [call for own in made.values() for call in find_lost_calls(own)]
    calls = {session_id: [call for call in own if call not in lost] for session_id, own in made.items()}
    samples = [(one, sample) for one in evidence.sessions for sample in one.samples]
    paths = [find_path_calls(sample, calls.get(one.session_id, ())) for one, sample in samples]
    breaks = [line for own in calls.values() for line in find_prefix_breaks(own)]
    rows = [check_rows(sample, path) for (_, sample), path in zip(samples, paths, strict=True)]
    figures = Figures(
        sessions=len(evidence.sessions),
        turns=sum(outcome.turns for outcome in evidence.outcomes),
        sampled=sum(len(call.output_ids) for call in evidence.calls),
        trainable=sum(int(sample.loss_mask.sum()) for _, sample in samples),
        masked=sum(_count_masked(sample) for _, sample in samples),
        dropped=sum(_count_dropped(one) for one in evidence.sessions),
        lost=sum(len(call.output_ids) for call in lost),
        prefix_breaks=len(breaks),
        rows_checked=sum(checked.count for checked in rows),
        versions=_list_versions(sample for _, sample in samples),
        solved=sum(outcome.is_solved for outcome in evidence.outcomes),
        in_flight_at_update=sum(map(_was_in_flight, evidence.calls)),
        in_flight_at_kills=tuple(sum(call.life == life for call in lost) for life in range(len(evidence.run["kills"]))),
    )
    violations = [
        *_check_played(evidence),
        *_check_accounted(figures),
        *(BrokenInvariant(invariant=Invariant.PREFIX, message=line) for line in breaks),
        *(
            line
            for (one, sample), path in zip(samples, paths, strict=True)
            for line in _check_sample(sample, one, path)
        ),
        *(BrokenInvariant(invariant=Invariant.ROWS, message=line) for checked in rows for line in checked.problems),
        *_check_updated(evidence, figures),
        *_check_killed(evidence, figures),
    ]
    return AuditReport(figures=figures, violations=tuple(violations))


def _check_played(evidence: Evidence) -> Iterator[BrokenInvariant]:
    expected = int(evidence.run["tasks"]) * int(evidence.run["rollouts"])
    if len(evidence.outcomes) != expected:
        message = f"{expected} rollouts were asked for, {len(evidence.outcomes)} came to their end"
        yield BrokenInvariant(invariant=Invariant.PLAYED, message=message)
    played = {outcome.session_id for outcome in evidence.outcomes}
    for one in evidence.sessions:
        if len(one.samples) != 1 or one.session_id not in played:
            message = f"session {one.session_id} gave {len(one.samples)} samples, expected exactly 1"
            yield BrokenInvariant(invariant=Invariant.PLAYED, message=message)
    if len(evidence.sessions) != expected:
        message = f"{expected} rollouts were asked for, {len(evidence.sessions)} sessions were collected"
        yield BrokenInvariant(invariant=Invariant.PLAYED, message=message)


def _check_accounted(figures: Figures) -> Iterator[BrokenInvariant]:
    kept = figures.trainable + figures.masked + figures.dropped + figures.lost
    if figures.sampled != kept:
        message = (
            f"the engines sampled {figures.sampled} tokens, but {figures.trainable} trainable "
            f"+ {figures.masked} masked + {figures.dropped} dropped + {figures.lost} lost = {kept}"
        )
        yield BrokenInvariant(invariant=Invariant.ACCOUNTED, message=message)


def _check_sample(sample: Sample, one: CollectedSession, path: Sequence[EngineCall]) -> Iterator[BrokenInvariant]:
    for invariant, found in (
        (Invariant.TOKENS, check_tokens(sample, path)),
        (Invariant.VERSIONS, check_versions(sample, path)),
    ):
        for line in found:
            yield BrokenInvariant(invariant=invariant, message=f"session {one.session_id}: {line}")


def _list_versions(samples: Iterable[Sample]) -> tuple[str, ...]:
    """List the weight versions; the one that the engines start with comes first."""
    seen = dict.fromkeys(version for sample in samples for version in read_versions(sample) if version)
    return tuple(sorted(seen, key=lambda version: (version != DEFAULT_VERSION, version)))


def _count_masked(sample: Sample) -> int:
    return sum(run["end"] - run["start"] for run in sample.metadata["turnkeeper"]["masked"])


def _count_dropped(one: CollectedSession) -> int:
    return sum(one.info["turnkeeper"]["accounting"]["dropped"].values())


def _was_in_flight(call: EngineCall) -> bool:
    return call.is_aborted or call.is_retracted or len(set(call.versions)) > 1


def _check_updated(evidence: Evidence, figures: Figures) -> Iterator[BrokenInvariant]:
    problems: list[str] = []
    if len(set(evidence.run["weights"])) < 2:
        problems.append("the update went to the same weights")
    if len(figures.versions) < 2:
        problems.append(f"samples know the versions {', '.join(figures.versions) or 'none'}, expected two")
    if not figures.in_flight_at_update:
        problems.append("no turn was in flight when the weights changed")
    yield from (BrokenInvariant(invariant=Invariant.UPDATED, message=problem) for problem in problems)


def _check_killed(evidence: Evidence, figures: Figures) -> Iterator[BrokenInvariant]:
    met, expected = figures.in_flight_at_kills, len(DUE) if evidence.run["is_killed"] else 0
    if len(met) != expected:
        message = f"the session server was killed {len(met)} times, expected {expected}"
        yield BrokenInvariant(invariant=Invariant.KILLED, message=message)
    for number, calls in enumerate(met):
        if not calls:
            message = f"no turn was in flight when the session server was killed for the {number + 1}. time"
            yield BrokenInvariant(invariant=Invariant.KILLED, message=message)
