"""Newest agent clients at what they do in earnest; ``make test-clients`` installs and plays them.

1. An edit, parallel calls, a sub-agent and a resumed conversation, and Claude Code's compaction: every main turn
   extends the last; only a sub-agent, a compaction and a first message that the client rewrote begin a root.
2. Side requests (titles, summaries) are roots of their own or branches, and drop nothing.
3. Every reply of the policy is trained in the samples exactly as the engine said it, behind the prompt it saw.
4. Claude Code and Codex also play in front of the real templates and tokenizers of Qwen3.6 and gpt-oss.
"""

import json
from pathlib import Path

import pytest

from deskkit import open_claude_code, open_codex, open_opencode, open_pi, open_qwen_code, open_run
from scenariokit import Calls, Scenarios, check_scenario, get_family, list_main_causes, read_rewritten

pytestmark = pytest.mark.clients
RENDERERS = pytest.mark.parametrize("family", ["tiny", "qwen36", "gptoss"])


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
        desk = open_claude_code(run, tmp_path)
        assert "edit is over." in await desk.run("-p", "Please (task edit)", *desk.flags)
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        assert "resume is over." in await desk.run("--continue", "-p", "Please (task resume)", *desk.flags)
        batch = await check_scenario(site, run, stage, main_roots=2)
        assert read_rewritten(batch) == {"keys_added"}  # of Edit, which comes back with replace_all
        assert list_main_causes(site, run, stage) == ["first", "sub_agent"]
        await desk.run("--continue", "-p", "/compact", *desk.flags)
        assert "after is over." in await desk.run("--continue", "-p", "Please (task after)", *desk.flags)
        await check_scenario(site, run, stage, main_roots=3, sides=1)
        assert list_main_causes(site, run, stage)[2] == "compacted"


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
        desk = open_codex(run, tmp_path)
        assert "edit is over." in await desk.run("exec", *desk.flags, "Please (task edit)")
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        resume = ["exec", "resume", "--last", *desk.flags, "Please (task resume)"]
        assert "resume is over." in await desk.run(*resume)
        await check_scenario(site, run, stage, main_roots=1)


async def test_codex_delegates(tmp_path: Path) -> None:
    def wait(spawned: str) -> Calls:
        return [("multi_agent_v1__wait_agent", {"targets": [json.loads(spawned)["agent_id"]], "timeout_ms": 30000})]

    stage = Scenarios(
        {
            "outer": [[("multi_agent_v1__spawn_agent", {"message": "(task inner)"})], wait, "outer is over."],
            "inner": [[("exec_command", {"cmd": "echo inner"})], "inner is over."],
        }
    )
    async with stage.serve() as site:
        run = await open_run(site, "responses")
        desk = open_codex(run, tmp_path)
        assert "outer is over." in await desk.run("exec", *desk.flags, "Please (task outer)")
        await check_scenario(site, run, stage, main_roots=2)
        assert list_main_causes(site, run, stage) == ["first", "sub_agent"]


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
        desk = open_qwen_code(run, tmp_path)
        assert "edit is over." in await desk.run(*desk.flags, "-p", "Please (task edit)")
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        await check_scenario(site, run, stage, main_roots=2)
        # A resumed run leaves the reminder of the date out of the first user message: another conversation.
        assert "resume is over." in await desk.run(*desk.flags, "--continue", "-p", "Please (task resume)")
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
        desk = open_opencode(run, tmp_path)
        assert "edit is over." in await desk.run("run", *desk.flags, "Please (task edit)")
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        assert "resume is over." in await desk.run("run", *desk.flags, "--continue", "Please (task resume)")
        await check_scenario(site, run, stage, main_roots=2, sides=1)


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
        desk = open_pi(run, tmp_path)
        assert "edit is over." in await desk.run(*desk.flags, "-p", "Please (task edit)")
        assert (desk.work / "notes.txt").read_text() == "three\ntwo\n"
        assert "resume is over." in await desk.run(*desk.flags, "--continue", "-p", "Please (task resume)")
        await check_scenario(site, run, stage, main_roots=1)
