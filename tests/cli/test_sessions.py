"""``turnkeeper sessions``, ``show``, ``explain`` and ``collect``.

1. They read a payload file, a folder of them, a running server and its store, and say the same of a session in each.
2. ``--json`` says the same to programs.
3. What cannot be read is one line on stderr, and one with what to do: exit status 2 where the command line is wrong,
   else 1.
4. What is collected of a store is the payload that its server gives.
5. Whole texts are printed where nobody looks at a terminal; the start of the command line imports none of it.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from samples.builders import TREE, Story
from turnkeeper.cli.main import app
from turnkeeper.server.command import running_command
from turnkeeper.tiny.checkpoint import shipped_checkpoint
from views.test_sources import build_payload, write_payload

SRC = Path(__file__).parents[2] / "src"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"TURNKEEPER_API_KEY": ""})


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    return write_payload(tmp_path / "samples" / "one.safetensors")


def test_a_payload_is_shown(payload: Path) -> None:
    result = run("show", str(payload))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "session one · tree · 3 turns",
        "metadata: task=7 name=a",
        "6 sampled tokens: 6 train",
    ]
    assert lines[4].startswith("0 root · 3+2 tokens · stop · 2 train")
    assert lines[6].startswith("└─ 2 branch: input_changed · 7+1 tokens")
    assert "    [3 tokens; mean logprob -1.400, least -1.500; version v1; 3 trained]" in lines
    assert "    place      id" not in result.stdout


def test_the_page_on_the_command_line_has_the_keys_of_each_json(payload: Path) -> None:
    page = (SRC.parent / "docs" / "reference" / "command-line.md").read_text()
    for command in ("sessions", "show", "explain"):
        [row] = re.findall(rf"^\| `{command}` \| (.+) \|$", page, re.MULTILINE)
        said = json.loads(run(command, str(payload), "--json").stdout)
        assert set(re.findall(r"`(\w+)`", row)) == set(said), command


def test_tokens_and_turns_are_chosen(payload: Path) -> None:
    result = run("show", str(payload), "--turn", "1", "--tokens")
    assert result.stdout.splitlines() == [
        "turn 1 · extension · chat-1",
        "  prompt:",
        "    <4>",
        "  sampled:",
        "    <13 14 15>",
        "    [3 tokens; mean logprob -1.400, least -1.500; version v1; 3 trained]",
        "    place      id    logprob  version  loss",
        "        0      13    -1.3000  v1       1",
        "        1      14    -1.4000  v1       1",
        "        2      15    -1.5000  v1       1",
    ]
    assert "turn 0" not in result.stdout
    for flags, with_content in (((), [0, 1, 2]), (("--turn", "1"), [1]), (("--tree",), list[int]())):
        turns = json.loads(run("show", str(payload), *flags, "--json").stdout)["turns"]
        assert [turn["id"] for turn in turns] == [0, 1, 2]
        assert [turn["id"] for turn in turns if turn["content"] is not None] == with_content, flags
    tree = run("show", str(payload), "--tree").stdout
    assert "└─ 2 branch" in tree
    assert "sampled:" not in tree


def test_a_payload_is_explained(payload: Path) -> None:
    result = run("explain", str(payload))
    assert "Turn 2 branches off from turn 0: a message that turn 1 was told is another one now" in result.stdout
    said = json.loads(run("explain", str(payload), "--json").stdout)
    (fork,) = said["forks"]
    assert (fork["turn"], fork["near"], fork["cause"]) == (2, 1, "input_changed")
    assert fork["cost"]["repeated_tokens"] == 5


def test_a_folder_is_listed(payload: Path) -> None:
    write_payload(payload.parent / "two.safetensors")
    result = run("sessions", str(payload.parent))
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["session", "one", "two"]
    rows = json.loads(run("sessions", str(payload.parent), "--json", "--limit", "1").stdout)
    assert [row["session_id"] for row in rows["sessions"]] == ["one"]
    assert rows["has_more"]
    assert run("sessions", str(payload.parent), "--limit", "1").stderr == "these are the first 1: --limit shows more\n"
    assert run("sessions", str(payload.parent), "--metadata", "task=8").stdout == "no session\n"
    assert run("show", str(payload.parent), "two").stdout.startswith("session two ")


def test_long_texts_are_whole_in_a_pipe(tmp_path: Path) -> None:
    story = Story(TREE)
    story.say([1], list(range(10, 2000)))
    (tmp_path / "a.safetensors").write_bytes(build_payload(story))
    assert " 1998 1999>" in run("show", str(tmp_path / "a.safetensors")).stdout


FAILURES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no such target": (
        ("show", "nowhere"),
        2,
        "is neither the URL of a server nor a file or folder that exists\n  hint: ",
    ),
    "no payload": (("show", "{folder}/notes.txt"), 1, "notes.txt is no samples payload"),
    "no payload in a folder": (("sessions", "{folder}/empty"), 1, "there is no file *.safetensors"),
    "no such session": (("show", "{folder}/samples", "three"), 1, "there is no payload 'three' in"),
    "several sessions": (
        ("explain", "{folder}/samples"),
        2,
        "has several sessions: one, two\n  hint: name one of them",
    ),
    "no such turn": (
        ("show", "{folder}/samples", "one", "--turn", "3"),
        2,
        "has no turn 3\n  hint: it has 3, from 0 on",
    ),
    "a filter of servers": (("sessions", "{folder}/samples", "--phase", "gate"), 1, "phase is told by servers"),
    "a bad pair": (("sessions", "{folder}/samples", "--metadata", "task"), 2, "--metadata takes KEY=VALUE, got 'task'"),
    "nobody there": (("sessions", "http://127.0.0.1:9"), 1, "no answer from http://127.0.0.1:9/sessions"),
}


@pytest.mark.parametrize(("arguments", "status", "said"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_a_failure_is_one_line_with_what_to_do(
    arguments: tuple[str, ...], status: int, said: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        write_payload(tmp_path / "samples" / f"{name}.safetensors")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    result = run(*(each.format(folder=tmp_path) for each in arguments), *flags)
    assert (result.exit_code, result.stdout) == (status, "")
    first, *rest = result.stderr.splitlines()
    assert first.startswith("turnkeeper: error: ")
    assert said in result.stderr
    assert [line[:8] for line in rest] in ([], ["  hint: "])


def test_the_command_line_starts_without_what_they_need() -> None:
    heavy = "('turnkeeper.views', 'turnkeeper.client', 'numpy', 'aiohttp', 'safetensors')"
    code = f"import sys, turnkeeper.cli.sessions; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, check=True
    )
    assert result.stdout == b"[]\n"


# A real server.


def post(url: str, body: dict[str, Any], key: str) -> bytes:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read()


def call(*arguments: str, key: str | None = None) -> Result:
    """A command within this process."""
    return CliRunner().invoke(app, arguments, env={"TURNKEEPER_API_KEY": key})


def start(*arguments: str, key: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(SRC)} | ({} if key is None else {"TURNKEEPER_API_KEY": key})
    return subprocess.run(
        [sys.executable, "-m", "turnkeeper", *arguments], env=environment, capture_output=True, text=True, check=False
    )


async def test_a_server_its_store_and_the_payload_of_its_session_say_the_same(tmp_path: Path) -> None:
    options = ["--hf-checkpoint", str(shipped_checkpoint()), "--tito-model", "qwen3", "--use-session-server", "v2"]
    async with running_command(["engine", "--port", "0"]) as engine:
        options += ["--backend-url", engine.url, "--session-server-port", "0", "--api-key", "admin-key"]
        options += ["--store", str(tmp_path / "store")]
        async with running_command(["serve", *options]) as served:
            await asyncio.to_thread(compare, served.url, tmp_path)


def compare(server: str, folder: Path) -> None:
    """Take two turns, and hold what the commands say of the server against the payload and the store."""
    body = {"metadata": {"task": "sum"}}
    session_id = json.loads(post(f"{server}/sessions", body, "admin-key"))["session_id"]
    for question in ("1 + 1", "2 + 2"):
        asked = {"messages": [{"role": "user", "content": question}], "max_tokens": 8}
        post(f"{server}/sessions/{session_id}/v1/chat/completions", asked, "admin-key")
    path = folder / f"{session_id}.safetensors"
    path.write_bytes(post(f"{server}/sessions/{session_id}/samples", {}, "admin-key"))

    rows = json.loads(call("sessions", server, "--json", key="admin-key").stdout)["sessions"]
    assert [(row["session_id"], row["turns"], row["metadata"]) for row in rows] == [(session_id, 2, {"task": "sum"})]
    shown = start("show", server, "--json", key="admin-key")
    assert shown.returncode == 0, shown.stderr
    of_server = json.loads(shown.stdout)
    of_file = json.loads(call("show", str(path), "--json").stdout)
    assert of_file["session_id"] == of_server["session_id"] == session_id
    differing = {"content", "times", "engine"}
    for left, right in zip(of_server["turns"], of_file["turns"], strict=True):
        assert {name for name in left if left[name] != right[name]} <= differing
        ids = [[token["id"] for token in turn["content"]["tokens"]] for turn in (left, right)]
        assert ids[0] == ids[1]
        assert len(ids[0]) == left["completion_tokens"]
    store = str(folder / "store")
    of_store = json.loads(call("show", store, "--json").stdout)
    for left, right in zip(of_server["turns"], of_store["turns"], strict=True):
        assert {name for name in left if left[name] != right[name]} <= {"times", "engine"}
    listed = call("sessions", store).stdout.splitlines()
    assert [line.split()[:3] for line in listed] == [["session", "state", "turns"], [session_id, "open", "2"]]
    forked = "Turn 1 starts a root of its own: its first message is another one than that of turn 0"
    assert forked in call("explain", store).stdout
    checkpoint = ("--hf-checkpoint", str(shipped_checkpoint()))
    collected = call("collect", store, session_id, "--out", str(folder / "out"), *checkpoint)
    assert (collected.exit_code, collected.stderr) == (0, "")
    assert collected.stdout == f"{folder / 'out' / path.name}\n"
    assert (folder / "out" / path.name).read_bytes() == path.read_bytes()
    missing = call("collect", store, "f" * 32, "--out", str(folder / "out"), *checkpoint)
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert missing.stderr.startswith("turnkeeper: error: ")
    missing = call("show", store, "f" * 32)
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert missing.stderr.splitlines()[-1] == f"  hint: turnkeeper sessions {store}"
    missing = call("show", server, "f" * 32, key="admin-key")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert missing.stderr.splitlines()[-1] == f"  hint: turnkeeper sessions {server}"
    explained = call("explain", server, session_id, "--api-key", "admin-key")
    assert forked in explained.stdout
    refused = start("explain", server, session_id, "--api-key", "wrong")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("turnkeeper: error: ")
    assert "Traceback" not in refused.stderr
