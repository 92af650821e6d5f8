"""A turn from request to completion, through pauses and weight updates.

1. A sound reply is one completion with its versions, rows and times.
2. An abort is continued only when a weight update explains it: the gate closed at or soon after it, or another
   version; `restart` makes it again, `resume` joins the parts, `fail` is a retryable 503.
3. Any other abort is final, with no second engine call: a trainer that ends 64 turns gets all of them back within the
   grace, at once on its word.
4. Waits and attempts are bounded. An engine that takes no calls while it is paused is a closed gate.
5. What was sampled in vain is a number on the outcome or the error.
6. However a turn ends early, the engine is told to stop.
7. Deltas are held back where an abort could take them back.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from channelkit import ROWS, indexer_of_turn, rows_of_turn, take_captures
from engines.builders import make_generation, make_request
from engines.fakes import URL, Answer, FakeEngine
from turnkeeper.channels.routing import RoutingShape, RowsRequest
from turnkeeper.choices import OnAbort, OnBadRows, OnRecomputed, PauseMode
from turnkeeper.core import FinishReason, VersionSpan
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.engines import GenerateRequest, Generation
from turnkeeper.errors import (
    EngineError,
    EnginePausedError,
    EngineProtocolError,
    EngineTimeoutError,
    TurnAbortedError,
    TurnkeeperError,
)
from turnkeeper.fleet import EngineMonitor
from turnkeeper.generation import Gate, RunnerOptions, TurnOutcome, TurnRunner
from turnkeeper.testing import ManualClock, settle
from turnkeeper.testing.script import encode_payload, scripted_rows

SHAPE = RoutingShape(layers=2, topk=2, experts=8)
PROMPT = [11, 12, 13, 14, 15]
WHOLE = [*range(20, 28), 2]
"""The turn that every test generates."""


def decode(ids: TokenIds) -> str:
    return "".join(chr(int(each) + 77) for each in ids)


def parse(request: GenerateRequest, ids: TokenIds) -> dict[str, Any]:
    return {"role": "assistant", "content": f"parsed {len(ids)}"}


def reply_to(request: GenerateRequest, ids: list[int], finish: str = "stop", **fields: Any) -> Generation:
    """A sound reply with these ids, rows included where they were asked for."""
    values: dict[str, Any] = {"url": URL, "prompt_tokens": len(request.prompt_ids), "matched_stop": None}
    if ROWS in request.asked:
        start = request.asked[ROWS].payload_start
        path = [*request.prompt_ids.tolist(), *ids]
        rows = scripted_rows(path, layers=2, topk=2, experts=8, start=start, salt=fields.pop("salt", 0))
        values["routed_experts"] = encode_payload(rows).encode()
    return make_generation(len(ids), ids=freeze_ids(ids), finish_reason=finish, **(values | fields))


def say(ids: list[int], finish: str = "stop", **fields: Any) -> Answer:
    async def answer(request: GenerateRequest) -> Generation:
        return reply_to(request, ids, finish, **fields)

    return answer


def rest(request: GenerateRequest) -> list[int]:
    """What is missing of the turn behind the ids that the prompt already holds."""
    return WHOLE[len(request.prompt_ids) - len(PROMPT) :]


async def say_rest(request: GenerateRequest) -> Generation:
    return reply_to(request, rest(request))


async def hang(request: GenerateRequest) -> Generation:
    await asyncio.Event().wait()
    raise AssertionError


def fail(error: Exception) -> Answer:
    async def answer(request: GenerateRequest) -> Generation:
        raise error

    return answer


class Desk:
    """A runner with everything it needs."""

    def __init__(self, *answers: Answer, mode: PauseMode = PauseMode.ABORT, **options: Any) -> None:
        self.engine = FakeEngine(*answers)
        self.clock = ManualClock()
        self.gate = Gate(self.clock)
        self.monitor = EngineMonitor(self.engine, self.gate, self.clock)
        self.options = RunnerOptions(
            **take_captures({"pause_mode": mode, "shape": SHAPE, "stop_token_ids": (2,), **options})
        )
        self.runner = TurnRunner(
            self.engine, self.gate, self.monitor, self.clock, self.options, parse=parse, decode=decode
        )

    def start(self, **fields: Any) -> asyncio.Task[TurnOutcome]:
        on_ids = fields.pop("on_ids", None)
        return asyncio.create_task(self.runner.run(make_request(**fields), on_ids=on_ids))

    def pausing(self, ids: list[int], **fields: Any) -> Answer:
        """An answer that the trainer's pause aborts."""

        async def answer(request: GenerateRequest) -> Generation:
            self.gate.pause(PauseMode.ABORT)
            return reply_to(request, ids, "abort", **fields)

        return answer

    async def reopen(self, version: str | None = None) -> None:
        """Let turns go on once they wait at the gate, under another version where one is given."""
        await self.clock.wait_for_sleepers(1)
        self.engine.version = version or self.engine.version
        self.gate.resume()


