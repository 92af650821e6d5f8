"""The measurement of rendering, at a small scale: it runs, and it can fail.

1. Every step is measured, and a goal that is missed makes the exit status 1.
2. A path built for it is what its messages say.
3. Both tokenizers are timed on the same texts, the fast one after it was checked.
"""

from pathlib import Path

import pytest
import typer

from benchmarks import rendering
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.rendering import Renderer, build_renderer
from turnkeeper.tiny.checkpoint import shipped_checkpoint

TOKENIZER_JSON = (shipped_checkpoint() / "tokenizer.json").read_bytes()


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return build_renderer(read_checkpoint(Path(str(shipped_checkpoint()))), "qwen3")


def test_every_turn_is_timed(renderer: Renderer) -> None:
    times = rendering.measure_turns(renderer, turns=5)
    assert len(times) == 5
    assert min(times) > 0


def test_a_path_is_what_its_messages_say(renderer: Renderer) -> None:
    messages, ids = rendering.build_path(renderer, tokens=2000)
    assert len(ids) > 2000
    assert renderer.compare(messages, [rendering.LOOK], {}, ids) == ()


def test_both_tokenizers_are_timed_on_texts_that_are_long_enough(renderer: Renderer) -> None:
    pieces = rendering.list_pieces()
    assert len(pieces) > 50
    assert {len(piece) for piece in pieces} == {rendering.PIECE}
    assert rendering.time_pieces(renderer.tokenizer.huggingface_encoder, pieces[:3]) > 0


def test_the_fast_tokenizer_is_checked_before_it_is_timed(renderer: Renderer) -> None:
    names = [figure.name for figure in rendering.compare_encoders(renderer, TOKENIZER_JSON)]
    assert names[1] == "check it on every probe: equal"
    assert names[2:] == ["encode 4,500 characters, tokenizers", "encode 4,500 characters, fastokens"]


def test_a_goal_that_is_missed_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = rendering.Figure(name="slow", value_ms=2.0, goal_ms=1.0)
    monkeypatch.setattr(rendering, "run", lambda renderer: [slow])
    monkeypatch.setattr(rendering, "compare_encoders", lambda renderer, tokenizer_json: [])
    with pytest.raises(typer.Exit) as caught:
        rendering.main()
    assert caught.value.exit_code == 1
