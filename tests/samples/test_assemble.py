"""A path of turns becomes one sample.

1. Golden vectors: mask 1 exactly on sampled ids, logprob i belongs to token i, the close token as stated.
2. A trimmed stop token is left out of the path that goes on and stays in one that ends at its turn.
3. Rows are tokens - 1 in order; the child's first row is that of the token it fed at the parent's end.
4. Bad rows mask every token sampled at or after the first of them; recomputed turns are masked on demand.
5. Status, versions, counters and times are those of the kept turns.
"""

import numpy as np
import pytest

from channelkit import masked_by
from samples.builders import LINEAR, OPTIONS, TREE, Story, rows_of
from turnkeeper.choices import OnRecomputed
from turnkeeper.core import FinishReason, VersionSpan
from turnkeeper.errors import AssemblyError
from turnkeeper.samples import CollectOptions, Sample, SampleStatus

U, A, B, C, E, M = 1, 11, 12, 13, 8, 9


def _one(story: Story, **fields: object) -> Sample:
    (sample,) = story.collect(**fields).samples
    return sample


def _three_turns() -> Story:
    story = Story()
    first = story.say([U, U, U], [A, A, E])
    second = story.say([M, U], [B, E], after=first, trim=1)
    story.say([U], [C, C, E], after=second)
    return story


def test_three_turns_give_the_golden_vectors() -> None:
    sample = _one(_three_turns())
    assert sample.tokens.tolist() == [U, U, U, A, A, M, U, B, E, U, C, C, E]
    assert sample.response_length == 10
    assert sample.loss_mask.tolist() == [1, 1, 0, 0, 1, 1, 0, 1, 1, 1]
    assert sample.rollout_log_probs.tolist() == [-1.1, -1.1, 0, 0, -1.2, -0.8, 0, -1.3, -1.3, -0.8]
    assert sample.response == "<11 11><9 1><12 8><1><13 13 8>"
    assert sample.status == SampleStatus.COMPLETED
    assert sample.tokens.dtype == np.int64


def test_a_stop_token_that_is_the_next_marker_stays_and_trains() -> None:
    story = Story()
    first = story.say([U], [A, E])
    story.say([U], [B, E], after=first)
    sample = _one(story)
    assert sample.tokens.tolist() == [U, A, E, U, B, E]
    assert sample.loss_mask.tolist() == [1, 1, 0, 1, 1]


def test_a_trimmed_token_stays_in_a_path_that_ends_at_its_turn() -> None:
    story = Story(TREE)
    first = story.say([U], [A, E])
    story.say([M], [B], after=first, trim=1)
    alone = Story(TREE)
    alone.say([U], [A, E])
    assert _one(story).tokens.tolist() == [U, A, M, B]
    assert _one(alone).tokens.tolist() == [U, A, E]


def test_rows_of_a_path_are_one_less_than_its_tokens_and_in_order() -> None:
    """Row 4 is that of the marker in place of the trimmed token, as the second turn computed it."""
    story = Story()
    first = story.say([U, U, U], [A, A, E], rows=rows_of([10, 11, 12, 13, 14]))
    story.say([M, U], [B, E], after=first, trim=1, rows=rows_of([25, 26, 27]))
    sample = _one(story)
    assert sample.rollout_routed_experts is not None
    assert sample.rollout_routed_experts[:, 0, 0].tolist() == [10, 11, 12, 13, 14, 25, 26, 27]
    assert len(sample.tokens) == 9


def test_whole_payloads_of_later_turns_win_where_they_are_kept() -> None:
    story = Story()
    first = story.say([U, U], [A, E], rows=rows_of([1, 1, 1]))
    story.say([U], [B], after=first, rows=rows_of([2, 2, 2, 2, 2]))
    sample = _one(story)
    assert sample.rollout_routed_experts is not None
    assert sample.rollout_routed_experts[:, 0, 0].tolist() == [2] * 5


def test_a_turn_without_rows_among_others_is_named() -> None:
    story = Story()
    first = story.say([U, U], [A, E], rows=rows_of([1, 1, 1]))
    story.say([U], [B], after=first)
    with pytest.raises(AssemblyError, match="turn 1 has no routing rows"):
        story.collect()


def _story_with_bad_row(row: int) -> Story:
    story = Story()
    first = story.say([U, U], [A, A, E], rows=rows_of(range(1, 5)), marks={"bad_rows_from": row})
    story.say([U], [B, E], after=first, rows=rows_of(range(1, 4)))
    return story


