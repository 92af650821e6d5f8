"""Sampling masks.

1. They are asked for where the sampler leaves ids out; what changes weights otherwise is named.
2. One mask for each sampled token, ids of the model, the token among them, one id where decoding was greedy; what the
   engine cut short is refused.
3. Parts of a resumed turn are joined in order and cut where the turn ends.
4. A sample has one range for each token of its response: empty where nothing was sampled, or nothing truncated.
   ``rollout_log_probs`` is the logprob within the mask, that over the vocabulary stands beside it.
5. A sample with an empty range on a token that trains and was drawn from a part of the vocabulary does not exist.
6. Options turn masks on, and say whether what no mask explains carries loss.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples.builders import LINEAR, TREE, Story
from turnkeeper.channels import CHANNELS, CallFacts, CaptureSettings, PathTurn, TurnPlan
from turnkeeper.channels.id_lists import IdLists
from turnkeeper.channels.masks import MaskAsked, MaskCapture, MaskItems, is_truncating, list_unexplained
from turnkeeper.channels.masks.channel import MaskPayload
from turnkeeper.channels.masks.values import build_items
from turnkeeper.choices import OnNotReplayable
from turnkeeper.errors import AssemblyError, EngineProtocolError, RequestError, TokenIntegrityError
from turnkeeper.samples import Sample, decode_samples

CHANNEL = CHANNELS["sampling_mask"]
IDS, OFFSETS = "rollout_sampling_mask_ids", "rollout_sampling_mask_offsets"


@pytest.mark.parametrize(
    ("sampling", "truncates"),
    [
        ({}, False),
        ({"top_p": 1}, False),
        ({"top_p": 0.9}, True),
        ({"top_k": -1}, False),
        ({"top_k": 20}, True),
        ({"min_p": 0}, False),
        ({"min_p": 0.05}, True),
        ({"top_p": None, "top_k": None, "min_p": None}, False),
        ({"temperature": 0}, False),
    ],
)
def test_a_sampler_that_leaves_ids_out_is_known(sampling: dict[str, Any], truncates: bool) -> None:
    assert is_truncating(sampling) == truncates
    asked = MaskCapture(CHANNEL).plan(TurnPlan(prompt_tokens=5, parent_tokens=0, common_prefix=0, sampling=sampling))
    assert (asked is not None) == truncates


@pytest.mark.parametrize(
    ("sampling", "names"),
    [
        ({"top_p": 0.9, "temperature": 0.7, "top_k": 3, "min_p": 0.1, "seed": 1, "stop": ["x"]}, ()),
        ({"presence_penalty": 0, "repetition_penalty": 1, "logit_bias": {}, "min_tokens": 0}, ()),
        ({"presence_penalty": 0.1}, ("presence_penalty",)),
        ({"logit_bias": {"5": 1}, "min_tokens": 2}, ("logit_bias", "min_tokens")),
        ({"regex": "a+"}, ("regex",)),
        ({"tool_choice": "none"}, ()),
        ({"tool_choice": "required"}, ("tool_choice",)),
        ({"tool_choice": {"type": "function"}}, ("tool_choice",)),
    ],
)
def test_what_no_mask_explains_is_named(sampling: dict[str, Any], names: tuple[str, ...]) -> None:
    assert list_unexplained(sampling) == names
    plan = TurnPlan(prompt_tokens=5, parent_tokens=0, common_prefix=0, sampling=sampling)
    asked = MaskCapture(CHANNEL).plan(plan)
    assert names == () if asked is None else asked.unexplained == names
    if names:
        with pytest.raises(RequestError, match=names[0]):
            MaskCapture(CHANNEL, on_not_replayable=OnNotReplayable.REFUSE).plan(plan)


CALL = CallFacts(url="http://engine", prompt_tokens=5, ids=np.array([7, 8, 9], np.int32))
ASKED = MaskAsked(payload_start=5, is_truncating=True, is_greedy=False)


def payload(masks: Any = ((7, 1), (8,), (2, 9)), logprobs: Any = (-0.1, 0.0, -0.2), **fields: Any) -> MaskPayload:
    listed = [list(mask) for mask in masks] if isinstance(masks, tuple) else masks
    values = list(logprobs) if isinstance(logprobs, tuple) else logprobs
    return MaskPayload(masks=listed, logprobs=values, **{"truncated": None, "has_logprobs": True, **fields})


def take(found: MaskPayload | None, asked: MaskAsked = ASKED, call: CallFacts = CALL) -> Any:
    return MaskCapture(CHANNEL, vocabulary_size=100).take(found, asked, call, held=(), earlier=())


def test_sound_masks_are_kept_as_they_were_sent() -> None:
    items = take(payload()).items
    assert (items.counts.array.tolist(), items.ids.array.tolist()) == ([2, 1, 2], [7, 1, 8, 2, 9])
    assert items.logprobs.array.tolist() == [-0.1, 0.0, -0.2]
    assert take(payload(has_logprobs=False, logprobs=None)).items.logprobs.array.tolist() == []
    assert len(items) == 3


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(None, "the reply has none", id="no payload"),
        pytest.param(payload(None), "the reply has none.*sglang-router 0.3.2 drops", id="no masks"),
        pytest.param(payload(((7,), (8,))), "3 tokens were sampled, and 2 sampling masks came", id="one short"),
        pytest.param(payload(((7,), (8,), (9,), (9,))), "and 4 sampling masks", id="one more"),
        pytest.param(payload(((7,), (), (9,))), "sampled token 1 is empty", id="an empty one"),
        pytest.param(
            payload(((7,), (9,), (9,))), "sampled token 1 is 8, which its sampling mask does not hold", id="own"
        ),
        pytest.param(payload(((7,), (8, 100), (9,))), "holds 100, which is no id", id="beyond the vocabulary"),
        pytest.param(payload([[7], [8], [-9]]), "must hold token ids", id="a negative id"),
        pytest.param(payload("AAAA"), "must be a list", id="text"),
        pytest.param(payload([[7], 8, [9]]), "must be a list", id="no list"),
        pytest.param(
            payload(truncated=[False, True, False]), "cut the sampling mask of sampled token 1", id="cut short"
        ),
        pytest.param(payload(truncated=True), "cut the sampling mask of sampled token 0", id="cut short as a whole"),
        pytest.param(payload(logprobs=None), "output_token_sampling_logprobs has 0", id="no logprobs"),
        pytest.param(payload(logprobs=(-0.1, -0.2)), "output_token_sampling_logprobs has 2", id="fewer logprobs"),
        pytest.param(payload(logprobs=(-0.1, None, -0.2)), "something else than a number", id="null logprob"),
        pytest.param(payload(logprobs=([-0.1], [-0.2], [0.0])), "something else than a number", id="support mode"),
        pytest.param(payload(logprobs=(-0.1, 0.5, -0.2)), "sampled token 1 within its mask is 0.5", id="above 1"),
        pytest.param(payload(logprobs=(-0.1, float("-inf"), -0.2)), "is -inf", id="impossible"),
    ],
)
def test_a_wrong_form_is_refused_by_name(found: MaskPayload | None, said: str) -> None:
    with pytest.raises(EngineProtocolError, match=said) as refused:
        take(found)
    assert said.split(".*")[-1] in f"{refused.value}" or said in f"{refused.value}"


def test_greedy_decoding_has_masks_of_one() -> None:
    greedy = replace(ASKED, is_greedy=True)
    assert take(payload(((7,), (8,), (9,))), greedy).items.counts.array.tolist() == [1, 1, 1]
    with pytest.raises(EngineProtocolError, match="greedy, and the mask of sampled token 0 has 2 ids"):
        take(payload(), greedy)


def test_a_turn_that_does_not_truncate_is_marked_and_keeps_nothing() -> None:
    asked = MaskAsked(payload_start=5, is_truncating=False, is_greedy=False, unexplained=("regex",))
    capture = MaskCapture(CHANNEL)
    taken = capture.take(None, asked, CALL, held=(), earlier=())
    kept = capture.finish(capture.join([taken, taken], prompt_tokens=5, counts=[3, 3], count=6), CALL, held=())
    assert (kept.items, kept.marks) == (None, {"not_replayable": ["regex"]})
    assert not CHANNEL.is_lost("/generate", asked)
    assert CHANNEL.is_lost("/generate", ASKED)
    assert capture.plan_next(ASKED, taken, 9) == replace(ASKED, payload_start=9)


def test_parts_are_joined_and_cut() -> None:
    capture = MaskCapture(CHANNEL)
    joined = capture.join([take(payload()), take(payload())], prompt_tokens=5, counts=[3, 3], count=4)
    kept = capture.finish(joined, CALL, held=()).items
    assert isinstance(kept, MaskItems)
    assert (kept.counts.array.tolist(), kept.ids.array.tolist()) == ([2, 1, 2, 2], [7, 1, 8, 2, 9, 7, 1])
    assert kept.logprobs.array.tolist() == [-0.1, 0.0, -0.2, -0.1]


def test_more_masks_than_a_path_has_tokens_are_not_recorded() -> None:
    items = build_items(np.ones(3), np.arange(3), np.zeros(0))
    with pytest.raises(TokenIntegrityError, match="path of 3 tokens"):
        CHANNEL.check_added(items, None, parent_tokens=0, path_tokens=3)
    with pytest.raises(ValueError, match="3 masks but 2 logprobs"):
        build_items(np.ones(3), np.arange(3), np.zeros(2))


def mask_of(token: int) -> list[int]:
    """What a token of these stories was drawn from: as many ids as its last digit says."""
    return [token, *range(1000, 1000 + token % 4)]


def items_of(sampled: list[int], *, has_full: bool = True) -> MaskItems:
    masks = [mask_of(token) for token in sampled]
    logprobs = np.array([-token / 1000 for token in sampled]) if has_full else np.zeros(0)
    return build_items(np.array([len(mask) for mask in masks]), np.concatenate(masks), logprobs)


@st.composite
def _stories(draw: st.DrawFn) -> tuple[Story, dict[int, bool]]:
    """A session with extensions, branches and trims; which token of a path was drawn from a mask, by its id."""
    story, turns = Story(draw(st.sampled_from([LINEAR, TREE]))), [None]
    is_linear = story.session.policy == LINEAR
    masked: dict[int, bool] = {}
    fresh = iter(range(100, 900))
    for _ in range(draw(st.integers(1, 4))):
        parent = turns[-1] if is_linear else draw(st.sampled_from(turns))
        prompt = [next(fresh) for _ in range(draw(st.integers(1, 3)))]
        sampled = [next(fresh) for _ in range(draw(st.integers(1, 4)))]
        has_masks = draw(st.booleans())
        masked |= dict.fromkeys(sampled, has_masks)
        channels = {"sampling_mask": items_of(sampled)} if has_masks else {}
        trim = draw(st.integers(0, 1)) if parent is not None else 0
        turns.append(story.say(prompt, sampled, after=parent, trim=trim, channels=channels))
    return story, masked


@settings(max_examples=60)
@given(_stories(), st.none() | st.integers(2, 20))
def test_masks_are_aligned_however_a_sample_is_cut(told: tuple[Story, dict[int, bool]], budget: int | None) -> None:
    """The oracle walks the response token by token: every id is new, and says what its mask must be."""
    story, masked = told
    for sample in decode_samples(story.collect(max_seq_len=budget).encode().to_bytes()).samples:
        response = sample.tokens[len(sample.tokens) - sample.response_length :].tolist()
        ids, offsets = sample.tensors.get(IDS), sample.tensors.get(OFFSETS)
        if ids is None or offsets is None:
            assert not any(masked.get(token) for token in response)
            assert sample.rollout_full_log_probs is None
            continue
        for at, token in enumerate(response):
            mask = ids[offsets[at] : offsets[at + 1]].tolist()
            assert mask == (mask_of(token) if masked.get(token) else [])
            full = -token / 10 if token in masked else 0.0
            assert sample.tensors["rollout_full_log_probs"][at] == full
            assert sample.rollout_log_probs[at] == (-token / 1000 if masked.get(token) else full)
        assert (ids.dtype, offsets.dtype, offsets[0], offsets[-1]) == (np.int32, np.int64, 0, len(ids))


def test_logprobs_that_are_within_the_masks_alone_have_none_beside_them() -> None:
    story = Story()
    story.say([1], [11, 12], channels={"sampling_mask": items_of([11, 12], has_full=False)})
    (sample,) = story.collect().samples
    assert sample.rollout_log_probs.tolist() == [-1.1, -1.2]
    assert sample.rollout_full_log_probs is None
    assert sample.rollout_sampling_mask_ids is not None
    assert np.isnan(sample.tensors["rollout_temperatures"]).all()


def build_sample(**tensors: Any) -> Sample:
    story = Story()
    story.say([1], [11, 12], channels={"sampling_mask": items_of([11, 12])})
    (sample,) = story.collect().samples
    return sample.replace_tensors(**tensors)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({OFFSETS: None}, "come together"),
        ({IDS: None}, "come together"),
        ({OFFSETS: np.array([0, 1], np.int64)}, "3 ascending places"),
        ({OFFSETS: np.array([1, 4, 5], np.int64)}, "ascending places"),
        ({OFFSETS: np.array([0, 6, 5], np.int64)}, "ascending places"),
        ({OFFSETS: np.array([0, 4, 4], np.int64)}, "to the 5 of"),
        ({"rollout_full_log_probs": np.zeros(3)}, "has 3 entries"),
        ({"rollout_temperatures": np.zeros(1)}, "has 1 entries"),
    ],
)
def test_ill_formed_masks_make_no_sample(tensors: dict[str, Any], said: str) -> None:
    with pytest.raises(AssemblyError, match=said):
        build_sample(**tensors)


def test_a_token_that_trains_and_was_drawn_from_a_mask_has_one() -> None:
    sample = build_sample()
    own = sample.metadata["turnkeeper"]
    turns = [{**own["turns"][0], "sampling": {"top_p": 0.9}}]
    told = replace(sample, metadata={**sample.metadata, "turnkeeper": {**own, "turns": turns}})
    empty = {OFFSETS: np.array([0, 4, 4], np.int64), IDS: sample.tensors[IDS][:4]}
    with pytest.raises(AssemblyError, match="a token of it that trains has no mask"):
        told.replace_tensors(**empty)
    masked = replace(told, loss_mask=np.array([1, 0], np.uint8))
    assert masked.replace_tensors(**empty).tensors[OFFSETS].tolist() == [0, 4, 4]


def test_items_are_shown_as_the_engine_spells_them() -> None:
    shown = CHANNEL.show(items_of([11, 12]))
    assert shown["output_token_sampling_mask"] == [mask_of(11), mask_of(12)]
    assert shown["output_token_sampling_logprobs"] == [-0.011, -0.012]
    assert list(CHANNEL.show(items_of([11], has_full=False))) == ["output_token_sampling_mask"]
    assert CHANNEL.show_asked(None, parent_tokens=0, use_increments=True) == {"return_sampling_mask": True}


def test_lists_that_were_read_apart_are_taken() -> None:
    lists = IdLists(ids=np.array([7, 8, 9]), counts=np.array([1, 1, 1]))
    assert take(payload(lists)).items.ids.array.tolist() == [7, 8, 9]


def path_turn(number: int, start: int, **fields: Any) -> PathTurn:
    """A turn of two sampled tokens."""
    given: dict[str, Any] = {"channels": {}, "logprobs": np.array([-1.0, -2.0]), **fields}
    return PathTurn(number=number, sampled=start, kept=start + 2, stop=start + 2, **given)


def test_a_turn_that_lost_its_masks_makes_no_sample() -> None:
    first = path_turn(0, 1, channels={"sampling_mask": items_of([11, 12])}, sampling={"top_p": 0.9})
    plain, truncated = path_turn(1, 4, sampling={"temperature": 1.0}), path_turn(1, 4, sampling={"top_p": 0.9})
    assert CHANNEL.assemble([first, plain], tokens=6)[OFFSETS].tolist() == [0, 4, 5, 5, 5, 5]
    with pytest.raises(AssemblyError, match="turn 1 was drawn from a part of the vocabulary and has no sampling masks"):
        CHANNEL.assemble([first, truncated], tokens=6)
    assert CHANNEL.assemble([truncated], tokens=6) == {}, "of a path without any mask nothing is said"


@pytest.mark.parametrize("choice", list(OnNotReplayable))
def test_options_say_what_becomes_of_what_no_mask_explains(choice: OnNotReplayable) -> None:
    options = {"use_rollout_sampling_mask": True, "on_not_replayable": choice}
    assert CHANNEL.is_on(options)
    assert not CHANNEL.is_on({**options, "use_rollout_sampling_mask": False})
    capture = CHANNEL.open(CaptureSettings(options=options, use_increments=True, vocabulary_size=9))
    with pytest.raises(EngineProtocolError, match="holds 9, which is no id"):
        capture.take(payload(((7,), (8,), (9,))), ASKED, CALL, held=(), earlier=())
    turns = [path_turn(0, 1), path_turn(1, 4, marks={"not_replayable": ["regex"]})]
    spans = CHANNEL.find_masked(turns, frozenset(CHANNEL.list_masked_marks(options)))
    masks = choice is OnNotReplayable.MASK
    assert [(span.reason, span.start, span.stop) for span in spans] == ([("not_replayable", 4, 6)] if masks else [])


def test_a_probe_asks_with_a_sampler_that_every_engine_takes() -> None:
    shaped = MaskCapture(CHANNEL).shape_probe({"temperature": 0.0, "max_tokens": 2})
    assert shaped == {"temperature": 1.0, "top_p": 0.9, "top_k": 20, "max_tokens": 2}


def test_stored_runs_are_the_items_again() -> None:
    items = items_of([11, 12])
    again = CHANNEL.restore(items.runs)
    assert isinstance(again, MaskItems)
    assert again.runs == items.runs
    assert len(items.runs) == len(CHANNEL.stored_runs)