async def test_a_sound_reply_is_a_completion() -> None:
    desk = Desk(say(WHOLE))
    outcome = await desk.runner.run(make_request(rows=RowsRequest(start_len=4, held_rows=4)))
    completion = outcome.completion
    assert completion.ids.tolist() == WHOLE
    assert completion.finish_reason is FinishReason.STOP
    assert completion.versions == (VersionSpan(version="1", start=0, stop=9),)
    rows = scripted_rows(PROMPT + WHOLE, layers=2, topk=2, experts=8)
    assert np.array_equal(rows_of_turn(completion).experts_RLK, rows[4:])
    assert (completion.started_at, completion.marks, outcome.attempts, outcome.aborted_tokens) == (1.7e9, {}, 1, 0)


# Restart


async def test_restart_makes_an_aborted_turn_again_and_keeps_nothing_of_the_first() -> None:
    desk = Desk(mode=PauseMode.ABORT)
    desk.engine.answers = [desk.pausing([20, 21, 22]), say(WHOLE, weight_version="2")]
    turn = desk.start(rows=RowsRequest(start_len=0, held_rows=0))
    await desk.reopen("2")
    outcome = await turn
    assert outcome.completion.ids.tolist() == WHOLE
    assert outcome.completion.versions == (VersionSpan(version="2", start=0, stop=9),)
    assert (outcome.attempts, outcome.aborted_tokens) == (2, 3)
    assert outcome.completion.marks == {"attempts": 2, "pieces": 1}
    first, second = desk.engine.requests
    assert (first.rid, second.rid) == ("rid-1", "rid-1-2")
    assert second.prompt_ids.tolist() == PROMPT


async def test_an_abort_before_the_first_token_is_made_again() -> None:
    desk = Desk()
    desk.engine.answers = [
        desk.pausing([], prompt_tokens=None, completion_tokens=0, routed_experts=None),
        say(WHOLE),
    ]
    turn = desk.start(rows=RowsRequest(start_len=0, held_rows=0))
    await desk.reopen()
    outcome = await turn
    assert (outcome.completion.ids.tolist(), outcome.aborted_tokens) == (WHOLE, 0)


async def test_a_pause_that_follows_within_the_grace_explains_the_abort() -> None:
    desk = Desk(say([20], "abort"), say(WHOLE))
    turn = desk.start()
    await desk.clock.wait_for_sleepers(1)
    await desk.clock.advance(1.9)
    desk.gate.pause(PauseMode.ABORT)
    await settle()
    desk.gate.resume()
    assert (await turn).attempts == 2


async def test_another_version_than_at_the_start_explains_the_abort() -> None:
    desk = Desk(say([20], "abort", weight_version="2"), say(WHOLE, weight_version="2"))
    outcome = await desk.start()
    assert outcome.attempts == 2
    assert desk.clock.sleepers == 0, "nothing is waited for"


