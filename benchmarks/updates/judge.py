"""What must be true of a round, and what is measured in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from benchmarks.updates.case import HOT, WIDE_SHARE, Case
from benchmarks.updates.replay import (
    NO_GAPS,
    TOLERANCE,
    Gaps,
    Weights,
    list_path_versions,
    replay_call,
    replay_sample,
)
from benchmarks.updates.rounds import PlayedSession, Round, TracedCall
from turnkeeper.choices import OnAbort, PauseMode
from turnkeeper.core import FinishReason
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.demo.evidence import EngineCall
from turnkeeper.demo.paths import (
    check_masks,
    check_rows,
    check_tokens,
    check_versions,
    find_path_calls,
    find_prefix_breaks,
    group_by_session,
)
from turnkeeper.jsontypes import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counts and differences; those of several rounds add up."""

    rounds: int = 0
    rollouts: int = 0
    turns: int = 0
    """Replies that agents received."""
    sampled: int = 0
    """Tokens, as the engines counted them."""
    paused_s: float = 0.0
    in_flight: int = 0
    """Engine calls that an update aborted, retracted, or let go on under the new weights."""
    aborted: int = 0
    """Engine calls that ended as aborted."""
    restarted: int = 0
    resumed: int = 0
    refused: int = 0
    """503s with Retry-After that agents received."""
    marked: int = 0
    """Turns marked ``rows_recomputed``."""
    prefix_breaks: int = 0
    recorded_aborts: int = 0
    """Records that are not a finished engine call, or that bear the finish reason of an abort."""
    single: Gaps = NO_GAPS
    """Paths computed under one version alone, their stored rows forced."""
    cool: Gaps = NO_GAPS
    """All engine calls of cool rounds, from their traces."""
    hot: Gaps = NO_GAPS
    """Those of hot rounds."""
    crossing: Gaps = NO_GAPS
    """Paths that an update crossed, their stored rows forced."""
    crossing_unforced: Gaps = NO_GAPS
    """The same paths, no rows forced."""

    @property
    def traced(self) -> Gaps:
        """All engine calls, from their traces."""
        return self.cool + self.hot

    def __add__(self, other: "Figures") -> "Figures":
        """Add the figures of two rounds."""
        return Figures(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


MISSED = "no turn was in flight when the weights changed"
"""The problem of a round that shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A round, judged."""

    figures: Figures
    problems: tuple[str, ...]
    """What should not be, a sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """What became of aborted engine calls."""

    restarted: int = 0
    resumed: int = 0
    problems: tuple[str, ...] = ()


def judge(played: Round, weights: Weights) -> Verdict:
    """Judge a round; heavy, since every logprob is computed again."""
    weights.learn(played.calls)
    calls = group_by_session([traced.call for traced in played.calls])
    traces = {id(traced.call): traced for traced in played.calls}
    breaks = [line for own in calls.values() for line in find_prefix_breaks(own)]
    refused = sum(session.rollout.refusals for session in played.sessions)
    answers = _match_aborted(played.case, calls, refused)
    problems = [*breaks, *answers.problems, *_check_accounted(played), *_check_prefix_marks(played)]
    single, crossing, unforced, recorded_aborts = NO_GAPS, NO_GAPS, NO_GAPS, 0
    for session in played.sessions:
        own = calls.get(session.collected.session_id, [])
        recorded_aborts += _count_recorded_aborts(session, own)
        if len(session.collected.samples) != 1:
            problems.append(f"a session gave {len(session.collected.samples)} samples, expected 1")
        for sample in session.collected.samples:
            path = find_path_calls(sample, own)
            problems += [*check_tokens(sample, path), *check_versions(sample, path), *check_masks(sample, path)]
            problems += check_rows(sample, path).problems
            if len(list_path_versions([traces[id(call)] for call in path])) == 1:
                single += replay_sample(sample, weights, uses_rows=True)
            else:
                crossing += replay_sample(sample, weights, uses_rows=True)
                unforced += replay_sample(sample, weights, uses_rows=False)
    traced = sum((replay_call(each, weights) for each in played.calls if each.line["is_plain"]), NO_GAPS)
    is_hot = played.sampling == HOT
    figures = Figures(
        rounds=1,
        rollouts=len(played.sessions),
        turns=sum(session.rollout.turns for session in played.sessions),
        sampled=sum(len(traced.call.output_ids) for traced in played.calls),
        paused_s=played.update.paused_s,
        in_flight=sum(_was_in_flight(traced) for traced in played.calls),
        aborted=sum(traced.call.is_aborted for traced in played.calls),
        restarted=answers.restarted,
        resumed=answers.resumed,
        refused=refused,
        marked=sum(_count_marks(session, "rows_recomputed") for session in played.sessions),
        prefix_breaks=len(breaks),
        recorded_aborts=recorded_aborts,
        single=single,
        cool=NO_GAPS if is_hot else traced,
        hot=traced if is_hot else NO_GAPS,
        crossing=crossing,
        crossing_unforced=unforced,
    )
    return Verdict(figures=figures, problems=(*problems, *_check_figures(played.case, figures)))


def _check_figures(case: Case, figures: Figures) -> Iterator[str]:
    if figures.recorded_aborts:
        yield f"{figures.recorded_aborts} aborted turns were recorded"
    if not figures.in_flight:
        yield MISSED
    if case.mode is not PauseMode.ABORT and figures.aborted + figures.refused:
        yield f"{figures.aborted} turns were aborted, {figures.refused} refused, in a mode that aborts none"
    for what, gaps in (("a path of one version", figures.single), ("an engine call", figures.traced)):
        for over, gap in (("the vocabulary", gaps.full), ("its mask", gaps.masked)):
            if gap.worst > TOLERANCE:
                yield f"a logprob of {what} over {over} is off by {gap.worst:.2e}, more than {TOLERANCE:.0e}"
        if gaps.masked.tokens != gaps.full.tokens:
            yield f"{gaps.full.tokens - gaps.masked.tokens} tokens of {what} have no mask"
    if figures.hot.wide < WIDE_SHARE * figures.hot.masked.tokens:
        yield f"{figures.hot.wide} of {figures.hot.masked.tokens} hot tokens were drawn from more than one id"


def _check_accounted(played: Round) -> Iterator[str]:
    """Every token that an engine sampled is trainable, masked or dropped."""
    sampled = sum(len(traced.call.output_ids) for traced in played.calls)
    kept = sum(_count_kept(session) for session in played.sessions)
    dropped = sum(
        count
        for session in played.sessions
        for count in session.collected.info["turnkeeper"]["accounting"]["dropped"].values()
    )
    if sampled != kept + dropped:
        yield f"the engines sampled {sampled} tokens, {kept} are in samples and {dropped} were dropped"


def _check_prefix_marks(played: Round) -> Iterator[str]:
    """Under in_place a turn that met several versions, in its own tokens or in the prefix it reused, is marked so."""
    if played.case.mode is not PauseMode.IN_PLACE:
        return
    finished = {traced.call.path_ids.tobytes(): traced for traced in played.calls if not traced.call.is_aborted}
    for session in played.sessions:
        turns: list[JsonObject] = session.collected.info["turnkeeper"]["turns"]
        for record, turn in zip(session.records, turns, strict=True):
            traced = finished.get(_read_path(record))
            versions = list_path_versions([traced] if traced is not None else [])
            if len(versions) > 1 and "prefix_may_be_older" not in turn.get("marks", {}):
                yield f"a turn over a prefix of versions {', '.join(sorted(versions))} is not marked"


def _count_kept(session: PlayedSession) -> int:
    """Tokens of the samples that an engine sampled, trained or masked."""
    return sum(
        int(sample.loss_mask.sum()) + sum(run["end"] - run["start"] for run in sample.metadata["turnkeeper"]["masked"])
        for sample in session.collected.samples
    )


def _count_marks(session: PlayedSession, mark: str) -> int:
    turns: list[JsonObject] = session.collected.info["turnkeeper"]["turns"]
    return sum(mark in turn.get("marks", {}) for turn in turns)


def _count_recorded_aborts(session: PlayedSession, calls: Sequence[EngineCall]) -> int:
    """Records whose ids no finished engine call ends with."""
    finished = {call.path_ids.tobytes() for call in calls if not call.is_aborted}
    count = 0
    for record in session.records:
        reason = record["response"]["choices"][0]["finish_reason"]
        count += _read_path(record) not in finished or reason not in set(FinishReason)
    return count


def _read_path(record: JsonObject) -> bytes:
    """The ids of a record's prompt and completion, as `EngineCall.path_ids` spells them."""
    entries = record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]
    return freeze_ids([*record["request"]["input_ids"], *(entry[1] for entry in entries)]).tobytes()


