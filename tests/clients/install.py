"""Install the agent clients that ``make test-clients`` plays, each in an environment of its own.

::

    python tests/clients/install.py                 all, into .clients/ (TURNKEEPER_CLIENTS names another)
    python tests/clients/install.py strands         only those named
    python tests/clients/install.py -k "codex"      those whose name holds a word of pytest's expression

Python clients get a virtual environment, the others an npm prefix. What is installed already is left alone. A client
that cannot be installed within its time is reported with the reason; its tests are then skipped, and say so.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(os.environ.get("TURNKEEPER_CLIENTS", ROOT / ".clients"))
LIMIT_S = float(os.environ.get("TURNKEEPER_CLIENTS_LIMIT_S", "900"))
"""How long one client may take to install."""

PYTHON: dict[str, tuple[str, ...]] = {
    "smolagents": ("smolagents[openai,toolkit]==1.26.0",),
    "strands": ("strands-agents[openai]==1.62.0",),
    "langchain": ("langchain==1.5.2", "langgraph==1.2.24", "langchain-openai==1.7.4", "langchain-anthropic==1.7.10"),
    "google-adk": ("google-adk==2.13.0", "litellm==1.110.2"),
    "crewai": ("crewai[anthropic]==1.15.30",),
}
NPM: dict[str, tuple[str, ...]] = {
    "claude-code": ("@anthropic-ai/claude-code@2.1.332",),
    "codex": ("@openai/codex@0.171.0",),
    "qwen-code": ("@qwen-code/qwen-code@0.24.4",),
    "opencode": ("opencode-ai@1.18.33",),
    "pi": ("@mariozechner/pi-coding-agent@0.73.1",),
    "ai-sdk": (
        "ai@7.0.173",
        "@ai-sdk/openai@4.0.118",
        "@ai-sdk/anthropic@4.0.105",
        "@ai-sdk/openai-compatible@3.0.92",
        "zod@4.6.7",
    ),
}


def install_python(name: str, packages: tuple[str, ...]) -> None:
    """A virtual environment that holds the packages."""
    folder = FOLDER / name
    venv.create(folder, with_pip=True, clear=True)
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages]
    subprocess.run(command, check=True, timeout=LIMIT_S)


def install_npm(name: str, packages: tuple[str, ...]) -> None:
    """An npm prefix that holds the packages."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder), *packages]
    subprocess.run(command, check=True, timeout=LIMIT_S)


def install(name: str) -> None:
    """Install one client unless it is there."""
    stamp = FOLDER / name / ".installed"
    wanted = str(PYTHON.get(name) or NPM[name])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {name} (at most {LIMIT_S:.0f} s) ...", flush=True)  # noqa: T201 - a script
    try:
        if name in PYTHON:
            install_python(name, PYTHON[name])
        else:
            install_npm(name, NPM[name])
    except (subprocess.SubprocessError, OSError) as error:
        print(f"{name} is not installed, its tests are skipped: {error}", file=sys.stderr)  # noqa: T201 - a script
        return
    stamp.write_text(wanted)


def choose(arguments: list[str]) -> list[str]:
    """The clients that the arguments name: one by one, or as pytest's ``-k`` would choose their tests."""
    names = [*PYTHON, *NPM]
    if "-k" not in arguments:
        return [each for each in arguments if each in names] or names
    words = set(re.findall(r"\w+", arguments[arguments.index("-k") + 1].replace("-", "_"))) - {"and", "or", "not"}
    return [each for each in names if any(_is_near(each.replace("-", "_"), word) for word in words)] or names


def _is_near(name: str, word: str) -> bool:
    return word in name or name in word


if __name__ == "__main__":
    for each in choose(sys.argv[1:]):
        install(each)