async def test_another_version_seen_by_the_end_of_the_grace_explains_it_too() -> None:
    desk = Desk(say([], "abort", weight_version=None), say(WHOLE))
    turn = desk.start()
    await desk.clock.wait_for_sleepers(1)
    desk.engine.version = "2"
    await desk.monitor.poll()
    await desk.clock.advance(2.0)
    assert (await turn).attempts == 2


async def test_a_paused_engine_that_answers_503_is_waited_for() -> None:
    desk = Desk()

    async def answer(request: GenerateRequest) -> Generation:
        desk.gate.observe(URL, is_paused=True)
        raise EngineError("paused", engine_status=503)

    desk.engine.answers = [answer, say(WHOLE)]
    turn = desk.start()
    await desk.clock.wait_for_sleepers(1)
    desk.gate.observe(URL, is_paused=False)
    assert (await turn).attempts == 2


REFUSED = EngineError("Generation is paused", engine_status=503, engine_paused=True, url=URL)


@pytest.mark.parametrize("on_abort", OnAbort)
async def test_an_engine_that_refuses_calls_while_it_is_paused_is_a_closed_gate(on_abort: OnAbort) -> None:
    desk = Desk(on_abort=on_abort, max_attempts=1)

    async def refuse(request: GenerateRequest) -> Generation:
        desk.gate.pause(PauseMode.ABORT)
        raise REFUSED

    desk.engine.answers = [refuse, say(WHOLE)]
    turn = desk.start()
    await desk.clock.wait_for_sleepers(1)
    assert not turn.done()
    desk.gate.resume()
    assert ((await turn).attempts, (await turn).aborted_tokens) == (1, 0)
    assert [request.rid for request in desk.engine.requests] == ["rid-1", "rid-1"]


async def test_a_refusal_whose_pause_is_over_or_out_of_sight_is_asked_again() -> None:
    desk = Desk(*[fail(REFUSED)] * 5, say(WHOLE), max_attempts=1)
    turn = desk.start()
    for _ in range(5):
        await desk.clock.wait_for_sleepers(1)
        await desk.clock.advance(0.5)
    assert (await turn).attempts == 1


async def test_an_engine_that_refuses_for_longer_than_a_turn_waits_is_a_503() -> None:
    desk = Desk(fail(REFUSED), gate_timeout_s=2.0)
    turn = desk.start()
    for _ in range(4):
        await desk.clock.wait_for_sleepers(1)
        await desk.clock.advance(0.5)
    with pytest.raises(EnginePausedError, match="longer than the 2 s") as caught:
        await turn
    assert caught.value.is_retryable
    assert len(desk.engine.requests) == 5


async def test_a_503_that_nothing_explains_is_that_error() -> None:
    desk = Desk(fail(EngineError("busy", engine_status=503)))
    turn = desk.start()
    await desk.clock.wait_for_sleepers(1)
    await desk.clock.advance(2.0)
    with pytest.raises(EngineError, match="busy") as caught:
        await turn
    assert type(caught.value) is EngineError
    assert len(desk.engine.requests) == 1


# Resume


@pytest.mark.parametrize(
    ("mode", "requested", "second"),
    [
        pytest.param(
            PauseMode.ABORT,
            RowsRequest(start_len=4, held_rows=4),
            RowsRequest(start_len=8, held_rows=8),
            id="increment",
        ),
        pytest.param(
            PauseMode.RETRACT,
            RowsRequest(start_len=None, held_rows=4),
            RowsRequest(start_len=None, held_rows=8),
            id="retract: no start",
        ),
    ],
)
async def test_resume_goes_on_behind_the_partial_ids(
    mode: PauseMode, requested: RowsRequest, second: RowsRequest
) -> None:
    desk = Desk(mode=mode, on_abort=OnAbort.RESUME)
    desk.engine.answers = [desk.pausing(WHOLE[:4]), say_rest]
    turn = desk.start(rows=requested, sampling={"max_tokens": 9})
    await desk.reopen()
    outcome = await turn
    completion = outcome.completion
    assert completion.ids.tolist() == WHOLE
    assert len(completion.logprobs) == 9
    assert completion.message["content"] == "parsed 9"
    rows = scripted_rows(PROMPT + WHOLE, layers=2, topk=2, experts=8)
    assert np.array_equal(rows_of_turn(completion).experts_RLK, rows[4:])
    assert (outcome.attempts, outcome.aborted_tokens, completion.marks["pieces"]) == (2, 0, 2)
    again = desk.engine.requests[1]
    assert again.prompt_ids.tolist() == PROMPT + WHOLE[:4]
    assert (again.asked[ROWS], again.sampling["max_tokens"]) == (second, 5)
    assert (outcome.generation.prompt_tokens, outcome.generation.completion_tokens) == (5, 9)


