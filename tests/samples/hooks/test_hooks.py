"""Hooks: loading, running, checking.

1. Built-in names, import paths and the reference's own paths load; anything else is refused with the option.
2. Hooks see the reference's attribute names and lists.
3. A picker selects only; a postprocessor may mask, score and describe, on copies too; all else is a HookError (422)
   that names the hook.
4. Server-owned metadata cannot be overwritten.
5. Built-in hooks take samples as they were assembled: only hooks of a user get drafts in lists.
"""

import sys
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from samples.builders import TREE, Story, rows_of, spell
from samples.hookbox import score_copies
from turnkeeper.errors import ConfigError, HookError
from turnkeeper.samples import (
    Collection,
    CollectOptions,
    Hooks,
    Sample,
    collect,
    decode_samples,
    load_hooks,
    view_session,
)
from turnkeeper.samples.hooks import Hook, drop_retries, keep_siblings, reference_picker, run
from turnkeeper.samples.hooks.draft import DraftSample
from turnkeeper.samples.hooks.postprocessor import default_postprocess, non_positive_attempts, reference_postprocess

MILES = "miles.rollout.session.v2"


@pytest.mark.parametrize(
    ("path", "function"),
    [
        ("drop_retries", drop_retries),
        ("keep_siblings", keep_siblings),
        ("drop_retries_same_prompt", reference_picker.drop_retries_same_prompt),
        ("drop_rolled_back_leaves", reference_picker.drop_rolled_back_leaves),
        (f"{MILES}.picker_hub.drop_retries", reference_picker.drop_retries),
        (f"{MILES}.picker_hub.drop_retries.drop_retries", reference_picker.drop_retries),
        (f"{MILES}.picker_hub.drop_retries_same_prompt", reference_picker.drop_retries_same_prompt),
        (f"{MILES}.picker_hub.drop_same_prompt_retries", reference_picker.drop_retries_same_prompt),
        (f"{MILES}.picker_hub.drop_rolled_back_leaves", reference_picker.drop_rolled_back_leaves),
    ],
)
def test_a_picker_is_found_by_name(path: str, function: Callable[..., Any]) -> None:
    assert load_hooks(picker=path).picker.function is function


@pytest.mark.parametrize(
    ("path", "function"),
    [
        ("default_postprocess", default_postprocess),
        ("non_positive_attempts", non_positive_attempts),
        (f"{MILES}.postprocessor_hub.default_postprocess", reference_postprocess),
        (f"{MILES}.postprocessor_hub.default_postprocess.default_postprocess", reference_postprocess),
        (f"{MILES}.postprocessor_hub.non_positive_attempts", non_positive_attempts),
    ],
)
def test_a_postprocessor_is_found_by_name(path: str, function: Callable[..., Any]) -> None:
    assert load_hooks(postprocessor=path).postprocessor.function is function
    assert "miles" not in sys.modules


