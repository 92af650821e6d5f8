"""The built-in postprocessor.

1. A shared completion trains once, in the earliest committed picked leaf; elsewhere it is masked as shared.
2. A stop token that only a later leaf keeps trains there.
3. `metadata.reward` becomes the reward of every sample; agent metadata comes along and overwrites nothing.
4. A linear session gives its sample reward and metadata likewise; the payload says them in keys that the reference
   trainer's reader ignores.
5. A reward of a single turn is shown with the turn, and is the sample's own where the turn is the leaf; no reward is
   given to nobody.
6. The reference's own postprocessors: the request's metadata wins, and turns are named that get no positive advantage.
"""

from typing import Any

import orjson
import pytest
import safetensors.numpy

from samples.builders import LINEAR, TREE, Story
from turnkeeper.errors import HookError, RequestError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples import CollectOptions, decode_samples, load_hooks

KEEP = CollectOptions(hooks=load_hooks(picker="keep_siblings"))
MILES = "miles.rollout.session.v2.postprocessor_hub"


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


def _linear() -> Story:
    story = Story(LINEAR)
    first = story.say([1], [11])
    story.say([2], [12], after=first)
    return story


def test_a_linear_session_gives_reward_and_metadata_likewise() -> None:
    given = {"reward": 1.0, "task": "sum", "lifecycle": "mine", "leaf": "mine", "turnkeeper": "mine"}
    batch = decode_samples(_linear().collect(agent_metadata=given).encode().to_bytes())
    (sample,) = batch.samples
    assert sample.reward == 1.0
    assert (sample.metadata["task"], sample.metadata["reward"]) == ("sum", 1.0)
    assert isinstance(sample.metadata["lifecycle"], list)
    assert "versions" in sample.metadata["turnkeeper"]
    assert "leaf" not in sample.metadata
    assert batch.session_metadata["agent"] == given


def test_a_linear_payload_says_them_where_the_references_reader_does_not_look() -> None:
    payload = _linear().collect(agent_metadata={"reward": 1.0, "task": "sum"}).encode().to_bytes()
    meta = decode_meta(payload)
    assert (meta["samples"][0]["reward"], meta["agent"]) == (1.0, {"reward": 1.0, "task": "sum"})
    assert set(meta["samples"][0]["metadata"]) == {"lifecycle", "turnkeeper"}
    assert set(meta["session_metadata"]) == {"max_trim_tokens", "turnkeeper"}
    bare = decode_meta(_linear().collect().encode().to_bytes())
    assert "reward" not in bare["samples"][0]
    assert "agent" not in bare


def decode_meta(payload: bytes) -> JsonObject:
    return orjson.loads(safetensors.numpy.load(payload)["_samples_meta"].tobytes())


REWARDS: dict[str, tuple[Story, JsonObject, list[Any], list[Any]]] = {
    "of a leaf": (_two_branches(), {"chat-2": 1.0}, [1.0, 0.25], [None, 1.0, None, None]),
    "of both leaves": (_two_branches(), {"chat-2": {"a": 1}, "chat-1": 0}, [{"a": 1}, 0], [None, {"a": 1}, None, 0]),
    "of a shared turn": (_two_branches(), {"chat-0": -1}, [0.25, 0.25], [-1, None, -1, None]),
    "of a linear session's last turn": (_linear(), {"chat-1": 2}, [2], [None, 2]),
    "of a linear session's first turn": (_linear(), {"chat-0": 2}, [0.25], [2, None]),
}


@pytest.mark.parametrize(("story", "rewards", "own", "of_turns"), REWARDS.values(), ids=REWARDS)
def test_a_reward_of_one_turn_is_shown_with_it_and_is_the_leafs_own(
    story: Story, rewards: JsonObject, own: list[Any], of_turns: list[Any]
) -> None:
    collection = story.collect(KEEP, agent_metadata={"reward": 0.25}, rewards=rewards)
    samples = decode_samples(collection.encode().to_bytes()).samples
    assert [sample.reward for sample in samples] == own
    turns = [turn for sample in samples for turn in sample.metadata["turnkeeper"]["turns"]]
    assert [turn.get("reward") for turn in turns] == of_turns
    assert collection.session_metadata["turnkeeper"]["rewards"] == rewards


def test_the_leafs_own_reward_holds_where_the_limit_cuts_its_turn_off() -> None:
    (sample,) = _linear().collect(max_seq_len=2, rewards={"chat-1": 3.0}).samples
    assert (sample.tokens.tolist(), sample.reward) == ([1, 11], 3.0)


@pytest.mark.parametrize("story", [_two_branches(), _linear()], ids=["tree", "linear"])
def test_a_reward_of_no_turn_is_refused_by_its_id(story: Story) -> None:
    with pytest.raises(RequestError, match="0 turns of the session have the response id 'chat-9'"):
        story.collect(rewards={"chat-0": 1.0, "chat-9": 1.0})


def test_a_session_without_turns_has_no_turn_to_reward() -> None:
    with pytest.raises(RequestError, match="chat-0"):
        Story(TREE).collect(rewards={"chat-0": 1.0})


@pytest.mark.parametrize("name", [f"{MILES}.default_postprocess", "non_positive_attempts"])
def test_under_the_references_rule_the_metadata_of_the_request_wins(name: str) -> None:
    options = CollectOptions(hooks=load_hooks(postprocessor=name))
    given = {"reward": 0.5, "lifecycle": "mine", "leaf": "mine", "non_positive_advantage_response_ids": []}
    (sample,) = _two_branches().collect(options, agent_metadata=given).samples
    assert (sample.reward, sample.metadata["lifecycle"]) == (0.5, "mine")
    assert sample.metadata["leaf"]["node_id"] == 2


NON_POSITIVE = CollectOptions(hooks=load_hooks(picker="keep_siblings", postprocessor="non_positive_attempts"))


def test_turns_without_a_positive_advantage_are_named_by_their_spans() -> None:
    given = {"non_positive_advantage_response_ids": ["chat-0", "chat-1"]}
    later, earlier = _two_branches().collect(NON_POSITIVE, agent_metadata=given).samples
    assert later.metadata["non_positive_advantage_spans"] == [[0, 2]]
    assert earlier.metadata["non_positive_advantage_spans"] == [[0, 2], [3, 4]]
    cut = _two_branches().collect(NON_POSITIVE, agent_metadata=given, max_seq_len=2).samples
    assert [sample.metadata["non_positive_advantage_spans"] for sample in cut] == [[[0, 1]], [[0, 1]]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "must be a list of response ids"),
        ({"non_positive_advantage_response_ids": "chat-0"}, "must be a list of response ids"),
        ({"non_positive_advantage_response_ids": [""]}, "must be a list of response ids"),
        ({"non_positive_advantage_response_ids": ["chat-0", "gone"]}, "0 turns have the response id 'gone'"),
    ],
    ids=["missing", "no list", "an empty id", "unknown"],
)
def test_turns_that_cannot_be_named_are_refused(given: JsonObject, message: str) -> None:
    with pytest.raises(HookError, match=message):
        _two_branches().collect(NON_POSITIVE, agent_metadata=given)
