"""The run of a server's hooks over assembled leaves, and the checks of what hooks of the user return.

Built-in hooks take arrays and keep their contract, so nothing is compared behind them. Hooks of the user run on drafts;
whatever such a hook does wrong is a HookError that names it. Nothing here knows the wire.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from turnkeeper.channels import CHANNELS
from turnkeeper.errors import AssemblyError, HookError
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject, is_object
from turnkeeper.samples.assemble import MASK_REASONS, AssembledPath
from turnkeeper.samples.hooks.draft import ArrayDraft, DraftSample
from turnkeeper.samples.hooks.hook import Hook, Hooks
from turnkeeper.samples.sample import OWNED_KEYS, Reward, Sample, SampleStatus


def run_hooks(
    hooks: Hooks, paths: Mapping[TurnId, AssembledPath], session_metadata: JsonObject
) -> list[tuple[AssembledPath, Sample]]:
    """Call the picker and then the postprocessor, and check what hooks of the user return.

    Built-in hooks keep their contract: they take samples as they are assembled, in arrays, and nothing is compared
    afterwards.

    Args:
        hooks: both functions.
        paths: by the number of the leaf's turn, in commit order.
        session_metadata: what hooks may read; each gets a copy of the outer object.

    Returns:
        The finished samples in the hooks' order, each with the path it was made from.

    Raises:
        HookError: a hook raised, or broke its contract.
    """
    if not hooks.picker.is_built_in:
        drafts = _draft(paths.values())
        picked = _pick(hooks.picker, drafts, session_metadata)
        return _postprocess(hooks.postprocessor, picked, paths, session_metadata)
    by_sample = {id(path.sample): path for path in paths.values()}
    samples = [path.sample for path in paths.values()]
    kept = [by_sample[id(sample)] for sample in _call(hooks.picker, samples, session_metadata)]
    if hooks.postprocessor.is_built_in:
        return _postprocess_arrays(hooks.postprocessor, kept, session_metadata)
    return _postprocess(hooks.postprocessor, list(_draft(kept)), paths, session_metadata)


def _draft(paths: Iterable[AssembledPath]) -> Mapping[DraftSample, AssembledPath]:
    return {DraftSample(path, dict(path.sample.metadata)): path for path in paths}


def _pick(
    hook: Hook, drafts: Mapping[DraftSample, AssembledPath], session_metadata: JsonObject
) -> Sequence[DraftSample]:
    """Call a picker of the user on drafts."""
    picked = _call(hook, list(drafts), _spell_lists(session_metadata))
    _check_subset(hook, picked, list(drafts))
    for draft, assembled in drafts.items():
        if draft.loss_mask != assembled.sample.loss_mask.tolist():
            raise HookError(f"{hook.name} changed a loss mask; a picker only selects")
    return picked


def _postprocess(
    hook: Hook, picked: Sequence[DraftSample], paths: Mapping[TurnId, AssembledPath], session_metadata: JsonObject
) -> list[tuple[AssembledPath, Sample]]:
    """Call any postprocessor on drafts, which hooks of the user have seen."""
    finished: list[tuple[AssembledPath, Sample]] = []
    for draft in _call(hook, picked, _spell_lists(session_metadata)):
        assembled = paths[_find_leaf(hook, draft, picked)]
        finished.append((assembled, _finish(hook, draft, assembled)))
    if len({id(assembled) for assembled, _ in finished}) != len(finished):
        raise HookError(f"{hook.name} returned one leaf twice")
    return finished


def _postprocess_arrays(
    hook: Hook, picked: Sequence[AssembledPath], session_metadata: JsonObject
) -> list[tuple[AssembledPath, Sample]]:
    """Call a built-in postprocessor on what a built-in picker picked."""
    drafts: list[ArrayDraft] = _call(hook, [ArrayDraft.of(path.sample) for path in picked], session_metadata)
    return [(path, _finish_arrays(hook, draft, path)) for path, draft in zip(picked, drafts, strict=True)]


def _finish_arrays(hook: Hook, draft: ArrayDraft, assembled: AssembledPath) -> Sample:
    origin = assembled.sample
    try:
        reward = _check_reward(draft.reward)
    except ValueError as error:
        raise _refuse(hook, assembled, str(error)) from error
    metadata = _restore_owned(draft.metadata, origin.metadata)
    return replace(origin, loss_mask=draft.loss_mask, reward=reward, metadata=metadata)


def _refuse(hook: Hook, assembled: AssembledPath, problem: str) -> HookError:
    leaf = assembled.stretches[-1].turn.id
    return HookError(f"{hook.name}: sample of leaf {leaf}: {problem}", hook=hook.name, leaf=int(leaf))


def _spell_lists(metadata: JsonObject) -> JsonObject:
    """Replace arrays by lists, which hooks expect."""
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in metadata.items()}


def _call(hook: Hook, samples: Sequence[Any], session_metadata: JsonObject) -> list[Any]:
    try:
        result = hook.function(list(samples), dict(session_metadata))
    except (Exception, SystemExit) as error:  # a hook that exits must not end the server
        raise HookError(f"{hook.name} failed: {type(error).__name__}: {error}", hook=hook.name) from error
    if not isinstance(result, list | tuple):
        raise HookError(f"{hook.name} must return a list of samples, got {type(result).__name__}", hook=hook.name)
    return list(result)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType] - checked by the callers


def _check_subset(hook: Hook, picked: Sequence[object], leaves: Sequence[object]) -> None:
    known, seen = {id(leaf) for leaf in leaves}, {id(sample) for sample in picked}
    if not seen <= known:
        raise HookError(f"{hook.name} returned a sample that it was not given; a picker only selects", hook=hook.name)
    if len(seen) != len(picked):
        raise HookError(f"{hook.name} returned one sample twice", hook=hook.name)


def _find_leaf(hook: Hook, draft: Any, picked: Sequence[DraftSample]) -> TurnId:
    """Find the leaf that a returned sample belongs to; a copy of a sample is taken like the sample itself."""
    metadata: object = getattr(draft, "metadata", None)
    leaf: object = metadata.get("leaf") if isinstance(metadata, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    number: object = leaf.get("node_id") if isinstance(leaf, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    for sample in picked:
        if sample is draft or sample.metadata["leaf"]["node_id"] == number:
            return sample.metadata["leaf"]["node_id"]
    raise HookError(f"{hook.name} returned something that is no sample it was given: {draft!r:.200}", hook=hook.name)


def _finish(hook: Hook, draft: Any, assembled: AssembledPath) -> Sample:
    """Make a sample of a draft again; the arrays that no hook may change are those of the assembly."""
    origin = assembled.sample
    refuse = partial(_refuse, hook, assembled)

    try:
        for name in ("tokens", "rollout_log_probs"):
            if not np.array_equal(getattr(draft, name), getattr(origin, name)):
                raise refuse(f"{name} were changed; a hook may mask, score and describe, not rewrite")
        for tensor in CHANNELS.tensors:
            if not _has_tensor_of(draft, origin, tensor.name):
                raise refuse(f"{tensor.name} were changed")
        mask = np.asarray(draft.loss_mask)
        if mask.shape != origin.loss_mask.shape or not np.isin(mask, (0, 1)).all():
            raise refuse(f"loss_mask must be {origin.response_length} entries of 0 or 1")
        raised = np.flatnonzero(mask.astype(bool) & (origin.loss_mask == 0))
        if raised.size:
            raise refuse(f"loss_mask is 1 at position {raised[0]}, {_say_why_masked(assembled, int(raised[0]))}")
        return Sample(
            tokens=origin.tokens,
            loss_mask=mask.astype(np.uint8),
            rollout_log_probs=origin.rollout_log_probs,
            response=str(draft.response),
            status=SampleStatus(draft.status.value if isinstance(draft.status, Enum) else draft.status),
            tensors=origin.tensors,
            weight_versions=tuple(draft.weight_versions),
            prefix_cache_info=origin.prefix_cache_info,
            spec_info=origin.spec_info,
            reward=_check_reward(draft.reward),
            metadata=_restore_owned(dict(draft.metadata), origin.metadata),
        )
    except AssemblyError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise refuse(str(error)) from error


def _has_tensor_of(draft: Any, origin: Sample, name: str) -> bool:
    found: Any = draft.find_tensor(name) if isinstance(draft, DraftSample) else getattr(draft, name, None)
    stored: Any = origin.tensors.get(name)
    return found is stored or np.array_equal(found, stored)


def _say_why_masked(assembled: AssembledPath, position: int) -> str:
    code = int(assembled.reasons_R[position])
    return f"which is masked: {MASK_REASONS[code - 1]}" if code else "which was not sampled"


def _check_reward(reward: Any) -> Reward | None:
    """Return the reward, with numbers of numpy as plain numbers."""
    if is_object(reward):
        return {name: _spell_number(number) for name, number in reward.items()}
    number = _spell_number(reward)
    if number is None or isinstance(number, int | float):
        return number
    raise ValueError(f"reward must be a number, an object or None, got {type(number).__name__}")


def _spell_number(value: Any) -> Any:
    number: Any = value
    if isinstance(value, np.integer | np.floating):
        number = float(value) if isinstance(value, np.floating) else int(value)  # pyright: ignore[reportUnknownArgumentType] - of any width
    if isinstance(number, float) and not isfinite(number):
        raise ValueError(f"reward must be finite, got {number}")
    return number


def _restore_owned(metadata: JsonObject, origin: JsonObject) -> JsonObject:
    kept = {key: value for key, value in metadata.items() if key not in OWNED_KEYS}
    return kept | {key: origin[key] for key in OWNED_KEYS if key in origin}