async def test_resume_keeps_decode_time_rows_and_counts_those_that_changed() -> None:
    desk = Desk(mode=PauseMode.RETRACT, on_abort=OnAbort.RESUME)

    async def other_weights(request: GenerateRequest) -> Generation:
        return reply_to(request, rest(request), salt=1)

    desk.engine.answers = [desk.pausing(WHOLE[:4]), other_weights]
    turn = desk.start(rows=RowsRequest(start_len=None, held_rows=0))
    await desk.reopen("2")
    completion = (await turn).completion
    old, new = (scripted_rows(PROMPT + WHOLE, layers=2, topk=2, experts=8, salt=salt) for salt in (0, 1))
    assert rows_of_turn(completion) is not None
    assert np.array_equal(rows_of_turn(completion).experts_RLK, np.concatenate([old[:8], new[8:]]))
    assert completion.marks["rows_changed"] == 8


async def test_each_part_keeps_its_own_version() -> None:
    desk = Desk(on_abort=OnAbort.RESUME)
    desk.engine.answers = [desk.pausing(WHOLE[:4]), say(WHOLE[4:], weight_version="2")]
    turn = desk.start()
    await desk.reopen("2")
    assert [(s.version, s.start, s.stop) for s in (await turn).completion.versions] == [("1", 0, 4), ("2", 4, 9)]


async def test_an_aborted_reply_that_already_bears_the_new_label_has_no_known_version() -> None:
    desk = Desk(
        say(WHOLE[:4], "abort", weight_version="2"), say(WHOLE[4:], weight_version="2"), on_abort=OnAbort.RESUME
    )
    assert [span.version for span in (await desk.start()).completion.versions] == [None, "2"]


async def test_a_second_abort_before_any_token_keeps_what_is_held() -> None:
    desk = Desk(on_abort=OnAbort.RESUME)
    desk.engine.answers = [
        desk.pausing(WHOLE[:4]),
        say([], "abort", prompt_tokens=None, weight_version="2", routed_experts=None),
        say_rest,
    ]
    turn = desk.start(rows=RowsRequest(start_len=0, held_rows=0))
    await desk.reopen()
    outcome = await turn
    assert (outcome.completion.ids.tolist(), outcome.attempts) == (WHOLE, 3)
    assert desk.engine.requests[1].asked == desk.engine.requests[2].asked


@pytest.mark.parametrize(
    ("fields", "partial"),
    [
        pytest.param({"sampling": {"presence_penalty": 1}}, {}, id="a penalty"),
        pytest.param({"sampling": {"response_format": {"type": "json_object"}}}, {}, id="a grammar"),
        pytest.param({"rows": RowsRequest(start_len=0, held_rows=0)}, {"routed_experts": None}, id="no rows"),
        pytest.param({"rows": RowsRequest(start_len=0, held_rows=0)}, {"routed_experts": b"AAAA"}, id="bad rows"),
    ],
)
async def test_what_cannot_be_resumed_is_made_again(fields: dict[str, Any], partial: dict[str, Any]) -> None:
    desk = Desk(on_abort=OnAbort.RESUME)
    desk.engine.answers = [desk.pausing(WHOLE[:4], **partial), say(WHOLE)]
    turn = desk.start(**fields)
    await desk.reopen()
    outcome = await turn
    assert (outcome.completion.ids.tolist(), outcome.aborted_tokens) == (WHOLE, 4)
    assert desk.engine.requests[1].prompt_ids.tolist() == PROMPT


