"""What the command line imports before it runs a command.

Typer imports pydantic to read parameters; all else that serving needs is imported by a command that serves.

1. Help, the version, an unknown command and the completion of a shell import none of the packages that serving needs.
2. The help of a command imports no more than its options need.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import turnkeeper

SOURCE = str(Path(turnkeeper.__file__).parent.parent)
PROGRAM = """
import atexit, sys
sys.argv[0] = "turnkeeper"
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from turnkeeper.cli.main import main
main()
"""
SERVING = {
    "aiohttp",
    "asyncio",
    "jinja2",
    "numpy",
    "orjson",
    "prometheus_client",
    "safetensors",
    "sqlalchemy",
    "starlette",
    "tokenizers",
    "uvicorn",
}


def list_imported(*words: str, **environment: str) -> set[str]:
    """The packages that the command line has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={**os.environ, "PYTHONPATH": SOURCE, **environment},
        capture_output=True,
        check=False,
        text=True,
    )
    return {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        (),
        ("--version",),
        ("xyzzy",),
        ("config", "-h"),
        ("engine", "-h"),
        ("verify", "-h"),
        ("collect", "-h"),
        ("delete", "-h"),
        ("export", "-h"),
        ("vacuum", "-h"),
        ("demo", "-h"),
    ],
    ids=" ".join,
)
def test_help_imports_nothing_that_serves(words: tuple[str, ...]) -> None:
    imported = list_imported(*words)
    assert "typer" in imported
    assert (SERVING | {"rich"}) & imported == set()


def test_the_completion_of_a_shell_imports_nothing_that_serves() -> None:
    imported = list_imported(_TURNKEEPER_COMPLETE="complete_bash", COMP_WORDS="turnkeeper ser", COMP_CWORD="1")
    assert "typer" in imported
    assert SERVING & imported == set()


@pytest.mark.parametrize("command", [("serve",), ("config", "show")], ids=" ".join)
def test_the_help_of_all_options_imports_their_declarations_alone(command: tuple[str, ...]) -> None:
    imported = list_imported(*command, "--help")
    assert "pydantic" in imported
    assert (SERVING - {"asyncio", "orjson"}) & imported == set()
