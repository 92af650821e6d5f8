"""A small engine for tests: the shipped tokenizer, seeded weights of a small shape, requests in one line."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from turnkeeper.tiny.checkpoint import shipped_checkpoint
from turnkeeper.tiny.model import TinyModel, TinyShape, Weights, init_weights
from turnkeeper.tiny.scheduler import (
    Delta,
    EngineRequest,
    LiveRequest,
    Result,
    SamplingParams,
    Scheduler,
    Update,
    Vocabulary,
    WeightStamp,
)

SHAPE = TinyShape(hidden_size=32, num_hidden_layers=2, moe_intermediate_size=16, eos_token_id=2)
LONG_SHAPE = replace(SHAPE, max_position_embeddings=65_536)
"""With so many positions that a request in flight does not come to its end while a test looks away."""

WEIGHTS: tuple[Weights, ...] = (init_weights(SHAPE, 0), init_weights(SHAPE, 1))
"""Two checkpoints' weights, before and after an update."""

MODELS = tuple(TinyModel(SHAPE, weights) for weights in WEIGHTS)
TOKENIZER = Tokenizer.from_file(str(shipped_checkpoint() / "tokenizer.json"))
VOCABULARY = Vocabulary(TOKENIZER)


def write_small_checkpoint(folder: Path, weights: Weights = WEIGHTS[0], shape: TinyShape = SHAPE) -> Path:
    """A checkpoint folder of the small shape."""

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(shipped_checkpoint() / name, folder / name)
    (folder / "config.json").write_text(json.dumps(shape.as_config()))
    save_file({name: array.astype(np.float16) for name, array in weights.items()}, folder / "weights.safetensors")
    return folder


class Heard:
    """What one request was told."""

    def __init__(self) -> None:
        self.updates: list[Update] = []

    def __call__(self, update: Update) -> None:
        self.updates.append(update)

    @property
    def deltas(self) -> list[Delta]:
        return [update for update in self.updates if isinstance(update, Delta)]

    @property
    def result(self) -> Result:
        """The result, which came once and last."""
        assert [isinstance(update, Result) for update in self.updates].count(True) == 1
        last = self.updates[-1]
        assert isinstance(last, Result)
        return last


class Bench:
    """A scheduler, driven step by step."""

    def __init__(self, **options: Any) -> None:
        self.traced: list[tuple[LiveRequest, Result, list[WeightStamp]]] = []
        self.scheduler = Scheduler(
            MODELS[0],
            VOCABULARY,
            stop_ids=[SHAPE.eos_token_id],
            stamp=WeightStamp(version="v1", source="one"),
            trace=lambda live, result, stamps: self.traced.append((live, result, list(stamps))),
            **options,
        )
        self._count = 0

    def ask(
        self, prompt: Sequence[int], *, salt: str = "", stream: bool = False, has_masks: bool = False, **params: Any
    ) -> Heard:
        """Submit a request; it ignores the stop token unless told otherwise."""
        heard = Heard()
        self._count += 1
        sampling = SamplingParams(**{"ignore_eos": True, "max_new_tokens": 8, **params})
        request = EngineRequest(
            rid=f"r{self._count}",
            prompt_ids=np.array(prompt, np.int32),
            params=sampling,
            cache_salt=salt,
            is_streamed=stream,
            has_masks=has_masks,
        )
        self.scheduler.submit(request, heard)
        return heard

    def step(self, count: int) -> None:
        """So many steps, each of which has work."""
        for _ in range(count):
            assert self.scheduler.has_work
            self.scheduler.step()

    def finish(self) -> None:
        """Steps until no work is left."""
        while self.scheduler.has_work:
            self.scheduler.step()

    def run(self, prompt: Sequence[int], **options: Any) -> Result:
        """One request from beginning to end."""
        heard = self.ask(prompt, **options)
        self.finish()
        return heard.result

    def update(self, version: str = "v2") -> None:
        """Change to the second weights."""
        self.scheduler.set_model(MODELS[1], WeightStamp(version=version, source="two"))