@pytest.mark.parametrize(
    ("ids", "sampling", "finish"),
    [
        pytest.param([20, 21, 2], {}, FinishReason.STOP, id="the stop token was sampled"),
        pytest.param([20, 21, 22], {"max_tokens": 3}, FinishReason.LENGTH, id="the budget was used up"),
    ],
)
async def test_a_partial_reply_that_is_whole_needs_no_second_call(
    ids: list[int], sampling: dict[str, Any], finish: FinishReason
) -> None:
    desk = Desk(on_abort=OnAbort.RESUME)
    desk.engine.answers = [desk.pausing(ids)]
    outcome = await desk.start(sampling=sampling)
    assert (outcome.completion.ids.tolist(), outcome.completion.finish_reason) == (ids, finish)
    assert outcome.completion.message["content"] == "parsed 3"
    assert len(desk.engine.requests) == 1


async def test_a_stop_string_across_the_cut_ends_the_turn_and_counts_what_lies_behind() -> None:
    desk = Desk(on_abort=OnAbort.RESUME)
    desk.engine.answers = [desk.pausing(WHOLE[:4]), say_rest]
    turn = desk.start(sampling={"stop": decode(freeze_ids(WHOLE[3:6]))})
    await desk.reopen()
    outcome = await turn
    assert (outcome.completion.ids.tolist(), outcome.aborted_tokens) == (WHOLE[:6], 3)


# Fail, and the end of attempts


async def test_fail_is_a_503_to_be_sent_again() -> None:
    desk = Desk(on_abort=OnAbort.FAIL)
    desk.engine.answers = [desk.pausing([20, 21])]
    with pytest.raises(EnginePausedError, match="after 2 sampled tokens") as caught:
        await desk.start()
    assert (caught.value.http_status, caught.value.retry_after_s, caught.value.is_retryable) == (503, 5, True)
    assert caught.value.facts["aborted_tokens"] == 2


@pytest.mark.parametrize("on_abort", [OnAbort.RESTART, OnAbort.RESUME])
async def test_an_engine_that_always_aborts_is_given_up(on_abort: OnAbort) -> None:
    desk = Desk(on_abort=on_abort, max_attempts=3)
    versions = iter("23456789")

    async def relabelled(request: GenerateRequest) -> Generation:
        return reply_to(request, rest(request)[:1], "abort", weight_version=next(versions))

    desk.engine.answers = [relabelled]
    with pytest.raises(EnginePausedError, match="3 times") as caught:
        await desk.start()
    assert len(desk.engine.requests) == 3
    assert caught.value.facts["aborted_tokens"] == 3


async def test_a_gate_that_stays_closed_is_a_503_without_an_engine_call() -> None:
    desk = Desk(say(WHOLE), gate_timeout_s=600.0)
    desk.gate.pause(PauseMode.RETRACT)
    turn = desk.start()
    await desk.clock.wait_for_sleepers(1)
    await desk.clock.advance(600.0)
    with pytest.raises(EnginePausedError):
        await turn
    assert not desk.engine.requests


# Aborts that no weight update explains


async def test_any_other_abort_is_final() -> None:
    desk = Desk(say([20, 21], "abort"))
    turn = desk.start()
    await desk.clock.wait_for_sleepers(1)
    await desk.clock.advance(1.9)
    assert not turn.done()
    await desk.clock.advance(0.1)
    with pytest.raises(TurnAbortedError, match="no weight update") as caught:
        await turn
    assert (caught.value.http_status, caught.value.is_retryable, caught.value.retry_after_s) == (503, False, None)
    assert caught.value.facts["aborted_tokens"] == 2


