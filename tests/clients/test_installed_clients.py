"""Agent clients that need an environment of their own: ``make test-clients`` installs and plays them.

1. The task ends with the right words.
2. Every main turn extends the one before; side requests (titles, probes) are roots of their own. A client that rewrites
   its history is recorded turn by turn.
3. The samples are those of the same conversation through chat completions.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from clientkit import (
    FINAL,
    check_run,
    collect,
    get_session,
    list_main_turns,
    open_runs,
    play,
    replay_as_chat,
    run_process,
    running_stage,
)

ROOT = Path(__file__).parent.parent.parent
CLIENTS = Path(os.environ.get("TURNKEEPER_CLIENTS", ROOT / ".clients"))
TASK = "Run the hello command and tell me the result."
LIMIT_S = 240

pytestmark = pytest.mark.clients


def need(name: str) -> None:
    """Skip the test of a client that could not be installed."""
    if not (CLIENTS / name / ".installed").exists():
        pytest.skip(f"{name} is not installed: see what tests/clients/install.py said")


def find_python(name: str) -> Path:
    need(name)
    return CLIENTS / name / "bin" / "python"


async def run_binary(name: str, binary: str, arguments: list[str], environment: Mapping[str, str], folder: Path) -> str:
    """Run an npm client in an empty folder, as a user without settings."""
    need(name)
    home = {"HOME": str(folder / "home"), "XDG_CONFIG_HOME": str(folder / "home"), "CI": "1", "NO_COLOR": "1"}
    work = folder / "work"
    work.mkdir()
    (folder / "home").mkdir(exist_ok=True)
    command = [str(CLIENTS / name / "node_modules" / ".bin" / binary), *arguments]
    return await run_process(command, {**home, **environment}, cwd=work, limit_s=LIMIT_S)


@pytest.mark.parametrize("history", ["linear", "tree"])
async def test_strands(history: str) -> None:
    async with running_stage() as site:
        (run,) = await open_runs(site, ["chat"], [history])
        await play("strands_agent.py", [run], python=find_python("strands"), limit_s=LIMIT_S)
        await check_run(site, run)


async def test_smolagents_whose_history_is_never_its_own() -> None:
    """It writes its calls into the text of its history, so that each turn is a root, and each is trained on."""
    async with running_stage() as site:
        (run,) = await open_runs(site, ["chat"], ["tree"])
        await play("smolagents_agent.py", [run], python=find_python("smolagents"), limit_s=LIMIT_S)
        assert FINAL in run.final
        session = get_session(site, run)
        main = list_main_turns(session)
        assert len(main) >= 3
        assert [turn.parent for turn in main] == [None] * len(main)
        assert len(await collect(site, run.session)) == len(main)
        again = await replay_as_chat(site, session, run.history)
        assert await collect(site, run.session) == await collect(site, again)


@pytest.mark.parametrize("history", ["linear", "tree"])
async def test_langchain(history: str) -> None:
    """An agent of LangChain (a graph of langgraph), over all three APIs."""
    async with running_stage() as site:
        runs = await open_runs(site, ["chat", "responses", "messages"], [history])
        await play("langchain_agent.py", runs, python=find_python("langchain"), limit_s=LIMIT_S)
        for run in runs:
            await check_run(site, run)


@pytest.mark.parametrize("history", ["linear", "tree"])
async def test_claude_code(history: str, tmp_path: Path) -> None:
    async with running_stage() as site:
        (run,) = await open_runs(site, ["messages"], [history])
        environment = {
            "ANTHROPIC_BASE_URL": run.url,
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_MODEL": "m",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }
        arguments = ["-p", TASK, "--allowedTools", "Bash", "--permission-mode", "bypassPermissions"]
        run.final = await run_binary("claude-code", "claude", arguments, environment, tmp_path)
        await check_run(site, run)


@pytest.mark.parametrize("history", ["linear", "tree"])
async def test_codex(history: str, tmp_path: Path) -> None:
    async with running_stage() as site:
        (run,) = await open_runs(site, ["responses"], [history])
        home = tmp_path / "home" / ".codex"
        home.mkdir(parents=True)
        (home / "config.toml").write_text(
            'model = "m"\nmodel_provider = "turnkeeper"\n'
            "[model_providers.turnkeeper]\n"
            f'name = "turnkeeper"\nbase_url = "{run.url}/v1"\nwire_api = "responses"\nenv_key = "TURNKEEPER_KEY"\n'
        )
        environment = {"TURNKEEPER_KEY": "none", "CODEX_HOME": str(home)}
        arguments = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK]
        run.final = await run_binary("codex", "codex", arguments, environment, tmp_path)
        await check_run(site, run)


@pytest.mark.parametrize("history", ["linear", "tree"])
async def test_qwen_code(history: str, tmp_path: Path) -> None:
    async with running_stage() as site:
        (run,) = await open_runs(site, ["chat"], [history])
        environment = {"OPENAI_BASE_URL": f"{run.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "m"}
        arguments = ["--yolo", "--auth-type", "openai", "-p", TASK]
        run.final = await run_binary("qwen-code", "qwen", arguments, environment, tmp_path)
        await check_run(site, run)
