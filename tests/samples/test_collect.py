"""A session's samples as a whole.

1. Session metadata comes back with the accounting in it; collecting reads only, and repeats byte for byte.
2. A tree's table of turns is what the contract says; mismatches and messages go with their leaf.
3. A history without branches gives bit-identical samples under both policies, signed zeros too.
4. A path whose edges do not fit is refused.
5. A sample says of which turns the ids are not canonical, and that its session evaluates the policy.
6. The session's metadata says of each turn what became of its sampled tokens; their sums are the session's.
"""

from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from samples.builders import LINEAR, OPTIONS, TREE, Story, rows_of, spell
from turnkeeper.core import DropReason, FinishReason
from turnkeeper.errors import AssemblyError
from turnkeeper.ids import TurnId
from turnkeeper.samples import (
    CollectOptions,
    EmptyReason,
    SessionView,
    collect,
    decode_samples,
    describe_tree,
    describe_turn,
    view_session,
)


def _story(policy=LINEAR) -> Story:
    story = Story(policy)
    first = story.say([1, 2], [11, 12], rows=rows_of([1, 2, 3]), logprobs=[-0.0, 0.0])
    second = story.say([9], [13], after=first, trim=1, rows=rows_of([4]))
    story.say([3], [14], after=second, rows=rows_of([5, 6]), logprobs=[-0.0])
    return story


def test_the_session_metadata_comes_back_with_the_accounting() -> None:
    story = _story()
    story.session.drop(DropReason.CLIENT_GONE, 7, at=1.0)
    collection = story.collect()
    assert collection.session_metadata["max_trim_tokens"] == 1
    assert collection.session_metadata["turnkeeper"] == {
        "kept": True,
        "accounting": {
            "sampled": 11,
            "trainable": 3,
            "masked": {},
            "dropped": {"client_gone": 7, "junction_trim": 1},
            "calls": {},
            "unaccounted": 0,
        },
    }
    assert story.metadata()["turnkeeper"] == {"kept": True}


@pytest.mark.parametrize("policy", [LINEAR, TREE], ids=["linear", "tree"])
def test_collecting_again_gives_the_same_bytes(policy) -> None:
    story = _story(policy)
    assert story.collect().encode().to_bytes() == story.collect().encode().to_bytes()


def test_both_policies_give_the_same_samples_bit_for_bit() -> None:
    linear, tree = _story(LINEAR).collect(), _story(TREE).collect()
    tensors = [safetensors.numpy.load(collection.encode().to_bytes()) for collection in (linear, tree)]
    for each in tensors:
        del each["_samples_meta"]
    assert {name: array.tobytes() for name, array in tensors[0].items()} == {
        name: array.tobytes() for name, array in tensors[1].items()
    }
    assert np.signbit(tensors[0]["rollout_log_probs.0"]).tolist() == [True, False, True, False, True]
    assert linear.samples[0].response == tree.samples[0].response


def test_a_linear_session_gives_its_live_path_and_accounts_for_the_rest() -> None:
    story = Story(LINEAR)
    first = story.say([1], [11])
    story.say([2], [12, 13], after=first, text="again")
    story.say([2], [14], after=first, text="again")
    collection = story.collect()
    (sample,) = collection.samples
    assert sample.tokens.tolist() == [1, 11, 2, 14]
    assert collection.ledger.dropped == {"superseded": 2}
    assert collection.ledger.unaccounted == 0


def test_the_tree_is_a_table_of_turns_and_leaves() -> None:
    story = Story(TREE)
    root = story.say([1, 2], [11, 8])
    story.say([9], [12], after=root, trim=1, finish=FinishReason.LENGTH)
    tree = describe_tree(view_session(story.session))
    assert tree["nodes"][0] == {
        "id": 0,
        "parent": None,
        "seq": 0,
        "truncated": False,
        "committed_at": 103.0,
        "completion_span": [2, 4],
        "num_tokens": 4,
        "response_id": "chat-0",
    }
    assert {key: tree["nodes"][1][key] for key in ("parent", "truncated", "completion_span", "num_tokens")} == {
        "parent": 0,
        "truncated": True,
        "completion_span": [4, 5],
        "num_tokens": 5,
    }
    assert tree["leaves"] == [{"node_id": 1, "path_node_ids": [0, 1]}]


def _collect(story: Story, view: SessionView, **fields: object):
    return collect(
        view,
        session_metadata=story.metadata(),
        session_ledger=story.session.ledger,
        decode=spell,
        options=OPTIONS,
        **fields,  # pyright: ignore[reportArgumentType]
    )


@pytest.mark.parametrize("policy", [LINEAR, TREE], ids=["linear", "tree"])
def test_samples_say_what_their_session_was_created_with(policy) -> None:
    story = _story(policy)
    known = {**story.metadata(), "turnkeeper": {"metadata": {"task": 7}}}
    collection = collect(
        view_session(story.session),
        session_metadata=known,
        session_ledger=story.session.ledger,
        decode=spell,
        options=OPTIONS,
    )
    assert collection.samples[0].metadata["turnkeeper"]["session_metadata"] == {"task": 7}
    assert "session_metadata" not in story.collect().samples[0].metadata["turnkeeper"]


