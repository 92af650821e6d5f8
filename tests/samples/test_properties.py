"""What is always true of samples, over random forests of turns.

Every token id is used once, so that a plain dictionary from id to its origin is the oracle: it is filled while the
history is told, and never asks the code under test.

1. Once: every sampled token is trainable, masked or dropped exactly once, and trains in at most one sample; every leaf
   ends exactly one sample or is dropped for a cause, whether it was retried, lost, a summary or another agent's.
2. Parallel: mask, logprobs, versions and rows belong to the tokens they stand beside.
3. Decode-time truth: a row is that of the first call on the path that fed the token.
4. A longer budget extends the sample of a shorter one.
5. Whole payloads and increments give the same tensors.
6. Built-in hooks, which take assembled samples, give what they give as hooks of a user, which are checked.
7. What is forecast of the tokens and leaves is what a collect by the built-in rules makes of them.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from channelkit import masked_by
from channels.routing.builders import encode_ids
from samples.builders import LINEAR, TREE, Story, rows_of
from turnkeeper.channels.routing import RoutingShape, plan_rows, take_patch
from turnkeeper.choices import OnRecomputed
from turnkeeper.core import FinishReason, Linear, Tree, Turn
from turnkeeper.samples import CollectOptions, Hooks, Outcome, Sample, decode_samples, load_hooks
from turnkeeper.samples.hooks import Hook

PICKERS = (
    "drop_retries",
    "keep_siblings",
    "drop_retries_same_prompt",
    "drop_rolled_back_leaves",
    "miles.rollout.session.v2.picker_hub.drop_retries",
    "samples.hookbox.first_only",
)
POSTPROCESSORS = (
    "default_postprocess",
    "non_positive_attempts",
    "miles.rollout.session.v2.postprocessor_hub.default_postprocess",
)
SUB_AGENT = {"x-claude-code-agent-id": "a7"}
SUMMARY = "the tests pass and the page is mended"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One turn to tell."""

    parent: float
    """Which of the turns told so far it goes on from; the lowest part of 0..1 starts a root."""
    trim: int
    prompt: int
    sampled: int
    finish: FinishReason
    is_delivered: bool
    has_bad_row: bool
    asked: str
    """What the user says; empty for something that nobody said before."""
    reply: str
    """Empty for something that nobody said before."""
    is_sub_agent: bool


steps = st.builds(
    Step,
    parent=st.floats(0, 1, exclude_max=True),
    trim=st.integers(0, 1),
    prompt=st.integers(1, 3),
    sampled=st.integers(1, 4),
    finish=st.sampled_from([FinishReason.STOP, FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.LENGTH]),
    is_delivered=st.integers(0, 5).map(bool),
    has_bad_row=st.integers(0, 9).map(lambda roll: roll == 0),
    asked=st.sampled_from(["", "", "again", f"go on: {SUMMARY}"]),
    reply=st.sampled_from(["", "", SUMMARY]),
    is_sub_agent=st.integers(0, 4).map(lambda roll: roll == 0),
)


@dataclass(kw_only=True)
class Told:
    """A history and what is true of it."""

    story: Story
    logprobs: dict[int, float] = field(default_factory=dict)
    """By sampled id."""
    versions: dict[int, str] = field(default_factory=dict)
    """By sampled id."""
    paths: dict[int, list[int]] = field(default_factory=dict)
    """The whole path of each turn, by turn."""
    rows: dict[int, list[int]] = field(default_factory=dict)
    """The rows of each path, by turn: the number of the call that fed the token first, plus one."""
    bad: dict[int, int] = field(default_factory=dict)
    """The first bad row of each path, by turn; left out where all are good."""


def tell(policy: Linear | Tree, told_steps: list[Step], *, is_linear: bool) -> Told:
    """Tell a history; linear ones go on from the last turn, others from any, or start a root."""
    told = Told(story=Story(policy))
    turns: list[Turn] = []
    ids = count(1)
    for number, step in enumerate(told_steps):
        place = len(turns) - 1 if is_linear else int(step.parent * (len(turns) + 1)) - 1
        parent = turns[place] if place >= 0 else None
        before = told.paths[parent.id] if parent else []
        rows_before = told.rows[parent.id] if parent else []
        trim = step.trim if parent else 0
        prompt = [next(ids) for _ in range(step.prompt)]
        sampled = [next(ids) for _ in range(step.sampled)]
        path = before[: len(before) - trim] + prompt + sampled
        patch = [number + 1] * (len(path) - 1 - len(rows_before))
        bad = len(rows_before) if step.has_bad_row and patch else None
        logprobs = [-1.0 / token for token in sampled]
        turn = told.story.say(
            prompt,
            sampled,
            after=parent,
            text=step.asked,
            reply=step.reply and f"{step.reply}, says turn {number}",
            headers=SUB_AGENT if step.is_sub_agent else None,
            trim=trim,
            finish=step.finish,
            logprobs=logprobs,
            delivered=step.is_delivered,
            rows=rows_of(patch),
            marks={} if bad is None else {"bad_rows_from": bad},
            weight_version=str(number),
        )
        turns.append(turn)
        told.paths[turn.id], told.rows[turn.id] = path, rows_before + patch
        told.logprobs |= dict(zip(sampled, logprobs, strict=True))
        told.versions |= dict.fromkeys(sampled, "v1")
        first_bad = [row for row in (told.bad.get(parent.id) if parent else None, bad) if row is not None]
        if first_bad:
            told.bad[turn.id] = min(first_bad)
    return told


