"""``turnkeeper collect``: what cannot be collected is one error in the one form, and no file.

That it makes the server's payload is held by the tests of ``sessions``, over a real server and its store.
"""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.sessions.test_storing import play, serving
from turnkeeper.cli.main import app
from turnkeeper.tiny.checkpoint import shipped_checkpoint

CHECKPOINT = ("--hf-checkpoint", str(shipped_checkpoint()))
FAILURES: dict[str, tuple[tuple[str, ...], str]] = {
    "no store": (("{folder}/none", "a", "--out", "{folder}/out", *CHECKPOINT), "none cannot be read: "),
    "no checkpoint": (("{folder}/store", "a", "--out", "{folder}/out"), "a checkpoint folder is missing"),
    "another model": (
        ("{folder}/store", "a", "--out", "{folder}/out", *CHECKPOINT),
        "store was made for template p, and ",
    ),
    "no folder to write": (("{folder}/store", "a"), "--out"),
}


@pytest.mark.parametrize(("arguments", "said"), FAILURES.values(), ids=FAILURES)
async def test_what_cannot_be_collected_is_one_error(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    async with serving(tmp_path / "store") as kit:
        await play(kit)
    words = ["collect", *(each.format(folder=tmp_path) for each in arguments)]
    runner = CliRunner(env={"TURNKEEPER_HF_CHECKPOINT": None})
    result = await asyncio.to_thread(runner.invoke, app, words)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("turnkeeper: error: ")
    assert said in result.stderr
    assert not (tmp_path / "out").exists()