@pytest.mark.parametrize("on_abort", OnAbort)
async def test_a_trainer_that_aborts_64_turns_gets_them_all_back_within_the_grace(on_abort: OnAbort) -> None:
    release = asyncio.Event()

    async def aborted(request: GenerateRequest) -> Generation:
        await release.wait()
        return reply_to(request, [20], "abort")

    desk = Desk(aborted, on_abort=on_abort)
    turns = [desk.start(rid=f"rid-{number}") for number in range(64)]
    await settle()
    assert len(desk.engine.requests) == 64
    release.set()
    await desk.clock.wait_for_sleepers(64)
    await desk.clock.advance(2.0)
    results = await asyncio.gather(*turns, return_exceptions=True)
    assert {type(result) for result in results} == {TurnAbortedError}
    assert len(desk.engine.requests) == 64, "no second engine call"


async def test_the_trainers_word_ends_all_turns_at_once() -> None:
    paused = Desk(say(WHOLE))
    paused.gate.pause(PauseMode.RETRACT)
    waiting = paused.start()
    await paused.clock.wait_for_sleepers(1)
    paused.gate.abort_turns()

    running_desk = Desk(hang)
    running = running_desk.start()
    await settle()
    running_desk.gate.abort_turns()

    grace_desk = Desk(say([20], "abort"))
    in_grace = grace_desk.start()
    await grace_desk.clock.wait_for_sleepers(1)
    grace_desk.gate.abort_turns()

    for turn in (waiting, running, in_grace):
        with pytest.raises(TurnAbortedError):
            await turn
    await running_desk.runner.close()
    assert running_desk.engine.aborted == ["rid-1"]
    assert (len(paused.engine.requests), len(grace_desk.engine.requests)) == (0, 1)


# What ends a turn early


async def test_a_turn_that_is_cancelled_tells_the_engine_the_attempts_own_rid() -> None:
    desk = Desk()
    desk.engine.answers = [desk.pausing([20]), hang]
    turn = desk.start()
    await desk.reopen()
    await settle()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await desk.runner.close()
    assert desk.engine.aborted == ["rid-1-2"]


async def test_a_turn_that_timed_out_tells_the_engine() -> None:
    desk = Desk(fail(EngineTimeoutError("slow")))
    with pytest.raises(EngineTimeoutError):
        await desk.start()
    await desk.runner.close()
    assert desk.engine.aborted == ["rid-1"]


@pytest.mark.parametrize(
    ("second", "options", "sampled"),
    [
        pytest.param(say([20, 21], completion_tokens=3), {}, 2, id="lengths disagree"),
        pytest.param(fail(EngineError("reset")), {}, 0, id="a reset"),
        pytest.param(say(WHOLE, routed_experts=None), {}, 9, id="no rows"),
        pytest.param(
            say(WHOLE, num_retractions=1, weight_version="3"), {"on_recomputed": OnRecomputed.FAIL}, 9, id="recomputed"
        ),
    ],
)
async def test_errors_say_what_was_sampled_in_vain(second: Answer, options: dict[str, Any], sampled: int) -> None:
    desk = Desk(mode=PauseMode.RETRACT, **options)
    desk.engine.answers = [desk.pausing([20, 21, 22]), second]
    turn = desk.start(rows=RowsRequest(start_len=0, held_rows=0))
    await desk.reopen()
    with pytest.raises(TurnkeeperError) as caught:
        await turn
    assert (caught.value.facts["sampled_tokens"], caught.value.facts["aborted_tokens"]) == (sampled, 3)


# Versions, rows, marks


@pytest.mark.parametrize(
    ("mode", "at_start", "fields", "expected"),
    [
        (PauseMode.ABORT, "1", {}, "1"),
        (PauseMode.ABORT, None, {}, "1"),
        (PauseMode.RETRACT, "1", {}, "1"),
        (PauseMode.RETRACT, "0", {}, None),
        (PauseMode.RETRACT, None, {}, None),
        (PauseMode.IN_PLACE, "1", {"num_retractions": 1}, None),
    ],
)
async def test_one_label_covers_a_turn_only_where_that_is_certain(
    mode: PauseMode, at_start: str | None, fields: dict[str, Any], expected: str | None
) -> None:
    desk = Desk(say(WHOLE, **fields), mode=mode)
    desk.engine.version = at_start
    assert [span.version for span in (await desk.start()).completion.versions] == [expected]


