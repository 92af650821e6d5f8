"""Where a sample ends.

1. A cut inside a completion truncates there; inside a prompt it falls back to the completion before; a budget below
   the first completion leaves nothing.
2. A sample ends at the first turn that ended by length, unless told to go on.
3. Whatever the budget, all lists stay parallel and a longer budget extends the result of a shorter one.
"""

import pytest

from samples.builders import LINEAR, OPTIONS, TREE, Story, rows_of, spell
from turnkeeper.choices import HistoryKind
from turnkeeper.core import FinishReason
from turnkeeper.samples import CollectOptions, EmptyReason, collect, view_session

PAST = CollectOptions(hooks=OPTIONS.hooks, past_truncation=True)


def _story(policy=LINEAR) -> Story:
    """Tokens 1 2 | 11 12 | 3 4 | 13 14 15, where 12 is followed by a trimmed 8."""
    story = Story(policy)
    first = story.say([1, 2], [11, 12, 8], rows=rows_of(range(1, 5)))
    story.say([3, 4], [13, 14, 15], after=first, trim=1, rows=rows_of(range(5, 9)))
    return story


@pytest.mark.parametrize(
    ("budget", "tokens", "status"),
    [
        (3, [1, 2, 11], "truncated"),
        (4, [1, 2, 11, 12], "completed"),
        (5, [1, 2, 11, 12], "completed"),
        (6, [1, 2, 11, 12], "completed"),
        (7, [1, 2, 11, 12, 3, 4, 13], "truncated"),
        (8, [1, 2, 11, 12, 3, 4, 13, 14], "truncated"),
        (9, [1, 2, 11, 12, 3, 4, 13, 14, 15], "completed"),
        (None, [1, 2, 11, 12, 3, 4, 13, 14, 15], "completed"),
    ],
)
def test_the_budget_cuts_inside_completions_and_before_prompts(
    budget: int | None, tokens: list[int], status: str
) -> None:
    (sample,) = _story().collect(max_seq_len=budget).samples
    assert sample.tokens.tolist() == tokens
    assert sample.status == status
    assert sample.rollout_routed_experts is not None
    assert sample.rollout_routed_experts[:, 0, 0].tolist() == list(range(1, len(tokens)))
    assert sample.response_length == len(sample.rollout_log_probs) == len(tokens) - 2


@pytest.mark.parametrize("budget", [0, 1, 2], ids=["zero", "in-the-first-prompt", "exactly-the-first-prompt"])
@pytest.mark.parametrize("policy", [LINEAR, TREE], ids=["linear", "tree"])
def test_a_budget_below_the_first_completion_leaves_nothing_and_says_so(budget: int, policy) -> None:
    collection = _story(policy).collect(max_seq_len=budget)
    assert collection.samples == ()
    assert collection.empty_reason is EmptyReason.ALL_TRUNCATED
    assert collection.ledger.dropped == {"over_max_seq_len": 6}
    assert collection.ledger.unaccounted == 0


def test_a_session_without_turns_says_so() -> None:
    collection = Story().collect()
    assert (collection.samples, collection.empty_reason) == ((), EmptyReason.NO_RECORDS)


@pytest.mark.parametrize("budget", range(3, 10))
def test_the_text_is_that_of_the_tokens_kept(budget: int) -> None:
    (sample,) = _story().collect(max_seq_len=budget).samples
    words = sample.response.replace("<", " ").replace(">", " ").split()
    assert [int(word) for word in words] == sample.tokens.tolist()[2:]


def _truncated_story(policy=LINEAR) -> Story:
    """Four turns, the second of which ended by length."""
    story = Story(policy)
    first = story.say([1], [11])
    second = story.say([2], [12, 13], after=first, finish=FinishReason.LENGTH)
    third = story.say([3], [14], after=second)
    story.say([4], [15], after=third)
    return story


@pytest.mark.parametrize("policy", [LINEAR, TREE], ids=["linear", "tree"])
def test_a_sample_ends_at_the_turn_that_ended_by_length(policy) -> None:
    collection = _truncated_story(policy).collect()
    (sample,) = collection.samples
    assert sample.tokens.tolist() == [1, 11, 2, 12, 13]
    assert sample.status == "truncated"
    assert collection.ledger.dropped == {"after_truncation": 2}
    assert sample.metadata["turnkeeper"]["cut"] == {"reason": "after_truncation", "turns": 2, "tokens": 5}
    assert collection.history is HistoryKind(policy.kind)


def test_a_sample_goes_on_past_a_truncated_turn_on_demand() -> None:
    (sample,) = _truncated_story().collect(options=PAST).samples
    assert sample.tokens.tolist() == [1, 11, 2, 12, 13, 3, 14, 4, 15]
    assert sample.loss_mask.tolist() == [1, 0, 1, 1, 0, 1, 0, 1]
    assert sample.metadata["turnkeeper"]["past_truncation"] is True
    assert "cut" not in sample.metadata["turnkeeper"]


@pytest.mark.parametrize(("budget", "flagged"), [(5, False), (6, False), (7, True)])
def test_going_on_past_a_truncated_turn_is_flagged_only_where_it_happens(budget: int, flagged: bool) -> None:
    (sample,) = _truncated_story().collect(options=PAST, max_seq_len=budget).samples
    assert ("past_truncation" in sample.metadata["turnkeeper"]) is flagged
    assert sample.metadata["turnkeeper"]["cut"]["reason"] == "over_max_seq_len"


def test_the_budget_is_named_where_it_cuts_before_a_truncated_turn() -> None:
    collection = _truncated_story().collect(max_seq_len=4)
    assert collection.ledger.dropped == {"over_max_seq_len": 3}
    assert collection.ledger.trainable == 2


def test_messages_come_only_with_a_path_that_is_whole() -> None:

    story = _story()
    view = view_session(story.session, with_messages=True)
    known = {"session_metadata": {}, "session_ledger": story.session.ledger, "decode": spell, "options": OPTIONS}
    (whole,) = collect(view, **known).samples
    (cut,) = collect(view, **known, max_seq_len=4).samples
    assert [message["role"] for message in whole.metadata["messages"]] == ["user", "assistant"] * 2
    assert "messages" not in cut.metadata