def test_what_became_of_each_turns_tokens_adds_up_to_the_whole() -> None:
    collection = _story(TREE).collect(max_seq_len=5)
    assert [each.trainable for each in collection.turn_ledgers] == [1, 1, 0]
    assert [dict(each.dropped) for each in collection.turn_ledgers] == [
        {"junction_trim": 1},
        {},
        {"over_max_seq_len": 1},
    ]


def test_mismatches_and_messages_go_with_their_leaf() -> None:
    story = _story(TREE)
    view = view_session(story.session, mismatches={TurnId(2): [{"type": "assistant_text"}]}, with_messages=True)
    (sample,) = _collect(story, view).samples
    assert sample.metadata["tito_session_mismatch"] == [{"type": "assistant_text"}]
    assert [message["role"] for message in sample.metadata["messages"]] == ["user", "assistant"] * 3


def test_the_whole_path_is_told_even_where_the_sample_is_cut() -> None:
    (sample,) = _story(TREE).collect(max_seq_len=3).samples
    assert sample.tokens.tolist() == [1, 2, 11]
    assert sample.metadata["accumulated_token_ids"] == [1, 2, 11, 9, 13, 3, 14]


def test_a_leaf_of_which_nothing_fits_does_not_reach_the_hooks() -> None:
    story = Story(TREE)
    story.say([1], [11], text="short")
    story.say([1, 2, 3, 4], [12], text="long")
    collection = story.collect(max_seq_len=3)
    assert [sample.tokens.tolist() for sample in collection.samples] == [[1, 11]]
    assert collection.ledger.dropped == {"over_max_seq_len": 1}


def test_a_picker_that_picks_nothing_leaves_an_empty_reply() -> None:
    story = Story(TREE)
    story.say([1], [11], delivered=False)
    collection = story.collect(CollectOptions.defaults())
    assert (collection.samples, collection.empty_reason) == ((), EmptyReason.ALL_TRUNCATED)
    assert decode_samples(collection.encode().to_bytes()).empty_reason is EmptyReason.ALL_TRUNCATED


def test_a_turn_that_trims_more_than_its_parent_sampled_is_refused() -> None:
    story = Story(LINEAR)
    first = story.say([1], [])
    story.say([9], [12], after=first, trim=1)
    with pytest.raises(AssemblyError, match="turn 1 trims more ids than turn 0 sampled"):
        story.collect()


def test_a_root_that_trims_is_refused() -> None:
    story = Story(LINEAR)
    turn = story.say([1], [11])
    view = view_session(story.session)
    odd = replace(view, turns=(replace(turn, prompt=replace(turn.prompt, trim=1)),))
    with pytest.raises(AssemblyError, match="turn 0 trims more"):
        _collect(story, odd)


@pytest.mark.parametrize("policy", [LINEAR, TREE], ids=["linear", "tree"])
def test_a_sample_says_what_is_known_of_its_turns_and_its_session(policy) -> None:
    story = _story(policy)
    view = view_session(story.session, noncanonical={TurnId(0): 1, TurnId(2): 0}, is_evaluation=True)
    told = {"session_metadata": story.metadata(), "session_ledger": story.session.ledger}
    (sample,) = collect(view, **told, decode=spell, options=OPTIONS).samples
    own = sample.metadata["turnkeeper"]
    assert [turn.get("noncanonical_from") for turn in own["turns"]] == [1, None, 0]
    assert own["evaluation"] is True
    own = story.collect().samples[0].metadata["turnkeeper"]
    assert not any("noncanonical_from" in turn for turn in own["turns"])
    assert "evaluation" not in own


def test_each_turn_of_the_session_says_what_became_of_its_tokens() -> None:
    story = Story(TREE)
    first = story.say([1], [11, 12, 13])
    story.say([9], [14, 15], after=first, trim=1)
    story.say([3], [16], after=first, text="again")
    story.session.drop(DropReason.CLIENT_GONE, 7, at=1.0)
    view = view_session(story.session)
    turns = [describe_turn(view, turn.id) for turn in view.turns]
    told = {"session_metadata": {"turnkeeper": {"turns": turns}}, "session_ledger": story.session.ledger}
    own = collect(view, **told, decode=spell, options=OPTIONS).session_metadata["turnkeeper"]
    assert [turn["tokens"] for turn in own["turns"]] == [
        {"trainable": 3},
        {"dropped": {"not_picked": 2}},
        {"trainable": 1},
    ]
    assert own["accounting"]["trainable"] == sum(turn["tokens"].get("trainable", 0) for turn in own["turns"])
    assert "tokens" not in turns[0]
