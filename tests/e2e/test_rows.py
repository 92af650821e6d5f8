"""Routing rows as the embedded engine computes them.

1. Increments and whole payloads of one conversation give identical tensors: the experts of one forward over the path,
   written from its definition.
2. After a weight update the rows of the turns before it stay those of the weights that sampled them; the newest
   payload instead, where that is asked for, is all of the new weights.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from channelkit import rows_of_turn
from samples.builders import LINEAR, Story
from tiny.builders import SHAPE, WEIGHTS, write_small_checkpoint
from tiny.oracle import naive_forward
from turnkeeper.channels.routing import RoutingShape, plan_rows, take_patch
from turnkeeper.choices import RowsKept
from turnkeeper.core import Turn
from turnkeeper.testing import running
from turnkeeper.tiny.engine import EngineOptions, TinyEngine
from turnkeeper.tiny.server import build_app

ROUTING = RoutingShape(layers=SHAPE.num_hidden_layers, topk=SHAPE.num_experts_per_tok, experts=SHAPE.num_experts)
TURNS = (([5, 6, 7, 8], 0), ([9, 10], 0), ([11, 12, 13], 1), ([14], 0))
"""What each turn appends, and how many ids of its parent it trims."""


def compute_rows(ids: list[int], weights: int) -> np.ndarray:
    """The rows of a path under one checkpoint, by the oracle."""
    stored = {name: array.astype(np.float16) for name, array in WEIGHTS[weights].items()}
    return naive_forward(SHAPE, stored, ids[:-1])[1]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("weights")
    return write_small_checkpoint(folder / "0", WEIGHTS[0]), write_small_checkpoint(folder / "1", WEIGHTS[1])


@dataclass(kw_only=True)
class Conversation:
    """Turns on an engine, recorded as a session records them."""

    client: httpx.AsyncClient
    use_addition_r3: bool
    kept: RowsKept = RowsKept.DECODE
    story: Story = field(default_factory=lambda: Story(LINEAR))
    ids: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    """Rows that each turn's payload computed otherwise than they are held."""
    last: Turn | None = None

    async def say(self, appended: list[int], trim: int) -> None:
        prompt = self.ids[: len(self.ids) - trim] + appended
        request = plan_rows(
            parent_tokens=len(self.ids), common_prefix=len(self.ids) - trim, use_addition_r3=self.use_addition_r3
        )
        start = {} if request.start_len is None else {"routed_experts_start_len": request.start_len}
        reply = await self._generate({"input_ids": prompt, "return_routed_experts": True, **start})
        sampled = [entry[1] for entry in reply["output_token_logprobs"]]
        patch = take_patch(
            reply["routed_experts"],
            request=request,
            shape=ROUTING,
            prompt_tokens=len(prompt),
            completion_tokens=len(sampled),
            held=[rows_of_turn(turn.completion) for turn in self.story.session.forest.turns],
            kept=self.kept,
        )
        self.last = self.story.say(appended, sampled, after=self.last, trim=trim, rows=patch.rows)
        self.ids = prompt + sampled
        self.changed.append(patch.changed_rows)

    async def _generate(self, fields: dict[str, Any]) -> dict[str, Any]:
        sampling = {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}
        reply = await self.client.post(
            "/generate", json={**fields, "return_logprob": True, "sampling_params": sampling}
        )
        return reply.raise_for_status().json()["meta_info"]

    def rows(self) -> np.ndarray:
        """What the sample carries."""
        (sample,) = self.story.collect().samples
        assert sample.tokens.tolist() == self.ids
        assert sample.rollout_routed_experts is not None
        return sample.rollout_routed_experts


Start = Callable[..., Any]


@pytest.fixture
def start(checkpoints: tuple[Path, Path]) -> Start:
    """A conversation on an engine of its own."""

    @asynccontextmanager
    async def starting(**options: Any) -> AsyncGenerator[Conversation]:
        engine = TinyEngine(EngineOptions(checkpoint=checkpoints[0]))
        async with running(build_app(engine)) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
            yield Conversation(client=client, **options)

    return starting


async def test_increments_and_whole_payloads_give_the_rows_of_one_forward(start: Start) -> None:
    found: list[Conversation] = []
    for use_addition_r3 in (True, False):
        async with start(use_addition_r3=use_addition_r3) as talk:
            for appended, trim in TURNS:
                await talk.say(appended, trim)
            found.append(talk)
    increments, whole = found
    assert increments.ids == whole.ids
    assert increments.changed == whole.changed == [0, 0, 0, 0]
    assert increments.rows().tolist() == compute_rows(increments.ids, 0).tolist()
    assert whole.rows().tobytes() == increments.rows().tobytes()


@pytest.mark.parametrize("kept", list(RowsKept))
async def test_rows_are_those_of_the_weights_that_sampled(
    start: Start, checkpoints: tuple[Path, Path], kept: RowsKept
) -> None:
    async with start(use_addition_r3=False, kept=kept) as talk:
        for appended, trim in TURNS[:2]:
            await talk.say(appended, trim)
        before = len(talk.ids) - 1
        update = {"model_path": str(checkpoints[1]), "weight_version": "2", "flush_cache": True}
        (await talk.client.post("/update_weights_from_disk", json=update)).raise_for_status()
        for appended, trim in TURNS[2:]:
            await talk.say(appended, trim)
    old, new = compute_rows(talk.ids[: before + 1], 0), compute_rows(talk.ids, 1)
    assert talk.changed[2] == (old != new[:before]).any(axis=(1, 2)).sum() > 0
    rows = talk.rows()
    if kept is RowsKept.LATEST:
        assert rows.tolist() == new.tolist()
    else:
        assert rows.tolist() == [*old.tolist(), *new[before:].tolist()]
