"""Whether a reply is sound enough to be recorded.

1. Counts that disagree, logprobs that no probability has, odd endings: refused, both numbers named, tokens counted.
2. An aborted reply may lack counts, never contradict them.
3. Versions: spans as they come, gaps unknown; one version covers a turn only where that is certain.
4. A stop token that is missing from the ids is marked only where that is certain.
"""

import numpy as np
import pytest

from engines.builders import make_generation, make_request
from turnkeeper.channels.routing import RowsRequest
from turnkeeper.core import FinishReason, VersionSpan
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines import build_completion, check_generation, choose_versions
from turnkeeper.engines.check import is_stop_token_missing
from turnkeeper.errors import EngineProtocolError


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            {"logprobs": np.full(11, -1.0), "count": 10}, "10 token ids but 11 logprobs", id="10 ids 11 logprobs"
        ),
        pytest.param(
            {"logprobs": np.full(10, -1.0), "count": 11}, "11 token ids but 10 logprobs", id="11 ids 10 logprobs"
        ),
        pytest.param({"completion_tokens": 10, "count": 11}, "completion_tokens is 10 but 11", id="count too low"),
        pytest.param({"completion_tokens": None}, "completion_tokens is missing", id="no count"),
        pytest.param({"prompt_tokens": 7}, "5 prompt ids were sent but prompt_tokens is 7", id="prompt rendered again"),
        pytest.param({"logprobs": np.array([-1.0, np.nan])}, "logprob of sampled token 1 of 2 is nan", id="nan"),
        pytest.param({"logprobs": np.array([-np.inf, -1.0])}, "sampled token 0 of 2 is -inf", id="minus infinity"),
        pytest.param(
            {"logprobs": np.array([-1.0, 0.01])}, "token 1 of 2 is 0.01, and a probability is not above 1", id="above 0"
        ),
        pytest.param({"finish_reason": "weird"}, "'weird', expected one of stop, length", id="unknown ending"),
        pytest.param({"count": 0}, "0 token ids", id="nothing sampled"),
        pytest.param({"spans": (VersionSpan(version="1", start=0, stop=3),)}, "ends at 3 but 2", id="span too long"),
    ],
)
def test_a_reply_that_contradicts_itself_is_refused(change: dict[str, object], said: str) -> None:
    fields = {"count": 2, **change}
    generation = make_generation(**fields)  # type: ignore[arg-type]
    with pytest.raises(EngineProtocolError) as caught:
        check_generation(generation, make_request())
    assert said in str(caught.value)
    assert "http://engine" in str(caught.value)
    assert caught.value.facts["sampled_tokens"] == len(generation.ids)


def test_a_sound_reply_passes() -> None:
    check_generation(make_generation(), make_request())


def test_a_reply_without_a_prompt_count_passes_and_is_marked_but_where_rows_are_asked_for() -> None:
    """Rows lie where the prompt lies, so an unknown prompt is no prompt for them."""
    uncounted = make_generation(prompt_tokens=None)
    check_generation(uncounted, make_request())
    marks = build_completion(uncounted, prompt_tokens=5, versions=(VersionSpan(version="1", start=0, stop=4),)).marks
    assert marks == {"prompt_unverified": True}
    with pytest.raises(EngineProtocolError, match="prompt_tokens is nothing"):
        check_generation(uncounted, make_request(rows=RowsRequest(start_len=None, held_rows=0)))


@pytest.mark.parametrize("rounding", [0.0, 1e-7, 1e-3])
def test_a_logprob_that_rounding_lifts_above_zero_passes(rounding: float) -> None:
    check_generation(make_generation(2, logprobs=np.array([-1.0, rounding])), make_request())


def test_a_dropped_prompt_names_the_router_that_drops_it() -> None:
    with pytest.raises(EngineProtocolError, match="sglang-router"):
        check_generation(make_generation(prompt_tokens=30), make_request())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"count": 0, "prompt_tokens": None, "completion_tokens": 0}, id="waiting"),
        pytest.param({"count": 0, "prompt_tokens": None, "completion_tokens": None}, id="waiting, nothing counted"),
        pytest.param({"count": 2}, id="running"),
    ],
)
def test_an_aborted_reply_may_lack_counts(change: dict[str, object]) -> None:
    check_generation(make_generation(finish_reason="abort", **change), make_request())  # type: ignore[arg-type]


def test_an_aborted_reply_may_not_contradict_itself() -> None:
    with pytest.raises(EngineProtocolError, match="completion_tokens is 3 but 2"):
        check_generation(make_generation(2, finish_reason="abort", completion_tokens=3), make_request())


def spans(*entries: tuple[str | None, int, int]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(version=version, start=start, stop=stop) for version, start, stop in entries)


