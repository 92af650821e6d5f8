"""How each command-line agent, and each program of the guide to SDKs, is set up: a user without settings, in front of
one session.

::

    desk = open_codex(run, tmp_path)
    assert "done" in await desk.run("exec", *desk.flags, "Please ...")

`run` starts the client's program with the arguments given and a closed stdin, as the guide to agents has users do. A
client that is not installed skips the test.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from clientkit import Run, run_process
from httpkit import Site

ROOT = Path(__file__).parent.parent
SDK_GUIDE = ROOT / "docs" / "guides" / "agent-sdks.md"
CLIENTS = Path(os.environ.get("TURNKEEPER_CLIENTS", ROOT / ".clients"))
LIMIT_S = 240
"""How long one command may take."""


@dataclass(slots=True, kw_only=True)
class Desk:
    """An empty home and a folder with one file."""

    program: Path
    folder: Path
    environment: Mapping[str, str]
    flags: tuple[str, ...]
    """What every command of this client needs, where nobody is there to be asked."""

    @property
    def work(self) -> Path:
        """Where the agent works."""
        return self.folder / "work"

    @property
    def home(self) -> Path:
        """The user's home."""
        return self.folder / "home"

    async def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """What a command prints."""
        home = str(self.home)
        quiet = {"HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home, "CI": "1", "NO_COLOR": "1"}
        all_set = {**quiet, **self.environment, **(environment or {})}
        return await run_process([str(self.program), *arguments], all_set, cwd=self.work, limit_s=LIMIT_S)


async def open_run(site: Site, mode: str) -> Run:
    """A session as the guide opens it for a command-line agent."""
    session = await site.create(history="tree", on_truncated="bridge")
    return Run(mode=mode, history="tree", session=session, url=f"{site.url}{session}")


def open_claude_code(run: Run, folder: Path) -> Desk:
    """Claude Code, set up by its environment alone."""
    environment = {
        "ANTHROPIC_BASE_URL": run.url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": "policy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }
    return _open_npm("claude-code", "claude", folder, environment, "--permission-mode", "bypassPermissions")


def open_codex(run: Run, folder: Path) -> Desk:
    """Codex with its ``config.toml``."""
    flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    settings = folder / "home" / ".codex"
    desk = _open_npm("codex", "codex", folder, {"TURNKEEPER_KEY": "none", "CODEX_HOME": str(settings)}, *flags)
    settings.mkdir()
    (settings / "config.toml").write_text(
        'model = "policy"\nmodel_provider = "turnkeeper"\nmodel_context_window = 100000\n'
        '[model_providers.turnkeeper]\nname = "turnkeeper"\n'
        f'base_url = "{run.url}/v1"\nwire_api = "responses"\nenv_key = "TURNKEEPER_KEY"\n'
    )
    return desk


def open_qwen_code(run: Run, folder: Path) -> Desk:
    """qwen-code, set up by its environment alone."""
    environment = {"OPENAI_BASE_URL": f"{run.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "policy"}
    return _open_npm("qwen-code", "qwen", folder, environment, "--yolo", "--auth-type", "openai")


def open_opencode(run: Run, folder: Path, *, context: int = 100000, sees: bool = False, **settings: object) -> Desk:
    """Opencode with its settings pinned, so that it asks no host but the session's."""
    file = folder / "opencode.json"
    environment = {
        "OPENCODE_CONFIG": str(file),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    policy: dict[str, object] = {"limit": {"context": context, "output": 4000}}
    if sees:
        policy |= {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{run.url}/v1", "apiKey": "none"},
        "models": {"policy": policy},
    }
    pinned = {
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["turnkeeper"],
        "model": "turnkeeper/policy",
        "permission": "allow",
        "provider": {"turnkeeper": provider},
        **settings,
    }
    file.write_text(json.dumps(pinned))
    return _open_npm("opencode", "opencode", folder, environment, "--model", "turnkeeper/policy")


def open_pi(run: Run, folder: Path, *, context_window: int = 100000, sees: bool = False) -> Desk:
    """Pi with its ``models.json``."""
    environment = {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"}
    desk = _open_npm("pi", "pi", folder, environment, "--provider", "turnkeeper", "--model", "policy")
    settings = folder / "home" / ".pi" / "agent"
    settings.mkdir(parents=True)
    policy: dict[str, object] = {"id": "policy", "contextWindow": context_window, "maxTokens": 4000}
    if sees:
        policy["input"] = ["text", "image"]
    provider = {
        "baseUrl": f"{run.url}/v1",
        "api": "openai-completions",
        "apiKey": "none",
        "models": [policy],
    }
    (settings / "models.json").write_text(json.dumps({"providers": {"turnkeeper": provider}}))
    return desk


SDKS: dict[str, tuple[str, str, str]] = {
    "ai-sdk": ("Vercel AI SDK", "js", "agent.mjs"),
    "google-adk": ("Google ADK", "python", "agent.py"),
    "crewai": ("CrewAI", "python", "agent.py"),
}
"""The SDKs of the guide: its heading, and the language and file of its program."""


def read_sdk_guide(name: str, language: str) -> str:
    """The first block of code in this language that the guide has under the SDK's heading."""
    section = SDK_GUIDE.read_text().split(f"\n## {SDKS[name][0]}\n")[1].split("\n## ")[0]
    found = re.search(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert found is not None, (name, language)
    return found[1]


def open_sdk(name: str, run: Run, folder: Path) -> Desk:
    """The program that the guide gives for an SDK, as it stands there; its API is the run's mode."""
    _, language, file = SDKS[name]
    node = shutil.which("node") if language == "js" else None
    path = Path(node) if node else CLIENTS / name / "bin" / "python"
    desk = _open(name, path, folder, {"SESSION": run.url, "API": run.mode}, file)
    (desk.work / file).write_text(read_sdk_guide(name, language))
    if node:
        (desk.work / "node_modules").symlink_to(CLIENTS / name / "node_modules")
    return desk


def _open_npm(name: str, program: str, folder: Path, environment: Mapping[str, str], *flags: str) -> Desk:
    return _open(name, CLIENTS / name / "node_modules" / ".bin" / program, folder, environment, *flags)


def _open(name: str, program: Path, folder: Path, environment: Mapping[str, str], *flags: str) -> Desk:
    if not (CLIENTS / name / ".installed").exists():
        pytest.skip(f"{name} is not installed: see what tests/clients/install.py said")
    for each in ("work", "home"):
        (folder / each).mkdir()
    (folder / "work" / "notes.txt").write_text("one\ntwo\n")
    return Desk(program=program, folder=folder, environment=environment, flags=flags)