async def test_a_pause_while_the_turn_ran_leaves_its_version_unknown() -> None:
    desk = Desk(mode=PauseMode.IN_PLACE)

    async def paused_between(request: GenerateRequest) -> Generation:
        desk.gate.pause(PauseMode.IN_PLACE)
        desk.gate.resume()
        return reply_to(request, WHOLE)

    desk.engine.answers = [paused_between, say(WHOLE)]
    assert [span.version for span in (await desk.start()).completion.versions] == [None]
    assert [span.version for span in (await desk.start()).completion.versions] == ["1"], "the next turn knows again"


async def test_a_retraction_under_several_versions_is_marked_where_rows_are_kept() -> None:
    spans = (VersionSpan(version="1", start=0, stop=4), VersionSpan(version="2", start=4, stop=9))
    fields = {"num_retractions": 1, "spans": spans}
    desk = Desk(say(WHOLE, **fields), mode=PauseMode.RETRACT)
    with_rows = (await desk.start(rows=RowsRequest(start_len=None, held_rows=0))).completion
    assert with_rows.marks == {"rows_recomputed": True, "num_retractions": 1}
    assert (await desk.start()).completion.marks == {"num_retractions": 1}
    quiet = Desk(say(WHOLE, num_retractions=1, spans=(*spans[:1], VersionSpan(version="1", start=4, stop=9))))
    assert "rows_recomputed" not in (await quiet.start(rows=RowsRequest(start_len=0, held_rows=0))).completion.marks


async def test_the_salt_is_of_the_weights_at_the_call() -> None:
    desk = Desk(say(WHOLE), mode=PauseMode.IN_PLACE, cache_salt_by_version=True)
    desk.gate.pause(PauseMode.IN_PLACE)
    turn = desk.start()
    await desk.reopen("2")
    await turn
    assert desk.engine.requests[0].cache_salt == f"{'5e' * 16}:2"


@pytest.mark.parametrize(("first", "second", "spelled"), [("1", "2", "1+2"), ("2", "1", "2+1"), ("2", "2", "2")])
async def test_a_salt_tells_apart_which_engine_has_which_weights(first: str, second: str, spelled: str) -> None:
    desk = Desk(say(WHOLE), cache_salt_by_version=True)
    desk.monitor.note_version("http://b", second)
    desk.monitor.note_version("http://a", first)
    await desk.start()
    assert desk.engine.requests[0].cache_salt == f"{'5e' * 16}:{spelled}"


async def test_a_salt_that_is_out_of_date_does_not_vouch_for_the_prefix() -> None:
    reply = say(WHOLE, weight_version="2", cached_tokens=3, spans=(VersionSpan(version="2", start=0, stop=9),))
    desk = Desk(reply, mode=PauseMode.IN_PLACE, cache_salt_by_version=True)
    marks = [(await desk.start()).completion.marks for _ in range(2)]
    assert marks == [{"prefix_may_be_older": True}, {}]
    assert [request.cache_salt for request in desk.engine.requests] == [f"{'5e' * 16}:{label}" for label in "12"]


@pytest.mark.parametrize(
    ("fields", "may_be_older"),
    [({"cached_tokens": 3}, True), ({}, False), ({"is_cache_counted": False}, True)],
    ids=["reused", "not reused", "not counted"],
)
async def test_a_prefix_that_an_updated_engine_may_have_kept_is_marked(
    fields: dict[str, Any], may_be_older: bool
) -> None:
    desk = Desk(say(WHOLE), mode=PauseMode.IN_PLACE)
    await desk.start()
    desk.gate.pause(PauseMode.IN_PLACE)
    desk.engine.version = "2"
    desk.gate.resume()
    desk.engine.answers = [say(WHOLE, weight_version="2", **fields)]
    assert ("prefix_may_be_older" in (await desk.start()).completion.marks) is may_be_older


