"""Pauses and weight updates, by their true effects on tokens, rows and versions.

1. abort: who runs ends with partial tokens and whole rows, who waits with neither; the engine is left idle.
2. retract: tokens and logprobs stay, the KV is computed again under the new weights, rows are overwritten.
3. in_place: who runs goes on over the KV it has; only what is computed afterwards is new.
4. In all three, new requests wait, and go when generation goes on.
5. Spans name the version that sampled each token; forcing the recorded rows reproduces each logprob.
6. The cache is flushed unless a request runs; a release of memory needs an idle engine.
"""

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from tiny.builders import MODELS, SHAPE, WEIGHTS, Bench
from tiny.oracle import naive_forward
from turnkeeper.choices import PauseMode
from turnkeeper.errors import ConfigError
from turnkeeper.tiny.model import TinyModel, TinyShape, init_weights
from turnkeeper.tiny.scheduler import FinishKind, Result, WeightStamp
from turnkeeper.tiny.scheduler.trace import build_line, replay

PROMPT = [5, 80, 466, 300, 12]


def _experts(which: int, result: Result) -> NDArray[np.int32]:
    """The rows that one checkpoint alone gives a result's tokens."""
    return naive_forward(SHAPE, WEIGHTS[which], [*PROMPT, *result.tokens.ids])[1][:-1]


def _spans(result: Result) -> list[tuple[str, int, int]]:
    return [(span.version, span.start, span.end) for span in result.spans]


def test_abort_ends_who_runs_with_partial_tokens_and_whole_rows() -> None:
    bench = Bench()
    heard = bench.ask(PROMPT)
    bench.step(3)
    bench.scheduler.pause(PauseMode.ABORT)
    result = heard.result
    assert result.finish.kind is FinishKind.ABORT
    assert len(result.tokens.ids) == len(result.tokens.logprobs) == 3
    assert result.cached_tokens == 0
    assert result.experts is not None
    np.testing.assert_array_equal(result.experts, _experts(0, result))
    assert _spans(result) == [("v1", 0, 3)]
    assert bench.scheduler.is_idle


def test_abort_ends_who_waits_with_nothing() -> None:
    bench = Bench(max_batch=1)
    bench.ask(PROMPT)
    waiting = bench.ask(PROMPT)
    bench.step(2)
    bench.scheduler.pause(PauseMode.ABORT)
    result = waiting.result
    assert result.finish.kind is FinishKind.ABORT
    assert (result.tokens.ids, result.cached_tokens, result.experts) == ((), None, None)


def test_abort_in_the_middle_of_a_prompt_claims_no_rows() -> None:
    bench = Bench(prefill_tokens=2)
    heard = bench.ask(PROMPT)
    bench.step(1)
    bench.scheduler.pause(PauseMode.ABORT)
    assert (heard.result.tokens.ids, heard.result.experts) == ((), None)


def test_retract_keeps_tokens_and_computes_their_rows_again() -> None:
    bench = Bench()
    heard = bench.ask(PROMPT, seed=1)
    bench.step(4)
    bench.scheduler.pause(PauseMode.RETRACT)
    assert (bench.scheduler.running_count, bench.scheduler.waiting_count) == (0, 1)
    bench.update()
    assert bench.scheduler.flush(), "waiting requests do not count"
    bench.scheduler.resume()
    bench.finish()
    result = heard.result
    assert result.num_retractions == 1
    assert _spans(result) == [("v1", 0, 4), ("v2", 4, 8)]
    assert result.experts is not None
    np.testing.assert_array_equal(result.experts, _experts(1, result))
    undisturbed = Bench().run(PROMPT, seed=1)
    assert result.tokens.ids[:4] == undisturbed.tokens.ids[:4]
    assert result.tokens.logprobs[:4] == undisturbed.tokens.logprobs[:4]


def test_retracted_requests_keep_their_order_before_who_waited() -> None:
    bench = Bench(max_batch=2)
    heard = [bench.ask([i, i]) for i in range(1, 5)]
    bench.step(1)
    bench.scheduler.pause(PauseMode.RETRACT)
    bench.scheduler.resume()
    bench.step(1)
    assert bench.scheduler.waiting_count == 2
    bench.finish()
    assert [h.result.num_retractions for h in heard] == [1, 1, 0, 0]


def test_a_retracted_request_can_be_aborted_while_it_waits() -> None:
    bench = Bench()
    heard = bench.ask(PROMPT)
    bench.step(2)
    bench.scheduler.pause(PauseMode.RETRACT)
    bench.scheduler.abort("r1")
    result = heard.result
    assert len(result.tokens.ids) == 2
    assert (result.cached_tokens, result.experts) == (None, None)