def test_a_hook_is_found_by_import_path() -> None:
    hooks = load_hooks(picker="samples.hookbox.first_only")
    assert hooks.picker.function.__name__ == "first_only"
    assert hooks.picker.name == "--session-sample-picker-path samples.hookbox.first_only"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.at_all", "cannot be imported"),
        ("samples.hookbox.missing", "cannot be imported"),
        ("unknown", "cannot be imported"),
        ("samples.brokenbox.any_hook", "cannot be imported: RuntimeError: no such file"),
        ("samples.hookbox.not_a_function", "must name a plain function"),
        ("samples.hookbox.awaited", "must name a plain function"),
    ],
    ids=["no-module", "no-attribute", "no-path", "raises", "no-function", "coroutine"],
)
def test_a_hook_that_cannot_be_used_is_refused_with_its_option(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_hooks(postprocessor=path)
    assert "--session-sample-postprocessor-path" in str(caught.value)


def _collect(picker: Callable[..., Any] | None = None, postprocessor: Callable[..., Any] | None = None) -> Collection:
    """Two leaves under one root: tokens 1 11 | 2 12 13 and 1 11 | 3 14; the second leaf is a branch."""
    story = Story(TREE)
    root = story.say([1], [11], rows=rows_of([1]))
    story.say([2], [12, 13], after=root, rows=rows_of([2, 3, 4]))
    story.say([3], [14], after=root, rows=rows_of([5, 6]))
    known = load_hooks(picker="samples.hookbox.keep_all")
    hooks = Hooks(
        picker=Hook(name="--pick mine", function=picker) if picker else known.picker,
        postprocessor=Hook(name="--post mine", function=postprocessor) if postprocessor else known.postprocessor,
    )
    return story.collect(CollectOptions(hooks=hooks), agent_metadata={"name": "calculator"})


def test_hooks_see_the_attributes_of_the_reference() -> None:
    """Names and defaults of the reference trainer's sample, with lists where it has lists."""
    seen: list[Any] = []
    _collect(picker=lambda samples, _: seen.extend(samples) or samples)
    sample = seen[0]
    assert {
        key: getattr(sample, key) for key in ("group_index", "index", "rollout_id", "label", "reward")
    } == dict.fromkeys(("group_index", "index", "rollout_id", "label", "reward"))
    assert (sample.prompt, sample.remove_sample, sample.non_generation_time) == ("", False, 0.0)
    for name in [
        "multimodal_inputs",
        "multimodal_train_inputs",
        "teacher_log_probs",
        "opd_reverse_kl",
        "generate_function_path",
        "train_metadata",
        "adapter",
        "reward_spec",
        "routing_key",
        "rollout_indexer_topk",
    ]:
        assert getattr(sample, name) is None
    assert sample.tokens == [1, 11, 2, 12, 13]
    assert sample.loss_mask == [1, 0, 1, 1]
    assert sample.rollout_log_probs == [-1.1, 0.0, -1.2, -1.3]
    assert sample.weight_versions == []
    assert (sample.response_length, sample.effective_response_length) == (4, 3)
    assert sample.rollout_routed_experts.dtype == np.int32
    assert sample.rollout_routed_experts is sample.rollout_routed_experts
    assert sample.metadata["leaf"] == {
        "node_id": 1,
        "parent": 0,
        "path_node_ids": [0, 1],
        "response_id": "chat-1",
    }
    assert sample.metadata["accumulated_token_ids"] == [1, 11, 2, 12, 13]
    assert sample.prefix_cache_info.prefix_cache_hit_rate == 0.0
    assert (sample.spec_info.spec_accept_rate, sample.spec_info.spec_accept_length) == (0.0, 0.0)


def test_hooks_see_lists_where_the_session_holds_arrays() -> None:
    seen: list[Any] = []

    def look(samples: list[Any], metadata: dict[str, Any]) -> list[Any]:
        seen.append(metadata["accumulated_token_ids"])
        return samples

    story = Story(TREE)
    story.say([1], [11])
    hooks = Hooks(picker=Hook(name="--pick mine", function=look), postprocessor=load_hooks().postprocessor)
    known = {**story.metadata(), "accumulated_token_ids": np.array([1, 11], np.int32)}
    collection = collect(
        view_session(story.session),
        session_metadata=known,
        session_ledger=story.session.ledger,
        decode=spell,
        options=CollectOptions(hooks=hooks),
    )
    assert seen == [[1, 11]]
    assert decode_samples(collection.encode().to_bytes()).session_metadata["accumulated_token_ids"] == [1, 11]


def _draft(**fields: Any) -> DraftSample:
    seen: list[Any] = []
    _collect(picker=lambda samples, _: seen.extend(samples) or samples)
    for name, value in fields.items():
        setattr(seen[0], name, value)
    return seen[0]


@pytest.mark.parametrize(
    ("fields", "ask", "answer"),
    [
        ({"loss_mask": None}, lambda sample: sample.effective_response_length, 4),
        ({"weight_versions": ["7", "default", "5"]}, lambda sample: sample.oldest_weight_version, 5),
        ({"weight_versions": ["default"]}, lambda sample: sample.oldest_weight_version, None),
        ({"reward": 2.0}, lambda sample: sample.get_reward_value(SimpleNamespace(reward_key=None)), 2.0),
        ({"reward": {"a": 3.0}}, lambda sample: sample.get_reward_value(SimpleNamespace(reward_key="a")), 3.0),
        ({}, lambda sample: sample.status == sample.Status.COMPLETED, True),
        ({}, lambda sample: sample.SpecInfo(spec_accept_token_num=1, spec_draft_token_num=2).spec_accept_rate, 0.5),
        ({}, lambda sample: sample.SpecInfo(completion_token_num=6, spec_verify_ct=2).spec_accept_length, 3.0),
        (
            {},
            lambda sample: sample.PrefixCacheInfo(cached_tokens=1, total_prompt_tokens=4).prefix_cache_hit_rate,
            0.25,
        ),
    ],
    ids=[
        "no-mask",
        "oldest",
        "no-number",
        "reward",
        "reward-key",
        "status",
        "accept-rate",
        "accept-length",
        "hit-rate",
    ],
)
def test_derived_attributes_of_the_reference_work(fields: dict[str, Any], ask: Any, answer: object) -> None:
    assert ask(_draft(**fields)) == answer


class ForeignStatus(Enum):
    """An enum as the reference defines its own."""

    COMPLETED = "completed"
    FAILED = "failed"


def test_a_status_equals_that_of_a_foreign_enum() -> None:
    status = _draft().status
    assert status == ForeignStatus.COMPLETED
    assert status == ForeignStatus.COMPLETED
    assert status != ForeignStatus.FAILED
    assert {status: 1}["completed"] == 1


def test_a_foreign_status_goes_on_the_wire_by_its_value() -> None:
    def fail(samples: list[Any], _: dict[str, Any]) -> list[Any]:
        for sample in samples:
            sample.status = ForeignStatus.FAILED
        return samples

    assert [sample.status.value for sample in _collect(postprocessor=fail).samples] == ["failed", "failed"]


def test_a_postprocessor_may_work_on_copies() -> None:
    collection = _collect(postprocessor=score_copies)
    first = next(sample for sample in collection.samples if len(sample.tokens) == 5)
    assert first.reward == {"score": 5.0, "agent": "calculator"}
    assert first.metadata["note"] == 4
    assert first.loss_mask.tolist() == [0, 0, 1, 1]
    assert collection.ledger.masked == {"hook": 1}
    assert first.metadata["turnkeeper"]["masked"] == [{"reason": "hook", "start": 0, "end": 1}]


def test_a_shorter_list_of_a_postprocessor_is_a_selection_too() -> None:
    collection = _collect(postprocessor=lambda samples, _: samples[:1])
    assert len(collection.samples) == 1
    assert collection.ledger.dropped == {"not_picked": 1}
    assert collection.ledger.unaccounted == 0


def test_server_owned_metadata_is_restored() -> None:
    def rewrite(samples: list[Any], _: dict[str, Any]) -> list[Any]:
        for sample in samples:
            sample.metadata = {**sample.metadata, "accumulated_token_ids": [], "turnkeeper": 0, "more": 1}
        return samples

    sample = _collect(postprocessor=rewrite).samples[0]
    assert sample.metadata["accumulated_token_ids"] == sample.tokens.tolist()
    assert set(sample.metadata["turnkeeper"]) >= {"turns", "versions", "masked", "label"}
    assert sample.metadata["more"] == 1


def _change(**fields: Any) -> Callable[..., Any]:
    def hook(samples: list[Any], _: dict[str, Any]) -> list[Any]:
        for name, value in fields.items():
            setattr(samples[0], name, value)
        return samples

    return hook


def _raise(samples: list[Any], _: dict[str, Any]) -> list[Any]:
    raise KeyError("agent")


def _exit(samples: list[Any], _: dict[str, Any]) -> list[Any]:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("picker", "message"),
    [
        (_exit, "--pick mine failed: SystemExit: 3"),
        (_raise, "--pick mine failed: KeyError: 'agent'"),
        (lambda samples, _: None, "must return a list of samples, got NoneType"),
        (lambda samples, _: [*samples, samples[0]], "returned one sample twice"),
        (lambda samples, _: [object()], "a sample that it was not given"),
        (_change(loss_mask=[0, 0, 0, 0]), "--pick mine changed a loss mask"),
    ],
    ids=["exits", "raises", "no-list", "twice", "invented", "masks"],
)
def test_a_picker_that_breaks_its_contract_is_named(picker: Callable[..., Any], message: str) -> None:
    with pytest.raises(HookError, match=message) as caught:
        _collect(picker=picker)
    assert caught.value.http_status == 422


