"""The built-in postprocessor.

1. A shared completion trains once, in the earliest committed picked leaf; elsewhere it is masked as shared.
2. A stop token that only a later leaf keeps trains there.
3. `metadata.reward` becomes the reward of every sample; agent metadata comes along and overwrites nothing.
4. A linear session knows neither reward nor agent metadata.
"""

from samples.builders import LINEAR, TREE, Story
from turnkeeper.samples import CollectOptions, load_hooks

KEEP = CollectOptions(hooks=load_hooks(picker="keep_siblings"))


def _two_branches() -> Story:
    story = Story(TREE)
    root = story.say([1], [11, 12])
    story.say([2], [13], after=root)
    story.say([3], [14, 15], after=root)
    return story


def test_a_shared_completion_trains_in_the_earliest_leaf() -> None:
    later, earlier = _two_branches().collect(KEEP).samples
    assert earlier.metadata["leaf"]["node_id"] == 1
    assert earlier.loss_mask.tolist() == [1, 1, 0, 1]
    assert later.loss_mask.tolist() == [0, 0, 0, 1, 1]
    assert later.metadata["turnkeeper"]["masked"] == [{"reason": "shared_elsewhere", "start": 0, "end": 2}]


def test_a_shared_token_counts_once_and_as_trainable() -> None:
    ledger = _two_branches().collect(KEEP).ledger
    assert (ledger.sampled, ledger.trainable, ledger.masked, ledger.unaccounted) == (5, 5, {}, 0)


def test_ownership_is_decided_after_picking() -> None:
    (kept,) = _two_branches().collect().samples
    assert kept.metadata["leaf"]["node_id"] == 2
    assert kept.loss_mask.tolist() == [1, 1, 0, 1, 1]


def test_a_stop_token_that_the_earlier_leaf_trims_trains_in_the_later_one() -> None:
    story = Story(TREE)
    root = story.say([1], [11, 8])
    story.say([9], [12], after=root, trim=1)
    story.say([2], [13], after=root)
    later, earlier = story.collect(KEEP).samples
    assert (earlier.tokens.tolist(), earlier.loss_mask.tolist()) == ([1, 11, 9, 12], [1, 0, 1])
    assert (later.tokens.tolist(), later.loss_mask.tolist()) == ([1, 11, 8, 2, 13], [0, 1, 0, 1])


def test_the_rewards_and_metadata_of_the_request_come_with_every_sample() -> None:
    given = {"reward": 0.75, "task": "sum", "leaf": "mine", "turnkeeper": "mine", "lifecycle": "mine"}
    collection = _two_branches().collect(KEEP, agent_metadata=given)
    for sample in collection.samples:
        assert sample.reward == 0.75
        assert (sample.metadata["task"], sample.metadata["reward"]) == ("sum", 0.75)
        assert sample.metadata["leaf"]["parent"] == 0
        assert isinstance(sample.metadata["lifecycle"], list)
        assert "versions" in sample.metadata["turnkeeper"]
    assert collection.session_metadata["agent"] == given


def test_no_reward_keeps_the_trainers_own() -> None:
    assert [sample.reward for sample in _two_branches().collect(KEEP, agent_metadata={"task": 1}).samples] == [None] * 2
    assert "agent" not in _two_branches().collect(KEEP).session_metadata


def test_a_linear_session_knows_no_agent_metadata() -> None:
    story = Story(LINEAR)
    story.say([1], [11])
    collection = story.collect(agent_metadata={"reward": 1.0})
    assert collection.samples[0].reward is None
    assert set(collection.samples[0].metadata) == {"lifecycle", "turnkeeper"}
    assert set(collection.session_metadata) == {"max_trim_tokens", "turnkeeper"}
