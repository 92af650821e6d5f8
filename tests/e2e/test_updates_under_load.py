"""Weight updates under load on two embedded engines, in every pause mode; the long version is `make proof`.

1. Prefixes hold, no aborted turn is recorded, and every aborted turn is continued or answered as its option says,
   whether the session server is told of the update or has to see it.
2. Every path that met one version replays from its sample: its rows, forced through the model, give each logprob.
3. Every engine call replays from its KV trace, in every mode.
4. Both replays hold within masks as well, at temperature 1 and at a higher one: each sampling logprob is reproduced
   over what its token was drawn from, while over the whole vocabulary they are off.
5. The figures of paths that an update crossed are there to be read.
6. What is judged can fail: evidence that is changed on purpose is found out.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from benchmarks.updates.case import CASES, WIDE_SHARE, Case
from benchmarks.updates.judge import Figures, Verdict, judge
from benchmarks.updates.replay import TOLERANCE, Weights
from benchmarks.updates.report import ROWS, format_markdown
from benchmarks.updates.rounds import Load, PlayedSession, Round, TracedCall
from benchmarks.updates.run import run_case, running_stage
from turnkeeper.choices import OnAbort, PauseMode

PLACES = 2
"""Of each engine."""

LOAD = Load(rollouts=6, concurrency=6, tasks=1)
"""More agents than the engines have places, so that the update always finds some of them generating. `make proof` plays
longer rollouts, twenty times."""


@dataclass(slots=True)
class Run:
    """A round each in which the session server is told; where turns are aborted, another in which it is not."""

    rounds: dict[str, list[Round]]
    verdicts: dict[str, list[Verdict]]
    weights: Weights

    def sum(self, case: Case) -> Figures:
        return sum((verdict.figures for verdict in self.verdicts[case.name]), Figures())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("updates")
    done = Run(rounds={case.name: [] for case in CASES}, verdicts={case.name: [] for case in CASES}, weights=Weights())

    def note(played: Round, verdict: Verdict) -> None:
        done.rounds[played.case.name].append(played)
        done.verdicts[played.case.name].append(verdict)

    async def play_all() -> None:
        async with running_stage(folder, max_batch=PLACES) as stage:
            for case in CASES:
                repeats = 2 if case.mode is PauseMode.ABORT else 1
                await run_case(stage, case, folder, repeats=repeats, load=LOAD, weights=done.weights, on_round=note)

    asyncio.run(play_all())
    return done


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_turns_survive_an_update(run: Run, case: Case) -> None:
    figures = run.sum(case)
    assert [problem for verdict in run.verdicts[case.name] for problem in verdict.problems] == []
    assert [played.is_told for played in run.rounds[case.name]] == [True, False][: figures.rounds]
    assert (figures.rollouts, figures.prefix_breaks, figures.recorded_aborts) == (LOAD.rollouts * figures.rounds, 0, 0)
    assert figures.in_flight > 0
    answered = {OnAbort.RESTART: figures.restarted, OnAbort.FAIL: figures.refused}
    expected = answered.get(case.on_abort, figures.restarted + figures.resumed)
    assert expected == figures.aborted
    assert (figures.aborted > 0) == (case.mode is PauseMode.ABORT)
    assert (figures.resumed > 0) == (case.on_abort is OnAbort.RESUME)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logprobs_are_reproduced(run: Run, case: Case) -> None:
    figures = run.sum(case)
    assert figures.traced.full.tokens == figures.sampled
    assert figures.traced.full.worst <= TOLERANCE
    assert figures.single.full.worst <= TOLERANCE
    assert figures.single.full.paths + figures.crossing.full.paths == figures.rollouts


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logprobs_are_reproduced_within_masks(run: Run, case: Case) -> None:
    figures = run.sum(case)
    assert figures.traced.masked.tokens == figures.sampled
    assert figures.traced.masked.worst <= TOLERANCE
    assert figures.single.masked.worst <= TOLERANCE
    assert figures.cool.unmasked.mean > TOLERANCE


def test_masks_matter_more_at_a_higher_temperature(run: Run) -> None:
    totals = sum((run.sum(case) for case in CASES), Figures())
    assert totals.hot.wide > WIDE_SHARE * totals.hot.masked.tokens
    assert totals.hot.unmasked.mean > totals.cool.unmasked.mean


def test_the_report_has_the_differences_of_crossed_paths(run: Run) -> None:
    totals = {case.name: run.sum(case) for case in CASES}
    assert sum(figures.single.full.paths for figures in totals.values()) > 0
    for figures in totals.values():
        assert figures.crossing.full.paths == figures.crossing_unforced.full.paths
        assert np.isfinite([figures.crossing.full.mean, figures.crossing_unforced.full.mean]).all()
    assert sum(figures.crossing.full.mean for figures in totals.values()) > 0
    assert len(format_markdown(totals).splitlines()) == len(ROWS) + 2


def change_sample(**changes: Callable[[Any], Any]) -> Callable[[Round], Round]:
    """The first session's sample, changed."""

    def change(played: Round) -> Round:
        first, *others = played.sessions
        sample = first.collected.samples[0]
        edited = sample
        for name, edit in changes.items():
            value = edit(getattr(sample, name))
            is_tensor = name in sample.tensors
            edited = edited.replace_tensors(**{name: value}) if is_tensor else replace(edited, **{name: value})
        collected = replace(first.collected, samples=(edited,))
        return replace(played, sessions=(replace(first, collected=collected), *others))

    return change


