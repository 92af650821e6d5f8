"""Newest agent clients at what they do in earnest; ``make test-clients`` installs and plays them.

1. An edit, parallel calls, a sub-agent and a resumed conversation, and Claude Code's compaction: every main turn
   extends the last; only a sub-agent, a compaction and a first message that the client rewrote begin a root.
2. Side requests (titles, summaries) are roots of their own or branches, and drop nothing.
3. Every reply of the policy is trained in the samples exactly as the engine said it, behind the prompt it saw.
4. Claude Code and Codex also play in front of the real templates of Qwen3.6 and gpt-oss.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clientkit import Run, run_process
from httpkit import Site
from rendering.standins import standin
from scenariokit import Scenarios, check_scenario
from servicekit import get_renderer

ROOT = Path(__file__).parent.parent.parent
CLIENTS = Path(os.environ.get("TURNKEEPER_CLIENTS", ROOT / ".clients"))
LIMIT_S = 60

pytestmark = pytest.mark.clients
RENDERERS = pytest.mark.parametrize("family", ["tiny", "qwen36", "gptoss"])


def get_family(family: str) -> Any:
    return get_renderer() if family == "tiny" else standin(family)


@dataclass(slots=True, kw_only=True)
class Desk:
    """A user without settings: an empty home and a folder with one file."""

    name: str
    folder: Path
    environment: Mapping[str, str]

    @property
    def work(self) -> Path:
        return self.folder / "work"

    async def run(self, binary: str, *arguments: str) -> str:
        path = CLIENTS / self.name / "node_modules" / ".bin" / binary
        home = str(self.folder / "home")
        quiet = {"HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home, "CI": "1", "NO_COLOR": "1"}
        return await run_process([str(path), *arguments], {**quiet, **self.environment}, cwd=self.work, limit_s=LIMIT_S)


def open_desk(name: str, folder: Path, environment: Mapping[str, str]) -> Desk:
    if not (CLIENTS / name / ".installed").exists():
        pytest.skip(f"{name} is not installed: see what tests/clients/install.py said")
    for each in ("work", "home"):
        (folder / each).mkdir()
    (folder / "work" / "notes.txt").write_text("one\ntwo\n")
    return Desk(name=name, folder=folder, environment=environment)


async def open_run(site: Site, mode: str) -> Run:
    session = await site.create(history="tree", on_truncated="bridge")
    return Run(mode=mode, history="tree", session=session, url=f"{site.url}{session}")


@RENDERERS
async def test_claude_code_edits_calls_in_parallel_delegates_resumes_and_compacts(family: str, tmp_path: Path) -> None:
    notes = str(tmp_path / "work" / "notes.txt")
    stage = Scenarios(
        renderer=get_family(family),
        scripts={
            "edit": [
                [("Read", {"file_path": notes})],
                [("Edit", {"file_path": notes, "old_string": "one", "new_string": "three"})],
                [("Bash", {"command": "echo a"}), ("Bash", {"command": "sleep 1; echo b"})],
                [("Agent", {"description": "d", "prompt": "(task inner)", "subagent_type": "general-purpose"})],
                "edit is over.",
            ],
            "inner": [[("Bash", {"command": "echo inner", "timeout": 5000.0})], "inner is over."],
            "resume": [[("Bash", {"command": "echo again"})], "resume is over."],
            "after": ["after is over."],
        },
    )
    async with stage.serve() as site:
        run = await open_run(site, "messages")
        desk = open_desk(
            "claude-code",
            tmp_path,
            {
                "ANTHROPIC_BASE_URL": run.url,
                "ANTHROPIC_API_KEY": "none",
                "ANTHROPIC_MODEL": "policy",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "IS_SANDBOX": "1",
            },
        )
        flags = ["--permission-mode", "bypassPermissions"]
        assert "edit is over." in await desk.run("claude", "-p", "Please (task edit)", *flags)
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        assert "resume is over." in await desk.run("claude", "--continue", "-p", "Please (task resume)", *flags)
        await check_scenario(site, run, stage, main_roots=2)
        await desk.run("claude", "--continue", "-p", "/compact", *flags)
        assert "after is over." in await desk.run("claude", "--continue", "-p", "Please (task after)", *flags)
        await check_scenario(site, run, stage, main_roots=3)


def open_codex(run: Run, folder: Path, settings: str) -> Desk:
    home = folder / "home" / ".codex"
    desk = open_desk("codex", folder, {"TURNKEEPER_KEY": "none", "CODEX_HOME": str(home)})
    home.mkdir()
    (home / "config.toml").write_text(
        f'model = "policy"\nmodel_provider = "turnkeeper"\n{settings}\n[model_providers.turnkeeper]\n'
        f'name = "turnkeeper"\nbase_url = "{run.url}/v1"\nwire_api = "responses"\nenv_key = "TURNKEEPER_KEY"\n'
    )
    return desk


CODEX_FLAGS = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]


@RENDERERS
async def test_codex_edits_calls_in_parallel_and_resumes(family: str, tmp_path: Path) -> None:
    stage = Scenarios(
        renderer=get_family(family),
        scripts={
            "edit": [
                [("exec_command", {"cmd": "sed -i s/one/three/ notes.txt"})],
                [("exec_command", {"cmd": "echo a"}), ("exec_command", {"cmd": "sleep 1; echo b"})],
                "edit is over.",
            ],
            "resume": [[("exec_command", {"cmd": "echo again"})], "resume is over."],
        },
    )
    async with stage.serve() as site:
        run = await open_run(site, "responses")
        desk = open_codex(run, tmp_path, "model_context_window = 100000")
        assert "edit is over." in await desk.run("codex", "exec", *CODEX_FLAGS, "Please (task edit)")
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        resume = ["exec", "resume", "--last", *CODEX_FLAGS, "Please (task resume)"]
        assert "resume is over." in await desk.run("codex", *resume)
        await check_scenario(site, run, stage, main_roots=1)


async def test_qwen_code_edits_calls_in_parallel_delegates_and_resumes(tmp_path: Path) -> None:
    notes = str(tmp_path / "work" / "notes.txt")
    shell = "run_shell_command"
    stage = Scenarios(
        {
            "edit": [
                [("read_file", {"file_path": notes})],
                [("edit", {"file_path": notes, "old_string": "one", "new_string": "three"})],
                [(shell, {"command": "echo a", "is_background": False}), (shell, {"command": "sleep 1; echo b"})],
                [("agent", {"description": "d", "prompt": "(task inner)", "subagent_type": "general-purpose"})],
                "edit is over.",
            ],
            "inner": [[(shell, {"command": "echo inner", "is_background": False})], "inner is over."],
            "resume": [[(shell, {"command": "echo again", "is_background": False})], "resume is over."],
        }
    )
    async with stage.serve() as site:
        run = await open_run(site, "chat")
        environment = {"OPENAI_BASE_URL": f"{run.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "policy"}
        desk = open_desk("qwen-code", tmp_path, environment)
        flags = ["--yolo", "--auth-type", "openai"]
        assert "edit is over." in await desk.run("qwen", *flags, "-p", "Please (task edit)")
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        await check_scenario(site, run, stage, main_roots=2)
        # A resumed run leaves the reminder of the date out of the first user message: another conversation.
        assert "resume is over." in await desk.run("qwen", *flags, "--continue", "-p", "Please (task resume)")
        await check_scenario(site, run, stage, main_roots=3)


async def test_opencode_edits_calls_in_parallel_delegates_and_resumes(tmp_path: Path) -> None:
    notes = str(tmp_path / "work" / "notes.txt")
    stage = Scenarios(
        {
            "edit": [
                [("read", {"filePath": notes})],
                [("edit", {"filePath": notes, "oldString": "one", "newString": "three"})],
                [
                    ("bash", {"command": "echo a", "description": "a"}),
                    ("bash", {"command": "sleep 1; echo b", "description": "b"}),
                ],
                [("task", {"description": "d", "prompt": "(task inner)", "subagent_type": "general"})],
                "edit is over.",
            ],
            "inner": [[("bash", {"command": "echo inner", "description": "inner"})], "inner is over."],
            "resume": [[("bash", {"command": "echo again", "description": "again"})], "resume is over."],
        }
    )
    async with stage.serve() as site:
        run = await open_run(site, "chat")
        settings = tmp_path / "opencode.json"
        environment = {
            "OPENCODE_CONFIG": str(settings),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }
        desk = open_desk("opencode", tmp_path, environment)
        settings.write_text(
            json.dumps(
                {
                    "autoupdate": False,
                    "enabled_providers": ["turnkeeper"],
                    "share": "disabled",
                    "model": "turnkeeper/policy",
                    "permission": "allow",
                    "provider": {
                        "turnkeeper": {
                            "npm": "@ai-sdk/openai-compatible",
                            "options": {"baseURL": f"{run.url}/v1", "apiKey": "none"},
                            "models": {"policy": {}},
                        }
                    },
                }
            )
        )
        flags = ["--model", "turnkeeper/policy"]
        assert "edit is over." in await desk.run("opencode", "run", *flags, "Please (task edit)")
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        assert "resume is over." in await desk.run("opencode", "run", *flags, "--continue", "Please (task resume)")
        await check_scenario(site, run, stage, main_roots=2)


async def test_pi_edits_calls_in_parallel_and_resumes(tmp_path: Path) -> None:
    stage = Scenarios(
        {
            "edit": [
                [("read", {"path": "notes.txt"})],
                [("edit", {"path": "notes.txt", "edits": [{"oldText": "one", "newText": "three"}]})],
                [("bash", {"command": "echo a"}), ("bash", {"command": "sleep 1; echo b"})],
                "edit is over.",
            ],
            "resume": [[("bash", {"command": "echo again"})], "resume is over."],
        }
    )
    async with stage.serve() as site:
        run = await open_run(site, "chat")
        desk = open_desk("pi", tmp_path, {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"})
        folder = tmp_path / "home" / ".pi" / "agent"
        folder.mkdir(parents=True)
        provider = {
            "baseUrl": f"{run.url}/v1",
            "api": "openai-completions",
            "apiKey": "none",
            "models": [{"id": "policy", "contextWindow": 100000, "maxTokens": 4000}],
        }
        (folder / "models.json").write_text(json.dumps({"providers": {"turnkeeper": provider}}))
        flags = ["--provider", "turnkeeper", "--model", "policy"]
        assert "edit is over." in await desk.run("pi", *flags, "-p", "Please (task edit)")
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        assert "resume is over." in await desk.run("pi", *flags, "--continue", "-p", "Please (task resume)")
        await check_scenario(site, run, stage, main_roots=1)