@pytest.mark.parametrize(
    ("row", "mask"),
    [(0, [0, 0, 0, 0, 0, 0]), (1, [0, 0, 0, 0, 0, 0]), (2, [1, 0, 0, 0, 0, 0]), (3, [1, 1, 0, 0, 0, 0])],
    ids=["prompt", "samples-the-first", "samples-the-second", "samples-the-last"],
)
def test_tokens_sampled_at_or_after_a_bad_row_carry_no_loss(row: int, mask: list[int]) -> None:
    sample = _one(_story_with_bad_row(row))
    assert sample.loss_mask.tolist() == mask
    assert sample.rollout_log_probs.tolist() == [-1.1, -1.1, -0.8, 0.0, -1.2, -0.8]


def test_masked_runs_say_their_reason() -> None:
    masked = _one(_story_with_bad_row(2)).metadata["turnkeeper"]["masked"]
    assert masked == [{"reason": "bad_rows", "start": 1, "end": 3}, {"reason": "bad_rows", "start": 4, "end": 6}]


def test_the_earlier_of_two_bad_rows_counts() -> None:
    story = Story()
    first = story.say([U, U], [A, A], rows=rows_of([1, 2, 3]), marks={"bad_rows_from": 2})
    story.say([U], [B], after=first, rows=rows_of([4, 5]), marks={"bad_rows_from": 4})
    assert _one(story).loss_mask.tolist() == [1, 0, 0, 0]


def test_a_whole_payload_replaces_the_faults_of_the_rows_before_it() -> None:
    story = Story()
    first = story.say([U, U], [A, A], rows=rows_of([1, 2, 3]), marks={"bad_rows_from": 0})
    story.say([U], [B], after=first, rows=rows_of([1, 2, 3, 4, 5]))
    assert _one(story).loss_mask.tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize(
    ("choice", "mask"),
    [(OnRecomputed.KEEP, [1, 1, 0, 1]), (OnRecomputed.MASK, [0, 0, 0, 1])],
    ids=["keep", "mask"],
)
def test_a_recomputed_turn_is_masked_on_demand(choice: OnRecomputed, mask: list[int]) -> None:
    story = Story()
    first = story.say([U], [A, E], marks={"rows_recomputed": True})
    story.say([U], [B], after=first)
    options = CollectOptions(hooks=OPTIONS.hooks, masked_marks=masked_by(choice))
    sample = _one(story, options=options)
    assert sample.loss_mask.tolist() == mask
    if choice is OnRecomputed.MASK:
        masked = [{"reason": "rows_recomputed", "start": 0, "end": 2}]
        assert sample.metadata["turnkeeper"]["masked"] == masked


@pytest.mark.parametrize(
    ("finish", "status"),
    [
        (FinishReason.STOP, "completed"),
        (FinishReason.TOOL_CALLS, "completed"),
        (FinishReason.LENGTH, "truncated"),
        (FinishReason.CONTENT_FILTER, "pending"),
    ],
)
def test_the_status_is_how_the_last_completion_ended(finish: FinishReason, status: str) -> None:
    story = Story()
    story.say([U], [A], finish=finish)
    assert _one(story).status == status


def test_indexer_rows_are_those_of_the_last_turn() -> None:
    story = Story()
    first = story.say([U], [A], indexer_rows=np.full((1, 2, 3), 1, np.int32))
    story.say([U], [B], after=first, indexer_rows=np.full((3, 2, 3), 2, np.int32))
    sample = _one(story)
    assert sample.rollout_indexer_topk is not None
    assert sample.rollout_indexer_topk.tolist() == np.full((3, 2, 3), 2).tolist()


def test_indexer_rows_that_turns_hold_in_part_are_put_together() -> None:
    story = Story()
    first = story.say([U], [A], indexer_rows=np.full((1, 2, 3), 1, np.int32))
    second = story.say([U], [B, A], after=first, indexer_rows=np.full((3, 2, 3), 2, np.int32))
    story.say([U], [A], after=second, trim=1, indexer_rows=np.full((1, 2, 3), 3, np.int32))
    for budget, values in ((None, [1, 2, 2, 2, 3]), (6, [1, 2, 2, 2, 3]), (5, [1, 2, 2]), (4, [1, 2, 2]), (2, [1])):
        (sample,) = story.collect(max_seq_len=budget).samples
        assert sample.rollout_indexer_topk is not None
        assert sample.rollout_indexer_topk[:, 0, 0].tolist() == values
        assert sample.rollout_indexer_topk.dtype == np.int32


