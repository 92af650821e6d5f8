"""The measurement of rendering, at a small scale: it runs, and it can fail.

1. Every step is measured, and a goal that is missed makes the exit status 1.
2. A path built for it is what its messages say.
"""

from pathlib import Path

import pytest
import typer

from turnkeeper.bench import rendering
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.rendering import Renderer, build_renderer
from turnkeeper.tiny.checkpoint import shipped_checkpoint


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


def test_a_goal_that_is_missed_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = rendering.Figure(name="slow", value_ms=2.0, goal_ms=1.0)
    monkeypatch.setattr(rendering, "run", lambda renderer: [slow])
    with pytest.raises(typer.Exit) as caught:
        rendering.main()
    assert caught.value.exit_code == 1