@pytest.mark.parametrize(
    ("fields", "abort_mode", "started", "disturbed", "expected"),
    [
        pytest.param({}, True, None, True, spans(("1", 0, 4)), id="abort mode: one version"),
        pytest.param({}, False, "1", False, spans(("1", 0, 4)), id="same version, quiet"),
        pytest.param({}, False, "0", False, spans((None, 0, 4)), id="another version at the start"),
        pytest.param({}, False, None, False, spans((None, 0, 4)), id="start unknown"),
        pytest.param({}, False, "1", True, spans((None, 0, 4)), id="paused between"),
        pytest.param({"num_retractions": 1}, False, "1", False, spans((None, 0, 4)), id="retracted between"),
        pytest.param({"weight_version": None}, True, None, False, spans((None, 0, 4)), id="engine says nothing"),
        pytest.param(
            {"spans": spans(("1", 0, 1), ("2", 1, 4))}, True, "1", True, spans(("1", 0, 1), ("2", 1, 4)), id="spans"
        ),
        pytest.param(
            {"spans": spans(("2", 2, 3))}, False, "1", False, spans((None, 0, 2), ("2", 2, 3), (None, 3, 4)), id="gaps"
        ),
        pytest.param({"count": 0, "finish_reason": "abort"}, True, "1", False, (), id="no tokens"),
    ],
)
def test_versions_are_those_that_are_known(
    fields: dict[str, object],
    abort_mode: bool,
    started: str | None,
    disturbed: bool,
    expected: tuple[VersionSpan, ...],
) -> None:
    generation = make_generation(**fields)  # type: ignore[arg-type]
    found = choose_versions(generation, is_abort_mode=abort_mode, started_version=started, is_disturbed=disturbed)
    assert found == expected


def test_overlapping_spans_are_refused() -> None:
    generation = make_generation(spans=spans(("1", 0, 3), ("2", 2, 4)))
    with pytest.raises(EngineProtocolError, match=r"2\.\.4"):
        choose_versions(generation, is_abort_mode=True, started_version="1", is_disturbed=False)


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        pytest.param({"matched_stop": 23}, False, id="the engine's stop is the last id"),
        pytest.param({"matched_stop": 99}, True, id="the engine's stop was left out"),
        pytest.param({"matched_stop": "END"}, False, id="a stop string needs no token"),
        pytest.param({"matched_stop": None}, True, id="unnamed, last id is no stop token"),
        pytest.param({"matched_stop": None, "ids": freeze_ids([20, 2])}, False, id="unnamed, last id is one"),
        pytest.param({"matched_stop": None, "finish_reason": "length"}, False, id="length"),
        pytest.param({"matched_stop": 99, "finish_reason": "tool_calls"}, True, id="tool calls"),
    ],
)
def test_a_missing_stop_token_is_seen_where_it_is_certain(fields: dict[str, object], missing: bool) -> None:
    assert is_stop_token_missing(make_generation(**fields), {2}) is missing  # type: ignore[arg-type]


def test_a_completion_holds_what_the_reply_holds() -> None:
    generation = make_generation(2, num_retractions=1, matched_stop=7, cached_tokens=3, response_id="e-1")
    completion = build_completion(
        generation, prompt_tokens=5, versions=spans(("1", 0, 2)), marks={"pieces": 2}, started_at=1.0
    )
    assert completion.ids.tolist() == [20, 21]
    assert completion.finish_reason is FinishReason.STOP
    assert completion.marks == {"pieces": 2, "stop_token_missing": True, "num_retractions": 1}
    assert (completion.cached_tokens, completion.response_id, completion.weight_version) == (3, "e-1", "1")


@pytest.mark.parametrize(
    ("ids", "is_known"),
    [([0, 99], True), ([99], True), ([100], False), ([5, 100, 7], False), ([2**31 - 1], False), ([], True)],
)
def test_an_id_beyond_the_vocabulary_is_refused(ids: list[int], is_known: bool) -> None:
    count = len(ids)
    fields = {"ids": freeze_ids(ids), "finish_reason": "stop" if ids else "abort"}
    generation = make_generation(count, **fields)
    check_generation(generation, make_request())
    if is_known:
        check_generation(generation, make_request(), vocabulary_size=100)
        return
    with pytest.raises(EngineProtocolError, match="has 100 tokens") as caught:
        check_generation(generation, make_request(), vocabulary_size=100)
    assert caught.value.facts["sampled_tokens"] == count


@pytest.mark.parametrize(("reported", "kept"), [(0, 0), (5, 5), (6, 5), (10**30, 5)])
def test_no_more_than_the_prompt_was_cached(reported: int, kept: int) -> None:
    generation = make_generation(cached_tokens=reported)
    completion = build_completion(generation, prompt_tokens=5, versions=spans(("1", 0, 4)))
    assert completion.cached_tokens == kept
    assert completion.marks.get("cached_tokens_reported") == (None if reported == kept else reported)