def spoil(row: int) -> Callable[[GenerateRequest], Any]:
    async def answer(request: GenerateRequest) -> Generation:
        rows = scripted_rows(PROMPT + WHOLE, layers=2, topk=2, experts=8)
        rows[row, 0, 0] = -1
        return reply_to(request, WHOLE, routed_experts=encode_payload(rows).encode())

    return answer


async def test_runs_of_equal_rows_are_marked_and_kept() -> None:
    ids = list(range(1, 60))

    async def repeat(request: GenerateRequest) -> Generation:
        rows = np.tile(np.array([[[1, 2], [3, 4]]], dtype=np.int32), (len(PROMPT) + len(ids) - 1, 1, 1))
        return reply_to(request, ids, routed_experts=encode_payload(rows).encode())

    completion = (await Desk(repeat).start(rows=RowsRequest(start_len=None, held_rows=0))).completion
    assert rows_of_turn(completion) is not None
    assert completion.marks["rows_equal"] == len(rows_of_turn(completion)) - 1 == len(PROMPT) + len(ids) - 2


async def test_bad_rows_fail_the_turn_or_are_marked() -> None:
    requested = RowsRequest(start_len=0, held_rows=0)
    with pytest.raises(EngineProtocolError, match="row 7"):
        await Desk(spoil(7)).start(rows=requested)
    completion = (await Desk(spoil(7), on_bad_rows=OnBadRows.MASK).start(rows=requested)).completion
    assert completion.marks["bad_rows_from"] == 7


async def test_indexer_rows_are_decoded_and_their_absence_is_refused() -> None:
    rows = scripted_rows(PROMPT + WHOLE, layers=2, topk=2, experts=8)
    payload = encode_payload(rows).encode()
    completion = (await Desk(say(WHOLE, indexer_topk=payload, indexer_layers=2)).start(wants_indexer=True)).completion
    assert indexer_of_turn(completion) is not None
    assert np.array_equal(indexer_of_turn(completion), rows)
    with pytest.raises(EngineProtocolError, match="indexer_topk"):
        await Desk(say(WHOLE)).start(wants_indexer=True)


# Deltas


@pytest.mark.parametrize(
    ("on_abort", "fields", "streams"),
    [
        (OnAbort.RESTART, {}, False),
        (OnAbort.RESUME, {}, True),
        (OnAbort.RESUME, {"sampling": {"presence_penalty": 1}}, False),
        (OnAbort.FAIL, {}, True),
    ],
)
async def test_deltas_are_held_back_where_an_abort_could_take_them_back(
    on_abort: OnAbort, fields: dict[str, Any], streams: bool
) -> None:
    seen: list[int] = []
    desk = Desk(say(WHOLE), on_abort=on_abort)
    await desk.start(on_ids=lambda ids: seen.extend(ids.tolist()), **fields)
    assert seen == (WHOLE if streams else [])


async def test_the_deltas_of_a_resumed_turn_are_its_ids() -> None:
    seen: list[int] = []
    desk = Desk(on_abort=OnAbort.RESUME)
    desk.engine.answers = [desk.pausing(WHOLE[:4]), say_rest]
    turn = desk.start(on_ids=lambda ids: seen.extend(ids.tolist()))
    await desk.reopen()
    await turn
    assert seen == WHOLE


async def test_a_turn_whose_deltas_are_out_and_that_cannot_be_resumed_fails() -> None:
    desk = Desk(on_abort=OnAbort.RESUME)
    desk.engine.answers = [desk.pausing(WHOLE[:4], routed_experts=None), say(WHOLE)]
    with pytest.raises(EnginePausedError):
        await desk.start(rows=RowsRequest(start_len=0, held_rows=0), on_ids=lambda ids: None)
    assert len(desk.engine.requests) == 1
