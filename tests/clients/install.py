"""Install the agent clients that ``make test-clients`` plays, each in an environment of its own.

::

    python tests/clients/install.py            all of them, into .clients/ (TURNKEEPER_CLIENTS names another folder)
    python tests/clients/install.py strands    only those named

Python clients get a virtual environment, the others an npm prefix. What is installed already is left alone. One that
cannot be installed is reported, and the exit status says so; its test then fails by its name.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(os.environ.get("TURNKEEPER_CLIENTS", ROOT / ".clients"))

PYTHON: dict[str, tuple[str, ...]] = {
    "smolagents": ("smolagents[openai,toolkit]==1.26.0",),
    "strands": ("strands-agents[openai]==1.62.0",),
}
NPM: dict[str, str] = {
    "claude-code": "@anthropic-ai/claude-code@2.1.197",
    "codex": "@openai/codex@0.171.0",
    "qwen-code": "@qwen-code/qwen-code@0.15.10",
}


def install_python(name: str, packages: tuple[str, ...]) -> None:
    """A virtual environment that holds the packages."""
    folder = FOLDER / name
    venv.create(folder, with_pip=True, clear=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages], check=True)


def install_npm(name: str, package: str) -> None:
    """An npm prefix that holds the package."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), package]
    subprocess.run(npm, check=True)


def install(name: str) -> bool:
    """Install one client unless it is there; whether it is there now."""
    stamp = FOLDER / name / ".installed"
    wanted = str(PYTHON.get(name) or NPM[name])
    if stamp.exists() and stamp.read_text() == wanted:
        return True
    print(f"installing {name} ...", flush=True)  # noqa: T201 - a script
    try:
        if name in PYTHON:
            install_python(name, PYTHON[name])
        else:
            install_npm(name, NPM[name])
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)  # noqa: T201 - a script
        return False
    stamp.write_text(wanted)
    return True


if __name__ == "__main__":
    chosen = sys.argv[1:] or [*PYTHON, *NPM]
    missing = [each for each in chosen if not install(each)]
    sys.exit(1 if missing else 0)