@pytest.mark.parametrize(
    ("postprocessor", "message"),
    [
        (_raise, "--post mine failed: KeyError"),
        (lambda samples, _: 3, "must return a list of samples, got int"),
        (lambda samples, _: [object()], "something that is no sample it was given"),
        (lambda samples, _: [SimpleNamespace(metadata={"leaf": 3})], "something that is no sample"),
        (lambda samples, _: [samples[0], samples[0]], "returned one leaf twice"),
        (_change(tokens=[1, 11, 2, 12]), "tokens were changed"),
        (_change(rollout_log_probs=[0.0] * 4), "rollout_log_probs were changed"),
        (_change(rollout_log_probs=None), "rollout_log_probs were changed"),
        (_change(rollout_routed_experts=None), "rollout_routed_experts were changed"),
        (_change(loss_mask=[1, 0, 1]), "loss_mask must be 4 entries of 0 or 1"),
        (_change(loss_mask=[2, 0, 1, 1]), "loss_mask must be 4 entries of 0 or 1"),
        (_change(loss_mask=None), "loss_mask must be 4 entries of 0 or 1"),
        (_change(loss_mask=[1, 1, 1, 1]), "loss_mask is 1 at position 1, which was not sampled"),
        (_change(reward=float("nan")), "reward must be finite"),
        (_change(reward=np.float32("inf")), "reward must be finite, got inf"),
        (_change(reward={"a": float("nan")}), "reward must be finite"),
        (_change(reward={"a": np.float32("nan")}), "reward must be finite"),
        (_change(reward="good"), "reward must be a number, an object or None, got str"),
        (_change(status="odd"), "'odd' is not a valid SampleStatus"),
        (_change(weight_versions=None), "not iterable"),
    ],
    ids=[
        "raises",
        "no-list",
        "invented",
        "odd-leaf",
        "twice",
        "tokens",
        "logprobs",
        "no-logprobs",
        "rows",
        "short-mask",
        "mask-of-two",
        "no-mask",
        "trains-a-prompt",
        "nan-reward",
        "numpy-infinity",
        "nan-in-a-reward",
        "numpy-nan-in-a-reward",
        "text-reward",
        "status",
        "versions",
    ],
)
def test_a_postprocessor_that_breaks_its_contract_is_named(postprocessor: Callable[..., Any], message: str) -> None:
    with pytest.raises(HookError, match=message) as caught:
        _collect(postprocessor=postprocessor)
    assert "--post mine" in str(caught.value)


