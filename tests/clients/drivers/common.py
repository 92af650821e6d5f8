"""What every driver does: read its runs from the command line, play each, print one JSON line for each.

::

    python drivers/NAME.py MODE=URL MODE=URL ...

A driver plays one task: it asks the model to run a command twice and to say what came of it. It knows nothing of the
tests, so that it runs in an environment of its own.
"""

import json
import sys
from collections.abc import Callable

TASK = "Run the hello command and tell me the result."
SYSTEM = "You are an agent. Use the bash tool."
RESULT = "hello-from-tool"
DESCRIPTION = "Run a shell command."
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


def run_command(command: str) -> str:
    """What the tool gives for any command."""
    return RESULT if "hello" in command else f"unknown command: {command}"


def main(play: Callable[[str, str], str]) -> None:
    """Play every run; ``play`` takes a mode and a session's URL, and returns the agent's last words."""
    for argument in sys.argv[1:]:
        mode, _, url = argument.partition("=")
        print(json.dumps({"mode": mode, "final": play(mode, url)}), flush=True)  # noqa: T201 - its output