def change_call(is_meant: Callable[[TracedCall], bool], **changes: Any) -> Callable[[Round], Round]:
    """The first engine call that is meant, changed; None leaves it out."""

    def change(played: Round) -> Round:
        meant = next(call for call in played.calls if is_meant(call))
        others = [call for call in played.calls if call is not meant]
        return replace(played, calls=(*others, replace(meant, call=replace(meant.call, **changes))))

    return change


def record_an_abort(played: Round) -> Round:
    """An aborted reply stands among the records as if it had been whole."""
    calls = {call.call.session_id: call.call for call in played.calls if call.call.is_aborted}

    def add(session: PlayedSession) -> PlayedSession:
        call = calls.get(session.collected.session_id)
        if call is None:
            return session
        pairs = [[0.0, token, None] for token in call.output_ids.tolist()]
        choice = {"finish_reason": "stop", "meta_info": {"output_token_logprobs": pairs}}
        record = {"request": {"input_ids": call.prompt_ids.tolist()}, "response": {"choices": [choice]}}
        return replace(session, records=[*session.records, record])

    return replace(played, sessions=tuple(map(add, played.sessions)))


def choose_another(rows: np.ndarray) -> np.ndarray:
    changed = rows.copy()
    changed[5, 1, 0] ^= 1
    return changed


def forget_an_id(played: Round) -> Round:
    """One mask lacks the most probable id that was not sampled."""
    wide = [(traced, at) for traced in played.calls for at, mask in enumerate(traced.call.masks or ()) if len(mask) > 1]
    traced, at = wide[0]
    masks = [list(mask) for mask in traced.line["sampling_masks"]]
    masks[at].remove(next(token for token in masks[at] if token != traced.call.output_ids[at]))
    others = [call for call in played.calls if call is not traced]
    return replace(played, calls=(*others, replace(traced, line={**traced.line, "sampling_masks": masks})))


def move(logprobs: np.ndarray) -> np.ndarray:
    return logprobs - 2 * TOLERANCE


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param(change_sample(rollout_log_probs=move), "that an engine drew from", id="a logprob"),
        pytest.param(change_sample(rollout_routed_experts=choose_another), "not those that the engine", id="a row"),
        pytest.param(change_sample(loss_mask=np.zeros_like), "were dropped", id="lost tokens"),
        pytest.param(change_call(lambda call: call.call.is_aborted, session_id="x"), "neither", id="a lost turn"),
        pytest.param(forget_an_id, "over its mask is off", id="an id of a mask"),
        pytest.param(record_an_abort, "aborted turns were recorded", id="a recorded abort"),
    ],
)
def test_a_round_that_does_not_hold_is_found_out(run: Run, change: Callable[[Round], Round], found: str) -> None:
    played = run.rounds["abort, restart"][0]
    problems = judge(change(played), run.weights).problems
    assert any(found in problem for problem in problems), problems