@pytest.mark.parametrize(
    ("reward", "sent"),
    [(np.float32(0.5), 0.5), (np.int64(2), 2), ({"a": np.float32(0.5), "b": 1}, {"a": 0.5, "b": 1}), (None, None)],
    ids=["float32", "int64", "named", "none"],
)
def test_a_hook_may_give_numbers_of_numpy(reward: object, sent: object) -> None:
    payload = _collect(postprocessor=_change(reward=reward)).encode().to_bytes()
    assert decode_samples(payload).samples[0].reward == sent


def test_a_hook_cannot_train_what_bad_rows_masked() -> None:
    story = Story(TREE)
    story.say([1], [11, 12], rows=rows_of([1, 2]), marks={"bad_rows_from": 1})
    hooks = Hooks(
        picker=load_hooks().picker, postprocessor=Hook(name="--post mine", function=_change(loss_mask=[1, 1]))
    )
    with pytest.raises(HookError, match="at position 1, which is masked: bad_rows"):
        story.collect(CollectOptions(hooks=hooks))


def test_rows_that_a_hook_read_are_still_those_of_the_assembly() -> None:
    def read(samples: list[Any], _: dict[str, Any]) -> list[Any]:
        assert samples[0].rollout_routed_experts.shape == (len(samples[0].tokens) - 1, 1, 1)
        samples[0].rollout_routed_experts = samples[0].rollout_routed_experts.copy()
        return samples

    sample: Sample = _collect(postprocessor=read).samples[0]
    assert sample.rollout_routed_experts is not None
    assert sample.rollout_routed_experts.dtype == np.uint8


