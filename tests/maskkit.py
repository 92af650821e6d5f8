"""Scripted engines that send sampling masks and remember them, and what samples must hold by what they remember.

::

    engine = MaskingEngine(script)
    ...                                      # turns, pauses, retries, branches
    assert engine.check(sample) == 7         # each mask of the sample is the engine's; 7 tokens have one

A token is known by the path that ends with it, so that whatever a server puts on another token is found.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from servicekit import get_renderer
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples import Sample
from turnkeeper.testing import RecordedRequest, ScriptedEngine, ScriptedReply, ScriptedVllm
from turnkeeper.testing.script import ScriptedTokens
from turnkeeper.testing.vllm import GENERATE

LISTS, LOGPROBS = "output_token_sampling_mask", "output_token_sampling_logprobs"
LENGTH = f"{LISTS}_length"
WITHOUT_MASKS = {LISTS: None, LOGPROBS: None, LENGTH: None}
"""Over a reply's meta data: SGLang leaves these out of a request that was aborted while it waited."""
MASKS: dict[str, Any] = {"use_rollout_sampling_mask": True, "tito_model": "qwen3"}
TRUNCATING = {"temperature": 0.7, "top_p": 0.9, "top_k": 40}


class Told:
    """What an engine said of each token that it sampled, by the path that ends with it."""

    def __init__(self) -> None:
        self._told: dict[bytes, tuple[list[int], float, float]] = {}

    def draw(self, prompt: Sequence[int], ids: Sequence[int]) -> list[list[int]]:
        """Make up a mask for each token by its place, so that no two that follow each other are alike."""
        places = range(len(prompt), len(prompt) + len(ids))
        return [
            [token, *(60 + (place + other) % 50 for other in range(place % 5))]
            for place, token in zip(places, ids, strict=True)
        ]

    def note(
        self,
        prompt: Sequence[int],
        ids: Sequence[int],
        *,
        masks: Sequence[list[int]] | None,
        logprobs: Sequence[float],
        full: Sequence[float],
    ) -> None:
        """Remember what was said of a reply's tokens; None stands for no masks."""
        path = [*prompt, *ids]
        for at in range(len(ids)):
            key = np.array(path[: len(prompt) + at + 1], "<i4").tobytes()
            self._told[key] = (masks[at] if masks is not None else [], logprobs[at], full[at])

    def check(self, sample: Sample, *, has_full: bool = True) -> int:
        """Compare each token of a sample's response with what was said of it, and count its masks."""
        ids, offsets = sample.rollout_sampling_mask_ids, sample.rollout_sampling_mask_offsets
        assert ids is not None
        assert offsets is not None
        assert len(offsets) == sample.response_length + 1
        start, masks = len(sample.tokens) - sample.response_length, 0
        full = sample.rollout_full_log_probs
        assert (full is not None) == has_full
        for at in range(sample.response_length):
            key = sample.tokens[: start + at + 1].astype("<i4").tobytes()
            mask, logprob, whole = self._told.get(key, ([], 0.0, 0.0))
            assert ids[offsets[at] : offsets[at + 1]].tolist() == mask
            assert sample.rollout_log_probs[at] == logprob
            assert full is None or full[at] == whole
            assert key in self._told or not sample.loss_mask[at]
            masks += bool(mask)
        return masks


def encode_text(text: str) -> list[int]:
    """The ids that the embedded engine's tokenizer has for a text."""
    return get_renderer().tokenizer.encode(text).tolist()


class MaskingEngine(ScriptedEngine):
    """Speaks SGLang's wires."""

    def __init__(self, *script: ScriptedReply, **options: Any) -> None:
        super().__init__(script, encode=encode_text, **options)
        self.told = Told()

    def render(
        self,
        request: RecordedRequest,
        asked: JsonObject,
        reply: ScriptedReply,
        sampled: ScriptedTokens,
        meta: JsonObject,
    ) -> JsonObject:
        full = [logprob or 0.0 for logprob in sampled.logprobs]
        masks, logprobs = None, full
        if LISTS in meta:
            masks, logprobs = self.told.draw(asked["input_ids"], sampled.ids), [each / 2 for each in full]
            meta = {**meta, LISTS: masks, LOGPROBS: logprobs}
        self.told.note(asked["input_ids"], sampled.ids, masks=masks, logprobs=logprobs, full=full)
        return super().render(request, asked, reply, sampled, meta)


class MaskingVllm(ScriptedVllm):
    """vLLM with ``--return-sampling-mask``: every reply of its generate route has masks, and logprobs within them."""

    def __init__(self, *script: ScriptedReply, **options: Any) -> None:
        super().__init__(script, encode=encode_text, **options)
        self.told = Told()

    def render(
        self,
        request: RecordedRequest,
        asked: JsonObject,
        reply: ScriptedReply,
        sampled: ScriptedTokens,
        meta: JsonObject,
    ) -> JsonObject:
        value = super().render(request, asked, reply, sampled, meta)
        masks, logprobs = (
            self.told.draw(asked["input_ids"], sampled.ids),
            [logprob or 0.0 for logprob in sampled.logprobs],
        )
        is_truncating = "top_k" in request.json.get("sampling_params", ())
        told = masks if is_truncating else None  # such masks are the whole vocabulary, and nobody keeps them
        self.told.note(asked["input_ids"], sampled.ids, masks=told, logprobs=logprobs, full=logprobs)
        if request.path == GENERATE:
            value["choices"][0]["sampling_mask"] = masks
        return value
