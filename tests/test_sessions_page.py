"""docs/guides/operating.md shows what the commands print of sessions.

1. Every block that begins with ``$ turnkeeper sessions``, ``show`` or ``explain`` is what the command prints of the
   session of `viewkit`; a failure shows the block that belongs there.
2. The page shows each of the three commands.
"""

import asyncio
import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from turnkeeper.cli.main import app
from turnkeeper.http.app import build_app
from turnkeeper.testing import running
from viewkit import tell_story

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "operating.md"
BLOCK = re.compile(r"^```\n\$ turnkeeper ((?:sessions|show|explain) .*)\n([\s\S]*?)^```$", re.MULTILINE)
SHOWN_URL, SHOWN_ID, SHOWN_REPLY = "http://127.0.0.1:30100", "9f3a62c41be04d7e8a5b0c1d2e3f4a5b", "chatcmpl-7d1e"


def run(command: str) -> str:
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, (command, result.output)
    return result.stdout


async def print_all(commands: list[str]) -> list[str]:
    """What the commands print, under the names that the page gives to what is drawn at random."""
    told = await tell_story()
    async with running(build_app(told.kit.backend)) as url:
        printed: list[str] = []
        for command in commands:
            meant = command.replace(SHOWN_URL, url).replace(SHOWN_ID, told.session_id)
            text = (await asyncio.to_thread(run, meant)).replace(url, SHOWN_URL).replace(told.session_id, SHOWN_ID)
            text = re.sub(r"chatcmpl-0+[0-9a-f]+", SHOWN_REPLY, text)
            printed.append(text)
        return printed


async def test_the_page_shows_what_the_commands_print() -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert {command.split()[0] for command, _ in blocks} == {"sessions", "show", "explain"}
    for (command, shown), printed in zip(blocks, await print_all([command for command, _ in blocks]), strict=True):
        assert shown == printed, command