def _trained(sample: Sample) -> list[int]:
    response = sample.tokens[len(sample.tokens) - sample.response_length :]
    return response[sample.loss_mask == 1].tolist()


def make_foreign(hook: Hook) -> Hook:
    """The same rule as a hook of a user."""
    return replace(hook, function=lambda samples, metadata: hook.function(samples, metadata))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(steps, max_size=7),
    st.none() | st.integers(0, 25),
    st.sampled_from(PICKERS),
    st.sampled_from(POSTPROCESSORS),
    st.sampled_from([(True, True), (True, False), (False, True)]),
)
def test_built_in_hooks_give_what_hooks_of_a_user_would(
    told_steps: list[Step], budget: int | None, picker: str, postprocessor: str, foreign: tuple[bool, bool]
) -> None:
    told = tell(TREE, told_steps, is_linear=False)
    hooks = load_hooks(picker=picker, postprocessor=postprocessor)
    checked = Hooks(
        picker=make_foreign(hooks.picker) if foreign[0] else hooks.picker,
        postprocessor=make_foreign(hooks.postprocessor) if foreign[1] else hooks.postprocessor,
    )
    agent = {"reward": 0.5, "note": [1], "leaf": 1, "lifecycle": 2, "non_positive_advantage_response_ids": []}
    rewards = {"chat-0": 2.0} if told_steps else None
    payloads = [
        told.story.collect(CollectOptions(hooks=each), max_seq_len=budget, agent_metadata=agent, rewards=rewards)
        .encode()
        .to_bytes()
        for each in (hooks, checked)
    ]
    assert payloads[0] == payloads[1]


@settings(max_examples=120, deadline=None)
@given(st.lists(steps, max_size=7), st.none() | st.integers(0, 25), st.sampled_from(PICKERS), st.booleans())
def test_every_sampled_token_counts_once(
    told_steps: list[Step], budget: int | None, picker: str, past_truncation: bool
) -> None:
    told = tell(TREE, told_steps, is_linear=False)
    options = CollectOptions(hooks=load_hooks(picker=picker), past_truncation=past_truncation)
    collection = told.story.collect(options, max_seq_len=budget)
    samples = decode_samples(collection.encode().to_bytes()).samples
    trained = Counter(token for sample in samples for token in _trained(sample))
    assert all(times == 1 for times in trained.values())
    assert set(trained) <= set(told.logprobs)
    ledger = collection.ledger
    assert ledger.trainable == len(trained)
    assert ledger.sampled == len(told.logprobs)
    assert ledger.sampled == ledger.trainable + sum(ledger.masked.values()) + sum(ledger.dropped.values())
    in_samples = {token for sample in samples for token in sample.tokens.tolist()} & set(told.logprobs)
    assert len(in_samples) == ledger.trainable + sum(ledger.masked.values())
    ends = {sample.metadata["leaf"]["node_id"] for sample in samples}
    dropped = {leaf.turn_id for leaf in collection.dropped_leaves}
    assert ends | dropped == set(told.story.session.forest.leaves())
    assert len(ends) + len(collection.dropped_leaves) == len(told.story.session.forest.leaves())