def _match_aborted(case: Case, calls: dict[str, list[EngineCall]], refused: int) -> _Answers:
    """What became of each aborted call: generated again, gone on from, or answered with a 503."""
    aborted = [(call, own) for own in calls.values() for call in own if call.is_aborted]
    if case.on_abort is OnAbort.FAIL:
        wrong = f"{len(aborted)} calls were aborted, the agents were told of {refused}"
        return _Answers(problems=(wrong,) if len(aborted) != refused else ())
    restarted = resumed = lost = 0
    for call, own in aborted:
        others = [other for other in own if other is not call]
        if len(call.output_ids) and _has_prompt(others, call.path_ids):
            resumed += 1
        elif _has_prompt(others, call.prompt_ids):
            restarted += 1
        else:
            lost += 1
    problems = [f"{lost} aborted calls were neither continued nor answered"] if lost else []
    if refused:
        problems.append(f"agents were refused {refused} times, where aborted turns are continued")
    if case.on_abort is OnAbort.RESTART and resumed:
        problems.append(f"{resumed} aborted turns were resumed, where they are to be generated again")
    return _Answers(restarted=restarted, resumed=resumed, problems=tuple(problems))


def _has_prompt(calls: Sequence[EngineCall], prompt_ids: TokenIds) -> bool:
    return any(np.array_equal(call.prompt_ids, prompt_ids) for call in calls)


def _was_in_flight(traced: TracedCall) -> bool:
    call = traced.call
    return call.is_aborted or call.is_retracted or len(set(call.versions)) > 1