def test_in_place_goes_on_over_the_kv_it_has() -> None:
    bench = Bench()
    heard = bench.ask(PROMPT)
    bench.step(4)
    bench.scheduler.pause(PauseMode.IN_PLACE)
    bench.update()
    assert not bench.scheduler.flush()
    bench.scheduler.resume()
    bench.finish()
    result = heard.result
    assert result.num_retractions == 0
    assert _spans(result) == [("v1", 0, 4), ("v2", 4, 8)]
    old = len(PROMPT) + 4 - 1
    assert result.experts is not None
    np.testing.assert_array_equal(result.experts[:old], _experts(0, result)[:old])
    (epoch,) = bench.traced[0][0].epochs
    assert epoch.stamps.tolist() == [0] * old + [1] * 4


@pytest.mark.parametrize("mode", PauseMode)
def test_new_requests_wait_for_the_end_of_a_pause(mode: PauseMode) -> None:
    bench = Bench()
    bench.scheduler.pause(mode)
    heard = bench.ask(PROMPT)
    assert not bench.scheduler.has_work
    assert bench.scheduler.pause_mode is mode
    bench.scheduler.resume()
    bench.finish()
    assert heard.result.finish.kind is FinishKind.LENGTH


@pytest.mark.parametrize("mode", [None, *PauseMode])
@pytest.mark.parametrize("temperature", [0, 0.7, 1.0])
def test_forcing_the_recorded_rows_reproduces_each_logprob(mode: PauseMode | None, temperature: float) -> None:
    bench = Bench(prefill_tokens=4, max_batch=3)
    bench.run([*PROMPT[:3], 7])
    heard = [bench.ask([*PROMPT, i], temperature=temperature, max_new_tokens=12) for i in range(5)]
    bench.step(7)
    if mode is not None:
        bench.scheduler.pause(mode)
    bench.update()
    if mode is not None:
        bench.scheduler.resume()
    bench.finish()
    assert len(bench.traced) == 1 + len(heard)
    checked = 0
    for live, result, stamps in bench.traced:
        line = json.loads(json.dumps(build_line(live, result, stamps)))
        if line["epochs"]:
            found = replay(line, {0: MODELS[0], 1: MODELS[1]}).logprobs
            np.testing.assert_allclose(found, line["logprobs"], atol=1e-4)
            checked += len(found)
    assert checked == sum(len(result.tokens.ids) for _, result, _ in bench.traced)


def test_an_update_without_a_pause_changes_the_next_token() -> None:
    bench = Bench()
    heard = bench.ask(PROMPT)
    bench.step(2)
    bench.update()
    bench.finish()
    assert _spans(heard.result) == [("v1", 0, 2), ("v2", 2, 8)]


def test_a_new_label_leaves_the_weights() -> None:
    bench = Bench()
    heard = bench.ask(PROMPT, seed=4)
    bench.step(3)
    bench.scheduler.set_version("v1b")
    bench.finish()
    assert _spans(heard.result) == [("v1", 0, 3), ("v1b", 3, 8)]
    assert heard.result.tokens == Bench().run(PROMPT, seed=4).tokens


def test_equal_labels_of_two_updates_make_one_span() -> None:
    bench = Bench()
    heard = bench.ask(PROMPT)
    bench.step(3)
    bench.update("v1")
    bench.finish()
    assert _spans(heard.result) == [("v1", 0, 8)]


def test_weights_of_another_shape_are_refused_and_nothing_changes() -> None:
    bench = Bench()
    other = TinyShape(hidden_size=64, num_hidden_layers=1, moe_intermediate_size=8)
    with pytest.raises(ConfigError, match="hidden_size=64"):
        bench.scheduler.set_model(TinyModel(other, init_weights(other, 0)), WeightStamp(version="v9", source=""))
    assert bench.scheduler.version == "v1"


def test_memory_is_released_by_an_idle_engine_only() -> None:
    bench = Bench()
    bench.run(PROMPT)
    heard = bench.ask(PROMPT)
    assert not bench.scheduler.sleep()
    bench.finish()
    assert heard.result.cached_tokens == len(PROMPT) - 1
    assert bench.scheduler.sleep()
    later = bench.ask(PROMPT)
    assert not bench.scheduler.has_work
    bench.scheduler.wake()
    bench.finish()
    assert later.result.cached_tokens == 0, "the prefix cache was given back"


def test_an_abort_of_nobody_is_no_error() -> None:
    bench = Bench()
    heard = bench.ask(PROMPT)
    bench.scheduler.abort("someone else")
    bench.finish()
    assert heard.result.finish.kind is FinishKind.LENGTH