@settings(max_examples=120, deadline=None)
@given(st.lists(steps, min_size=1, max_size=7), st.none() | st.integers(0, 25), st.booleans())
def test_everything_beside_a_token_is_that_tokens(
    told_steps: list[Step], budget: int | None, past_truncation: bool
) -> None:
    told = tell(TREE, told_steps, is_linear=False)
    options = CollectOptions(hooks=load_hooks(picker="keep_siblings"), past_truncation=past_truncation)
    for sample in told.story.collect(options, max_seq_len=budget).samples:
        leaf = sample.metadata["leaf"]
        tokens = sample.tokens.tolist()
        response = tokens[len(tokens) - sample.response_length :]
        root_prompt = len(told.story.session.forest.get(leaf["path_node_ids"][0]).prompt.ids)
        assert tokens == told.paths[leaf["node_id"]][: len(tokens)]
        assert len(tokens) - sample.response_length == root_prompt
        assert budget is None or len(tokens) <= budget
        assert sample.rollout_log_probs.tolist() == [told.logprobs.get(token, 0.0) for token in response]
        assert all(token in told.logprobs for token, mask in zip(response, sample.loss_mask, strict=True) if mask)
        assert sample.rollout_routed_experts is not None
        assert sample.rollout_routed_experts[:, 0, 0].tolist() == told.rows[leaf["node_id"]][: len(tokens) - 1]
        covered = {
            position: span["version"]
            for span in sample.metadata["turnkeeper"]["versions"]
            for position in range(span["start"], span["end"])
        }
        assert covered == {
            position: told.versions[token] for position, token in enumerate(response) if token in told.versions
        }
        bad = told.bad.get(leaf["node_id"], len(tokens))
        assert not any(mask for place, mask in enumerate(sample.loss_mask, root_prompt) if place - 1 >= bad)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=1, max_size=5), st.booleans())
def test_a_longer_budget_extends_the_sample_of_a_shorter_one(told_steps: list[Step], past_truncation: bool) -> None:
    told = tell(LINEAR, told_steps, is_linear=True)
    options = CollectOptions(hooks=load_hooks(), past_truncation=past_truncation)
    whole = told.paths[len(told_steps) - 1]
    shorter: Sample | None = None
    for budget in range(len(whole) + 2):
        samples = told.story.collect(options, max_seq_len=budget).samples
        if not samples:
            assert shorter is None
            continue
        (longer,) = samples
        if shorter is not None:
            size = shorter.response_length
            assert longer.tokens[: len(shorter.tokens)].tolist() == shorter.tokens.tolist()
            assert longer.loss_mask[:size].tolist() == shorter.loss_mask.tolist()
            assert longer.rollout_log_probs[:size].tolist() == shorter.rollout_log_probs.tolist()
        shorter = longer


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=1, max_size=5))
def test_whole_payloads_and_increments_give_the_same_tensors(told_steps: list[Step]) -> None:
    """The engine computes a row from the token and its place, so that computing it again changes nothing."""
    shape = RoutingShape(layers=2, topk=2, experts=256)
    tensors: list[bytes] = []
    for use_addition_r3 in (True, False):
        story, parent, path, held = Story(LINEAR), None, [], []
        ids = count(1)
        for step in told_steps:
            trim = step.trim if parent else 0
            prompt, sampled = [[next(ids) for _ in range(size)] for size in (step.prompt, step.sampled)]
            before, path = len(path), path[: len(path) - trim] + prompt + sampled
            computed = [[[token % 99, 100], [place % 99, 101]] for place, token in enumerate(path[:-1])]
            request = plan_rows(parent_tokens=before, common_prefix=before - trim, use_addition_r3=use_addition_r3)
            patch = take_patch(
                encode_ids(np.array(computed)[request.payload_start :]),
                request=request,
                shape=shape,
                prompt_tokens=len(path) - len(sampled),
                completion_tokens=len(sampled),
                held=held,
            )
            assert patch.changed_rows == 0
            held.append(patch.rows)
            parent = story.say(prompt, sampled, after=parent, trim=trim, rows=patch.rows)
        (sample,) = story.collect().samples
        assert sample.rollout_routed_experts is not None
        tensors.append(sample.rollout_routed_experts.tobytes())
    assert tensors[0] == tensors[1]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(steps, min_size=1, max_size=8),
    st.none() | st.integers(0, 25),
    st.sampled_from(["drop_retries", "keep_siblings"]),
    st.sampled_from(OnRecomputed),
    st.booleans(),
    st.booleans(),
)
def test_what_is_forecast_is_what_a_collect_makes(
    told_steps: list[Step],
    budget: int | None,
    picker: str,
    on_recomputed: OnRecomputed,
    past_truncation: bool,
    is_linear: bool,
) -> None:
    told = tell(LINEAR if is_linear else TREE, told_steps, is_linear=is_linear)
    options = CollectOptions(
        hooks=load_hooks(picker=picker), masked_marks=masked_by(on_recomputed), past_truncation=past_truncation
    )
    forecast = told.story.forecast(options, max_seq_len=budget)
    assert forecast == Outcome.of(told.story.collect(options, max_seq_len=budget))
    assert forecast.ledger.unaccounted == 0