def test_a_sample_of_another_class_is_taken_by_its_attributes() -> None:
    def rebuild(samples: list[Any], _: dict[str, Any]) -> list[Any]:
        names = [
            "tokens",
            "rollout_log_probs",
            "rollout_routed_experts",
            "loss_mask",
            "response",
            "status",
            "weight_versions",
            "reward",
            "metadata",
        ]
        return [SimpleNamespace(**{name: getattr(sample, name) for name in names}) for sample in samples]

    plain, rebuilt = _collect(), _collect(postprocessor=rebuild)
    assert [sample.tokens.tolist() for sample in plain.samples] == [
        sample.tokens.tolist() for sample in rebuilt.samples
    ]


@pytest.mark.parametrize("postprocessor", ["default_postprocess", "non_positive_attempts"])
@pytest.mark.parametrize("picker", ["drop_retries", "keep_siblings", "drop_retries_same_prompt"])
def test_built_in_hooks_need_no_drafts(monkeypatch: pytest.MonkeyPatch, picker: str, postprocessor: str) -> None:
    monkeypatch.setattr(run, "DraftSample", None)
    story = Story(TREE)
    root = story.say([1], [11])
    story.say([2], [12], after=story.say([3], [13], after=root))
    options = CollectOptions(hooks=load_hooks(picker=picker, postprocessor=postprocessor))
    collection = story.collect(options, agent_metadata={"non_positive_advantage_response_ids": ["chat-0"]})
    assert [sample.tokens.tolist() for sample in collection.samples] == [[1, 11, 3, 13, 2, 12]]


def test_a_built_in_picker_makes_drafts_of_the_picked_leaves_alone() -> None:
    seen: list[Any] = []
    story = Story(TREE)
    root = story.say([1], [11])
    story.say([2], [12], after=root, text="again")
    story.say([2], [13], after=root, text="again")
    hook = Hook(name="--post mine", function=lambda samples, _: seen.extend(samples) or samples)
    story.collect(CollectOptions(hooks=Hooks(picker=load_hooks().picker, postprocessor=hook)))
    assert [sample.tokens for sample in seen] == [[1, 11, 2, 13]]


@pytest.mark.parametrize("reward", ["much", float("nan"), [1.0]])
def test_a_reward_of_no_number_names_the_built_in_hook_and_the_leaf(reward: Any) -> None:
    story = Story(TREE)
    story.say([1], [11])
    with pytest.raises(HookError, match="default_postprocess: sample of leaf 0: reward must be"):
        story.collect(agent_metadata={"reward": reward})


def test_a_hook_of_a_user_may_call_a_built_in_one() -> None:
    def wrapped(samples: list[Any], metadata: dict[str, Any]) -> list[Any]:
        finished = default_postprocess(samples, metadata)
        assert all(isinstance(sample.loss_mask, list) for sample in finished)
        assert {type(value) for sample in finished for value in sample.loss_mask} == {int}
        return finished

    masks = [sample.loss_mask.tolist() for sample in _collect(postprocessor=wrapped).samples]
    assert masks == [[1, 0, 1, 1], [0, 0, 1]]
