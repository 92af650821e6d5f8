"""Claude Code's tool search, and pictures that tools give; ``make test-clients`` installs and plays the clients.

1. A turn that loads a tool extends the path, and the tool is among the turn's tools from then on.
2. Under ``--on-image omit`` a placeholder stands in the place of each picture, the turn has a note, and the episode
   goes on: every turn extends the last. qwen-code, which sends no pictures to a model that it does not know, is not
   played at that.
"""

import json
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import pack

import pytest

from clientkit import DRIVERS, Run, get_session, read_text
from deskkit import Desk, open_claude_code, open_codex, open_opencode, open_pi, open_run
from scenariokit import Scenarios, check_scenario, get_family
from turnkeeper.jsontypes import JsonObject

pytestmark = pytest.mark.clients


def draw_png() -> bytes:
    """A red square of 8 by 8 pixels."""
    rows = (b"\0" + b"\xff\0\0" * 8) * 8
    chunks = [(b"IHDR", pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    body = b"".join(pack(">I", len(data)) + name + data + pack(">I", zlib.crc32(name + data)) for name, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


def name_tools(tools: Sequence[JsonObject]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def add_server(desk: Desk) -> list[str]:
    """Flags that give the agent the tools of ``drivers/mcp_server.py``."""
    server = {"command": sys.executable, "args": [str(DRIVERS / "mcp_server.py")]}
    settings = desk.folder / "mcp.json"
    settings.write_text(json.dumps({"mcpServers": {"scale": server}}))
    return ["--mcp-config", str(settings)]


WEIGH, PICTURE = "mcp__scale__weigh", "mcp__scale__picture"


@pytest.mark.parametrize("family", ["tiny", "qwen36", "gptoss"])
async def test_tools_that_are_searched_for_extend_the_path(family: str, tmp_path: Path) -> None:
    stage = Scenarios(
        renderer=get_family(family),
        scripts={
            "search": [
                [("ToolSearch", {"query": f"select:{WEIGH}"}), ("Bash", {"command": "echo apple"})],
                [(WEIGH, {"thing": "apple"})],
                [("ToolSearch", {"query": "scale", "max_results": 5})],
                [(WEIGH, {"thing": "pear"}), (WEIGH, {"thing": "plum"})],
                "search is over.",
            ],
            "again": [[(WEIGH, {"thing": "fig"})], "again is over."],
            "after": [[("ToolSearch", {"query": f"select:{WEIGH}"})], [(WEIGH, {"thing": "date"})], "after is over."],
        },
    )
    async with stage.serve() as site:
        run = await open_run(site, "messages")
        desk = open_claude_code(run, tmp_path)
        flags = [*add_server(desk), *desk.flags]
        search = {"ENABLE_TOOL_SEARCH": "true"}
        assert "search is over." in await desk.run("-p", "Please (task search)", *flags, environment=search)
        resume = ["--continue", "-p", "Please (task again)", *flags]
        assert "again is over." in await desk.run(*resume, environment=search)
        await check_scenario(site, run, stage, main_roots=1)
        loaded = [name_tools(turn.request.loaded_tools) for turn in get_session(site, run).forest.turns]
        assert loaded == [[], [WEIGH], [WEIGH], [WEIGH, PICTURE], [WEIGH, PICTURE], [WEIGH, PICTURE], [WEIGH, PICTURE]]
        assert all(WEIGH in name_tools(call.json["tools"]) for call in site.engine.generations[1:])
        assert "fig: 417 g" in read_text(site.engine.generations[-1].json["messages"][-1])
        await desk.run("--continue", "-p", "/compact", *flags, environment=search)
        resume = ["--continue", "-p", "Please (task after)", *flags]
        assert "after is over." in await desk.run(*resume, environment=search)
        await check_scenario(site, run, stage, main_roots=2, sides=1)


PLACEHOLDER = "[image omitted: this model reads text only]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """How a client that believes its model to see pictures is played."""

    api: str
    open_desk: Callable[[Run, Path], Desk]
    begin: tuple[str, ...]
    resume: tuple[str, ...]
    look: tuple[str, str]
    """Its tool that reads a picture, and that tool's parameter."""


CLIENTS = {
    "claude-code": Client(
        api="messages",
        open_desk=open_claude_code,
        begin=("-p",),
        resume=("--continue", "-p"),
        look=("Read", "file_path"),
    ),
    "codex": Client(
        api="responses",
        open_desk=open_codex,
        begin=("exec",),
        resume=("exec", "resume", "--last"),
        look=("view_image", "path"),
    ),
    "opencode": Client(
        api="chat",
        open_desk=partial(open_opencode, sees=True),
        begin=("run",),
        resume=("run", "--continue"),
        look=("read", "filePath"),
    ),
    "pi": Client(
        api="chat",
        open_desk=partial(open_pi, sees=True),
        begin=("-p",),
        resume=("--continue", "-p"),
        look=("read", "path"),
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_pictures_that_tools_give_are_left_out(name: str, tmp_path: Path) -> None:
    client = CLIENTS[name]
    tool, argument = client.look
    look = (tool, {argument: str(tmp_path / "work" / "picture.png")})
    stage = Scenarios({"look": [[look], [look, look], "look is over."], "again": [[look], "again is over."]})
    async with stage.serve(on_image="omit") as site:
        run = await open_run(site, client.api)
        desk = client.open_desk(run, tmp_path)
        (desk.work / "picture.png").write_bytes(draw_png())
        assert "look is over." in await desk.run(*client.begin, "Please (task look)", *desk.flags)
        assert "again is over." in await desk.run(*client.resume, "Please (task again)", *desk.flags)
        await check_scenario(site, run, stage, main_roots=1)
        *_, last = get_session(site, run).forest.turns
        assert any("left out images" in note for note in last.request.notes)
        told = [read_text(message) for message in site.engine.generations[-1].json["messages"]]
        assert sum(text.count(PLACEHOLDER) for text in told) == 4