def test_a_last_turn_without_indexer_rows_is_named() -> None:
    story = Story()
    first = story.say([U], [A], indexer_rows=np.full((1, 2, 3), 1, np.int32))
    story.say([U], [B], after=first)
    with pytest.raises(AssemblyError, match="turn 1 has no indexer rows"):
        story.collect()


def test_counters_are_summed_over_the_turns() -> None:
    speculation = {"spec_accept_token_num": 3, "spec_draft_token_num": 5, "spec_verify_ct": 2}
    story = Story()
    first = story.say([U, U], [A, E], cached_tokens=1, meta=speculation, weight_version="7")
    second = story.say([U], [B], after=first, cached_tokens=4, meta={"spec_accept_token_num": "odd"})
    story.say([U], [C], after=second, meta={**speculation, "spec_draft_token_num": None}, weight_version="8")
    sample = _one(story)
    assert sample.prefix_cache_info.to_dict() == {"cached_tokens": 5, "total_prompt_tokens": 2 + 5 + 7}
    assert sample.spec_info.to_dict() == {
        "spec_accept_token_num": 6,
        "spec_draft_token_num": 5,
        "spec_verify_ct": 4,
        "completion_token_num": 3,
    }
    assert sample.weight_versions == ("7", "8")


def test_versions_cover_every_sampled_token() -> None:
    story = Story()
    spans = (
        VersionSpan(version="1", start=0, stop=1),
        VersionSpan(version="1", start=1, stop=2),
        VersionSpan(version="1", start=2, stop=2),
        VersionSpan(version=None, start=2, stop=3),
    )
    first = story.say([U], [A, A, E], versions=spans)
    story.say([M], [B, E], after=first, trim=1)
    assert _one(story).metadata["turnkeeper"]["versions"] == [
        {"version": "1", "start": 0, "end": 2},
        {"version": "v1", "start": 3, "end": 5},
    ]


def test_the_lifecycle_of_one_turn_is_an_object() -> None:
    story = Story()
    story.say([U], [A], meta={"e2e_latency": 0.5})
    assert _one(story).metadata["lifecycle"] == {"t0": 102.5, "t1": 103.0, "turn": 1, "req_ts": 101.0}


def test_the_lifecycle_of_several_turns_is_a_list() -> None:
    story = Story()
    first = story.say([U], [A])
    story.say([U], [B], after=first)
    assert _one(story).metadata["lifecycle"] == [
        {"t0": None, "t1": 103.0, "turn": 1, "req_ts": 101.0},
        {"t0": None, "t1": 107.0, "turn": 2, "req_ts": 105.0, "prev_t1": 103.0},
    ]


def test_a_turn_is_described_with_its_sampler_and_marks() -> None:
    story = Story(LINEAR)
    story.say([U], [A, E], marks={"pieces": 2}, cached_tokens=1)
    (turn,) = _one(story).metadata["turnkeeper"]["turns"]
    assert turn == {
        "id": 0,
        "parent": None,
        "response_id": "chat-0",
        "start": 0,
        "end": 2,
        "text": [0, 6],
        "label": "root",
        "finish_reason": "stop",
        "prompt_tokens": 1,
        "added_tokens": 1,
        "completion_tokens": 2,
        "cached_tokens": 1,
        "sampling": {},
        "why": {"cause": "first"},
        "marks": {"pieces": 2},
    }


@pytest.mark.parametrize(
    ("budget", "texts"),
    [(None, ["<11 11>", "<12 8>", "<13 13 8>"]), (8, ["<11 11>", "<12>"]), (5, ["<11 11>"]), (4, ["<11>"])],
)
def test_a_turn_says_where_its_text_stands(budget: int | None, texts: list[str]) -> None:
    sample = _one(_three_turns(), max_seq_len=budget)
    turns = sample.metadata["turnkeeper"]["turns"]
    assert [sample.response[slice(*turn["text"])] for turn in turns] == texts
    assert [turn["parent"] for turn in turns] == [None, 0, 1][: len(turns)]
    assert [turn["prompt_tokens"] for turn in turns] == [3, 7, 10][: len(turns)]
    assert [turn["added_tokens"] for turn in turns] == [3, 2, 1][: len(turns)]
