"""The guide to agents has users type what the scenarios of ``make test-clients`` type.

1. The settings in a client's section are those that its scenarios are played with.
2. Its commands set every variable of the scenarios, hold every flag, and close stdin.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from clientkit import Run
from deskkit import ROOT, Desk, open_claude_code, open_codex, open_opencode, open_pi, open_qwen_code

pytestmark = pytest.mark.clients

GUIDE = (ROOT / "docs" / "guides" / "agents.md").read_text(encoding="utf-8")
SET = {"$SESSION": "SESSION", "$KEY": "none", '"KEY"': '"none"'}
"""What the guide's names stand for here."""
PLACES = ("CODEX_HOME", "OPENCODE_CONFIG")
"""Where settings lie, which a user may choose."""
RUN = Run(mode="chat", history="tree", session="/sessions/x", url="SESSION")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the guide says of one client."""

    title: str
    open_desk: Callable[[Run, Path], Desk]
    settings: tuple[str, str] = ("", "")
    """The language of the block that holds its settings, and their file under the desk's folder."""

    def blocks(self, language: str) -> list[str]:
        """The code of the section in one language."""
        found = re.search(rf"^### {re.escape(self.title)}$(.*?)(?=^##)", GUIDE, re.MULTILINE | re.DOTALL)
        assert found is not None
        code = found[1]
        for name, value in SET.items():
            code = code.replace(name, value)
        return re.findall(rf"```{language}\n(.*?)```", code, re.DOTALL)


SECTIONS = [
    Section(title="Claude Code", open_desk=open_claude_code),
    Section(title="Codex", open_desk=open_codex, settings=("toml", "home/.codex/config.toml")),
    Section(title="qwen-code", open_desk=open_qwen_code),
    Section(title="opencode", open_desk=open_opencode, settings=("json", "opencode.json")),
    Section(title="pi", open_desk=open_pi, settings=("json", "home/.pi/agent/models.json")),
]


@pytest.mark.parametrize("section", [each for each in SECTIONS if each.settings[0]], ids=lambda each: each.title)
def test_the_settings_are_those_of_the_scenarios(section: Section, tmp_path: Path) -> None:
    section.open_desk(RUN, tmp_path)
    language, file = section.settings
    parse = tomllib.loads if language == "toml" else json.loads
    assert parse(section.blocks(language)[0]) == parse((tmp_path / file).read_text())


@pytest.mark.parametrize("section", SECTIONS, ids=lambda each: each.title)
def test_the_commands_are_those_of_the_scenarios(section: Section, tmp_path: Path) -> None:
    desk = section.open_desk(RUN, tmp_path)
    typed = [shlex.split(line, comments=True) for block in section.blocks("sh") for line in block.splitlines()]
    told = dict(word.split("=", 1) for words in typed if words[:1] == ["export"] for word in words[1:])
    needed = {name: value for name, value in desk.environment.items() if name not in PLACES}
    assert needed.items() <= told.items()
    commands = [words for words in typed if words[:1] == [desk.program.name]]
    assert len(commands) >= 2
    for words in commands:
        assert {*desk.flags} <= {*words}, words
        assert words[-2:] == ["<", "/dev/null"], words
