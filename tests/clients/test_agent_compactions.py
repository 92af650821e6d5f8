"""Agents whose context is full; ``make test-clients`` installs and plays them.

1. The request for a summary is a side request: a root, or the end of a path, and drops nothing.
2. The next turn of the task is a root or branch with a documented cause, and the turns behind it extend each other.
3. Every reply of the policy is trained exactly as the engine said it, on both sides of the compaction.

Claude Code's ``/compact`` is played in test_agent_scenarios.py, its own compaction here.
"""

from pathlib import Path

import pytest

from deskkit import open_claude_code, open_codex, open_opencode, open_pi, open_qwen_code, open_run
from scenariokit import Scenarios, check_scenario, list_main_causes

pytestmark = pytest.mark.clients


SUMMARY = "Summary: what is left is (task rest)."
"""Behind the compaction the policy goes on with the rest."""


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        pytest.param(
            {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "60000", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4000"},
            {},
            id="told the limit",
        ),
        pytest.param({}, {"max_seq_len": 50000}, id="refused a prompt"),
    ],
)
async def test_claude_code_compacts_in_the_middle_of_a_task(
    environment: dict[str, str], options: dict[str, int], tmp_path: Path
) -> None:
    long = [("Bash", {"command": "seq 3000"})]
    scripts = {"long": [long, long, "never said"], "rest": ["rest is over."]}
    stage = Scenarios(scripts, summary=f"<summary>{SUMMARY}</summary>")
    async with stage.serve(**options) as site:
        run = await open_run(site, "messages")
        desk = open_claude_code(run, tmp_path)
        task = ["-p", "Please (task long)", *desk.flags]
        assert "rest is over." in await desk.run(*task, environment=environment)
        await check_scenario(site, run, stage, main_roots=2, sides=1)
        # The reply that called the tool last is carried over, with its arguments spelled anew.
        assert list_main_causes(site, run, stage) == ["first", "compacted"]


async def test_codex_compacts_before_a_task_and_in_the_middle_of_one(tmp_path: Path) -> None:
    long = [("exec_command", {"cmd": "seq 20000"})]
    scripts = {"long": [long, "long is over."], "next": [long, "never said"], "rest": ["rest is over."]}
    stage = Scenarios(scripts, summary=SUMMARY)
    async with stage.serve() as site:
        run = await open_run(site, "responses")
        desk = open_codex(run, tmp_path)
        assert "long is over." in await desk.run("exec", *desk.flags, "Please (task long)")
        # More than what stands in front of a task, which comes back behind a compaction, and less than with its result.
        limit = f"model_auto_compact_token_limit={len(stage.said[0].prompt) + 2000}"
        resume = ["exec", "-c", limit, "resume", "--last", *desk.flags, "Please (task next)"]
        assert "rest is over." in await desk.run(*resume)
        await check_scenario(site, run, stage, main_roots=3, sides=2)
        # No reply is carried over: the instructions, what the user said and the summary, which is the user's as well.
        assert list_main_causes(site, run, stage) == ["first", "input_changed", "system_changed"]


async def test_qwen_code_compresses_on_command(tmp_path: Path) -> None:
    shell = "run_shell_command"
    scripts = {
        "long": [[(shell, {"command": "seq 3000", "is_background": False})], "long is over."],
        "next": [[(shell, {"command": "echo next", "is_background": False})], "next is over."],
    }
    stage = Scenarios(scripts, summary="<state_snapshot>The work went well so far.</state_snapshot>")
    async with stage.serve() as site:
        run = await open_run(site, "chat")
        desk = open_qwen_code(run, tmp_path)
        assert "long is over." in await desk.run(*desk.flags, "-p", "Please (task long)")
        assert "Context compressed" in await desk.run(*desk.flags, "--continue", "-p", "/compress")
        assert "next is over." in await desk.run(*desk.flags, "--continue", "-p", "Please (task next)")
        await check_scenario(site, run, stage, main_roots=2, sides=1)
        assert list_main_causes(site, run, stage) == ["first", "other_start"]


async def test_opencode_compacts_in_the_middle_of_a_task(tmp_path: Path) -> None:
    long = [("bash", {"command": "seq 3000", "description": "d"})]
    stage = Scenarios({"long": [long, long, "never said"], "rest": ["rest is over."]}, summary=SUMMARY)
    async with stage.serve() as site:
        run = await open_run(site, "chat")
        desk = open_opencode(run, tmp_path, context=24000, compaction={"preserve_recent_tokens": 500})
        assert "rest is over." in await desk.run("run", *desk.flags, "Please (task long)")
        await check_scenario(site, run, stage, main_roots=2, sides=2)
        assert list_main_causes(site, run, stage)[1] == "compacted"


async def test_pi_compacts_behind_a_task(tmp_path: Path) -> None:
    long = [("bash", {"command": "seq 20000"})]
    stage = Scenarios({"long": [long, "long is over."], "next": ["next is over."]}, summary=SUMMARY)
    async with stage.serve() as site:
        run = await open_run(site, "chat")
        desk = open_pi(run, tmp_path, context_window=30000)
        (desk.home / ".pi" / "agent" / "settings.json").write_text('{"compaction": {"keepRecentTokens": 500}}')
        assert "long is over." in await desk.run(*desk.flags, "-p", "Please (task long)")
        assert "next is over." in await desk.run(*desk.flags, "--continue", "-p", "Please (task next)")
        await check_scenario(site, run, stage, main_roots=2, sides=1)
        assert list_main_causes(site, run, stage) == ["first", "compacted"]
