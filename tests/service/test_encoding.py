"""Which library encodes while a server runs.

1. `tokenizers` serves from the first turn; the fast encoder takes over once it was loaded and checked, a second later.
2. One that gives other ids, or cannot be loaded, never takes over: a warning says why.
3. While it serves, a text now and then is compared; the first difference ends it for good, with an error.
4. Comparing takes a bounded share of time.
5. A text that the fast encoder refuses is counted.
6. What is asked for by name and is not there, or is not equal, is refused at start.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from servicekit import assistant, build_kit, get_renderer, user
from turnkeeper.choices import TokenizerBackend
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.config.load import load
from turnkeeper.config.resolve import resolve
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.errors import ConfigError
from turnkeeper.metrics import Metrics
from turnkeeper.rendering import Renderer, build_renderer
from turnkeeper.rendering.tokenization import Encoder, FallbackEncoder, RefusedTextError
from turnkeeper.rendering.tokenization.fast_encoder import FastEncoder
from turnkeeper.server.base import Dependencies
from turnkeeper.server.build import build_parts
from turnkeeper.service import encoding
from turnkeeper.service.encoding import (
    COMPARE_INTERVAL_S,
    LOAD_DELAY_S,
    EncoderSelector,
    find_loader,
    plan_pause,
)
from turnkeeper.testing import ManualClock
from turnkeeper.tiny.checkpoint import shipped_checkpoint

TOKENIZER_JSON = (shipped_checkpoint() / "tokenizer.json").read_bytes()


class Turncoat:
    """Gives the right ids until told otherwise."""

    def __init__(self, inner: Encoder) -> None:
        self._inner = inner
        self.is_wrong = False
        self.is_refusing = False

    def encode(self, text: str) -> TokenIds:
        if self.is_refusing:
            raise RefusedTextError("no")
        ids = self._inner.encode(text)
        return freeze_ids([*ids[:-1], 0]) if self.is_wrong else ids


class Bench:
    """A keeper, and what it is told."""

    def __init__(self, make: Callable[[Encoder], Encoder]) -> None:
        self.renderer: Renderer = build_renderer(read_checkpoint(shipped_checkpoint()), "qwen3")
        self.tokenizer = self.renderer.tokenizer
        self.clock, self.metrics = ManualClock(), Metrics()
        self.fast = make(self.tokenizer.huggingface_encoder)
        self.keeper = EncoderSelector(self.renderer, lambda: self.fast, clock=self.clock, metrics=self.metrics)

    async def start(self) -> asyncio.Task[None]:
        """Run it until it waits for the first text, or is done."""
        task = asyncio.create_task(self.keeper.run())
        await self.clock.wait_for_sleepers(1)
        assert self.keeper.serving is TokenizerBackend.TOKENIZERS
        await self.clock.advance(LOAD_DELAY_S)
        waiting = asyncio.create_task(self.clock.wait_for_sleepers(1))
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return task

    def read(self, sample: str) -> float:
        found = re.search(rf"^{re.escape(sample)} (\S+)$", self.metrics.render().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0


async def test_the_fast_encoder_takes_over_once_it_was_checked() -> None:
    bench = Bench(Turncoat)
    task = await bench.start()
    assert bench.keeper.serving is TokenizerBackend.FASTOKENS
    assert isinstance(bench.tokenizer.encoder, FallbackEncoder)
    assert bench.read('turnkeeper_tokenizer{backend="fastokens"}') == 1
    assert bench.read('turnkeeper_tokenizer{backend="tokenizers"}') == 0
    task.cancel()


def make_wrong(inner: Encoder) -> Encoder:
    wrong = Turncoat(inner)
    wrong.is_wrong = True
    return wrong


async def test_one_that_gives_other_ids_never_takes_over(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(make_wrong)
    await (await bench.start())
    assert bench.tokenizer.encoder is bench.tokenizer.huggingface_encoder
    assert bench.keeper.serving is TokenizerBackend.TOKENIZERS
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "to tokenizers and" in record.getMessage()


async def test_one_that_cannot_be_loaded_never_takes_over(caplog: pytest.LogCaptureFixture) -> None:
    renderer = build_renderer(read_checkpoint(shipped_checkpoint()), "qwen3")
    clock = ManualClock()
    load_nothing = find_loader(TokenizerBackend.AUTO, b"{}")
    task = asyncio.create_task(EncoderSelector(renderer, load_nothing, clock=clock, metrics=Metrics()).run())
    await clock.wait_for_sleepers(1)
    await clock.advance(LOAD_DELAY_S)
    await task
    assert renderer.tokenizer.encoder is renderer.tokenizer.huggingface_encoder
    assert "does not support this tokenizer" in caplog.text


async def test_equal_texts_are_counted_and_it_goes_on_serving() -> None:
    bench = Bench(Turncoat)
    task = await bench.start()
    bench.tokenizer.encode("a text of a turn")
    assert isinstance(bench.tokenizer.encoder, FallbackEncoder)
    await bench.keeper.compare(bench.tokenizer.encoder)
    await bench.keeper.compare(bench.tokenizer.encoder)
    assert bench.read('turnkeeper_tokenizer_comparisons_total{outcome="equal"}') == 1, "there was one text"
    assert bench.keeper.serving is TokenizerBackend.FASTOKENS
    task.cancel()


async def test_the_first_difference_ends_it_for_good(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Turncoat)
    task = await bench.start()
    assert isinstance(bench.fast, Turncoat)
    bench.fast.is_wrong = True
    bench.tokenizer.encode("a text of a turn")
    await bench.clock.advance(COMPARE_INTERVAL_S)
    await task
    assert bench.tokenizer.encoder is bench.tokenizer.huggingface_encoder
    assert bench.keeper.serving is TokenizerBackend.TOKENIZERS
    assert bench.read('turnkeeper_tokenizer_comparisons_total{outcome="different"}') == 1
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert message.startswith("tokenizers encodes from now on: the fast encoder gave other ids from token ")
    assert "text" not in message, "the log has no words of agents"


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, 5.0), (0.007, 5.0), (0.5, 50.0), (2.0, 200.0)])
def test_comparing_takes_at_most_a_hundredth_of_the_time(took_s: float, pause_s: float) -> None:
    assert plan_pause(took_s) == pytest.approx(pause_s)


async def test_refused_texts_are_counted() -> None:
    bench = Bench(Turncoat)
    task = await bench.start()
    assert isinstance(bench.fast, Turncoat)
    bench.fast.is_refusing = True
    expected = bench.tokenizer.huggingface_encoder.encode("a text")
    assert bench.tokenizer.encode("a text").tolist() == expected.tolist()
    await bench.clock.advance(COMPARE_INTERVAL_S)
    assert bench.read("turnkeeper_tokenizer_refusals_total") == 1
    task.cancel()


def test_tokenizers_by_name_loads_nothing() -> None:
    assert find_loader(TokenizerBackend.TOKENIZERS, TOKENIZER_JSON) is None


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "find_spec", lambda name: None)


@pytest.mark.usefixtures("not_installed")
def test_without_the_package_tokenizers_serves() -> None:
    assert find_loader(TokenizerBackend.AUTO, TOKENIZER_JSON) is None


@pytest.mark.usefixtures("not_installed")
def test_asked_for_by_name_and_not_installed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"turnkeeper\[fast\]"):
        find_loader(TokenizerBackend.FASTOKENS, TOKENIZER_JSON)


@pytest.fixture
def options() -> dict[str, object]:
    return {
        "hf_checkpoint": str(shipped_checkpoint()),
        "tito_model": "qwen3",
        "backend_url": "http://127.0.0.1:9",
        "tokenizer_backend": "fastokens",
    }


async def test_asked_for_by_name_it_serves_from_the_start(options: dict[str, object]) -> None:
    parts = build_parts(resolve(load(options)))
    assert parts.backend.health.describe()["tokenizer"] == "fastokens"
    await parts.backend.lifecycle.close()


async def test_where_it_is_installed_it_takes_over_by_itself(options: dict[str, object]) -> None:
    clock = ManualClock()
    dependencies = Dependencies(clock=clock, token_bytes=bytes)
    parts = build_parts(resolve(load({**options, "tokenizer_backend": "auto"})), dependencies=dependencies)
    assert parts.backend.health.describe()["tokenizer"] == "tokenizers"
    task = asyncio.create_task(parts.encoders.run())
    await clock.wait_for_sleepers(1)
    await clock.advance(LOAD_DELAY_S)
    await clock.wait_for_sleepers(1)
    assert parts.backend.health.describe()["tokenizer"] == "fastokens"
    task.cancel()
    await parts.backend.lifecycle.close()


async def test_asked_for_by_name_and_not_equal_is_refused(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "turnkeeper.rendering.tokenization.fast_encoder.FastEncoder.encode", lambda self, text: freeze_ids([1])
    )
    with pytest.raises(ConfigError, match="fastokens is not used"):
        build_parts(resolve(load(options)))


async def play(before_turn: Callable[[int], None]) -> list[list[int]]:
    """The prompts that an engine gets in a session of four turns."""
    kit = build_kit()
    session_id = kit.create()
    messages = [user("first <|im_end|> \u00e9")]
    for number in range(4):
        before_turn(number)
        await kit.say(session_id, messages)
        messages = [*messages, assistant("ok"), user(f"and then? {number} <think> 'S\n\n")]
    return [call.request.prompt_ids.tolist() for call in kit.engine.calls]


async def test_the_ids_of_a_session_are_the_same_across_both_changes() -> None:
    tokenizer = get_renderer().tokenizer
    fast = FallbackEncoder(FastEncoder(TOKENIZER_JSON), tokenizer.huggingface_encoder)

    def change(number: int) -> None:
        tokenizer.encoder = fast if number in (1, 2) else tokenizer.huggingface_encoder

    prompts = await play(change)
    assert fast.take_kept() is not None, "it has encoded something"
    assert prompts == await play(lambda number: None)
    for earlier, later in pairwise(prompts):
        assert later[: len(earlier)] == earlier
