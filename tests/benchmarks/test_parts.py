"""The measurement of a turn's parts, at a small scale.

1. A conversation is as long as asked, and its next turn adds the same at every length.
2. Each part has as many steps as asked, and every one of them runs.
3. A step is timed or marked, and figures keep the order of the parts.
4. Callgrind's totals are read; without valgrind there is a message and the exit status 2.
"""

from pathlib import Path

import pytest
import typer

from benchmarks import parts
from benchmarks.conversation import Conversation
from benchmarks.steps import PARTS
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.rendering import Renderer, build_renderer
from turnkeeper.tiny.checkpoint import shipped_checkpoint


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return build_renderer(read_checkpoint(shipped_checkpoint()), "qwen3")


@pytest.fixture(scope="module")
def talk(renderer: Renderer) -> Conversation:
    return Conversation.hold(renderer, 4_000)


def test_a_conversation_is_as_long_as_it_is_asked_to_be(talk: Conversation) -> None:
    lengths = [turn.path_tokens for turn in talk.session.forest.turns]
    assert lengths[-2] < 4_000 <= lengths[-1]
    assert talk.session.live_leaves() == (len(lengths) - 1,)


def test_the_next_turn_adds_the_same_at_every_length(renderer: Renderer) -> None:
    short, long = (Conversation.hold(renderer, tokens) for tokens in (1_000, 4_000))
    added = [talk.begin(talk.write_body()).pending.appended for talk in (short, long)]
    assert added[0][0]["content"] == added[1][0]["content"]
    assert len(short.session.forest) < len(long.session.forest)


def test_the_next_turn_is_never_the_same_twice(talk: Conversation) -> None:
    assert talk.write_body() != talk.write_body()


@pytest.mark.parametrize("name", PARTS)
def test_every_step_of_a_part_runs(name: str, talk: Conversation) -> None:
    turns = len(talk.session.forest)
    steps = PARTS[name](talk, 2)
    assert len(steps) == 2
    for step in steps:
        step()
    assert len(talk.session.forest) == turns


def test_figures_come_in_the_order_of_the_parts(talk: Conversation) -> None:
    names = ["write the answer", "floor: copy the ids"]
    found = list(parts.run_parts(parts.time_steps, iter([talk]), names=names, count=2))
    assert [(figure.part, figure.tokens) for figure in found] == [(name, 4_000) for name in names]
    assert all(figure.value > 0 for figure in found)
    assert parts.render_figures(found, "ms", 3).row_count == 2


def test_marked_steps_lie_between_two_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(parts.os, "getppid", lambda: seen.append("mark"))
    parts.mark_steps([lambda: seen.append("step")] * 2)
    assert seen == ["mark", "step", "step", "mark"]


def test_a_dump_says_how_many_instructions_there_were() -> None:
    assert parts.read_total("events: Ir\nfn=(1) main\n16 400\n\ntotals: 123456\n") == 123456
    with pytest.raises(ValueError, match="no totals"):
        parts.read_total("events: Ir\n")


def test_without_valgrind_nothing_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parts, "which", lambda name: None)
    with pytest.raises(typer.Exit) as caught:
        parts.count_instructions(Path(), ["commit"], [4_000], 1)
    assert caught.value.exit_code == 2
    assert "valgrind is not installed" in capsys.readouterr().err
