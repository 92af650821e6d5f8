"""A session server under a trainer that owns the command line.

1. An application comes out of a namespace, and serves.
2. What cannot work is raised before anything is built.
3. The entry points are what a spawned process can be given, and what a command runs.
4. The configuration of one server takes the place of a namespace and its engine.
"""

import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from turnkeeper.errors import ArgumentErrors, ConfigError
from turnkeeper.testing import running
from turnkeeper.tiny.checkpoint import shipped_checkpoint
from turnkeeper.trainer import SessionServer, main, run_session_server

NAMESPACE: dict[str, Any] = {
    "hf_checkpoint": shipped_checkpoint(),
    "tito_model": "qwen3",
    "pause_generation_mode": "in_place",
}


async def test_the_application_of_a_bare_namespace_serves() -> None:
    server = SessionServer(SimpleNamespace(**NAMESPACE, session_server_instance_id="abc"), "http://127.0.0.1:9")
    async with running(server.app) as url, httpx.AsyncClient(base_url=url) as client:
        health = (await client.get("/health")).json()
        session = (await client.post("/sessions")).json()
        shown = await client.get(f"/sessions/{session['session_id']}")
    assert (health["status"], health["session_server_instance_id"]) == ("ok", "abc")
    assert shown.json()["session_id"] == session["session_id"]


@pytest.mark.parametrize(("mode", "adds"), [("in_place", True), ("abort", True), ("retract", False)])
def test_the_pause_mode_decides_which_rows_are_asked_for(mode: str, adds: bool) -> None:
    server = SessionServer(SimpleNamespace(**NAMESPACE | {"pause_generation_mode": mode}), "http://127.0.0.1:9")
    assert server.use_addition_r3 is adds


@pytest.mark.parametrize(("replay", "count"), [(True, 1), (False, 0)])
def test_what_is_risky_is_logged(replay: bool, count: int, caplog: pytest.LogCaptureFixture) -> None:
    risky = NAMESPACE | {"pause_generation_mode": "retract", "use_rollout_routing_replay": replay}
    SessionServer(SimpleNamespace(**risky), "http://127.0.0.1:9")
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(messages) == count
    assert all("--pause-generation-mode retract" in message for message in messages)


def test_routing_replay_of_a_dense_model_is_refused(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        source = Path(shipped_checkpoint()) / name
        if source.exists():
            shutil.copy(source, tmp_path)
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 28}')
    dense = NAMESPACE | {"hf_checkpoint": str(tmp_path), "use_rollout_routing_replay": True}
    with pytest.raises(ConfigError, match="needs a mixture of experts"):
        SessionServer(SimpleNamespace(**dense), "http://127.0.0.1:9")


def test_several_engines_stand_with_spaces_between() -> None:
    server = SessionServer(SimpleNamespace(**NAMESPACE), "http://127.0.0.1:9 http://127.0.0.1:10")
    assert server.config.engine.backend_url == ("http://127.0.0.1:9", "http://127.0.0.1:10")


@pytest.mark.parametrize("start", [SessionServer, run_session_server])
def test_what_cannot_work_is_raised_first(start: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentErrors, match="--partial-rollout"):
        start(
            SimpleNamespace(hf_checkpoint=str(tmp_path), pause_generation_mode="abort", partial_rollout=True),
            "http://e",
        )


def test_a_namespace_needs_a_checkpoint_and_a_pause_mode() -> None:
    with pytest.raises(ArgumentErrors) as caught:
        run_session_server(SimpleNamespace(), "http://127.0.0.1:9")
    assert [word for word in ("hf_checkpoint", "pause_generation_mode") if word not in str(caught.value)] == []


def test_the_entry_point_can_be_given_to_a_spawned_process() -> None:
    assert pickle.loads(pickle.dumps(run_session_server)) is run_session_server


async def test_an_application_comes_out_of_a_configuration_alone() -> None:
    config = NAMESPACE | {"backend_url": "http://127.0.0.1:9", "instance_id": "abc", "host": "127.0.0.1", "port": 1}
    server = SessionServer(SimpleNamespace(**config))
    assert server.backend_url == "http://127.0.0.1:9"
    async with running(server.app) as url, httpx.AsyncClient(base_url=url) as client:
        health = (await client.get("/health")).json()
        body = {"evaluation": False, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
        created = await client.post("/sessions", json=body)
    assert health["session_server_instance_id"] == "abc"
    assert (created.status_code, list(created.json())) == (200, ["session_id"])


COMMANDS = {
    "no configuration": ([], "--config-json"),
    "no JSON": (["--config-json", "{"], "not a JSON object"),
    "no object": (["--config-json", "[]"], "not a JSON object"),
    "another flag": (["--config-json", "{}", "--port", "1"], "--port"),
    "what cannot work": (
        ["--config-json", json.dumps({"backend_url": "http://127.0.0.1:9", "hf_checkpoint": "/c"})],
        "pause_generation_mode",
    ),
    "no engine": (["--config-json", "{}"], "backend_url"),
}


@pytest.mark.parametrize(("arguments", "named"), COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_says_what_cannot_work(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert named in capsys.readouterr().err
