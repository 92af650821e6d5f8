"""Options out of a namespace that a trainer owns.

1. Attributes are the flags with underscores; what is missing or None is not given.
2. What miles calls or fills in otherwise is understood, and none of its modules is imported.
3. A namespace that turns a session server on needs hf_checkpoint and pause_generation_mode.
4. `validate_args` raises everything that cannot work at once, and logs what is only risky.
5. A namespace that names its instance, or its port as a number, is that of one server, whatever it says of workers.
6. The configuration of one server is read under its own names, and names its engines.
7. What is asked for and not done here is refused with what to do instead.
"""

import argparse
import enum
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnkeeper.choices import HistoryKind, PauseMode
from turnkeeper.config.load import Source
from turnkeeper.config.namespace import (
    UNSERVED,
    miles_validate_args,
    options_from_namespace,
    resolve_namespace,
    validate_args,
)
from turnkeeper.config.parser import add_arguments
from turnkeeper.errors import ArgumentErrors, ConfigError

BARE: dict[str, Any] = {"hf_checkpoint": "/c", "pause_generation_mode": "in_place", "tito_model": "qwen3"}

MILES: dict[str, Any] = {
    "use_session_server": True,
    "hf_checkpoint": "/c",
    "pause_generation_mode": "retract",
    "tito_model": "qwen3",
    "chat_template_path": "/site-packages/miles/utils/chat_template_utils/templates/qwen3_fixed.jinja",
    "apply_chat_template_kwargs": {"clear_thinking": False},
    "session_message_matcher": "strict",
    "session_sample_picker_path": "miles.rollout.session.v2.picker_hub.drop_retries",
    "session_sample_postprocessor_path": "miles.rollout.session.v2.postprocessor_hub.default_postprocess",
    "session_server_ip": "10.0.0.1",
    "session_server_port": 5123,
    "session_server_instance_id": "abc",
    "miles_router_timeout": 900.0,
    "sglang_speculative_algorithm": None,
    "save_debug_trajectory_data": None,
    "use_rollout_routing_replay": True,
    "use_rollout_indexer_replay": False,
    "num_layers": 48,
    "num_experts": 128,
    "moe_router_topk": 8,
    "world_size": 64,
}
"""What a session server of miles is started with, as far as it reads it."""


def test_a_bare_namespace_is_enough() -> None:
    config = resolve_namespace(argparse.Namespace(**BARE), ("http://e:1",))
    assert config.engine.backend_url == ("http://e:1",)
    assert config.engine.pause_generation_mode is PauseMode.IN_PLACE
    assert config.use_addition_r3
    assert config.history_kind is HistoryKind.LINEAR
    assert config.history.session_message_matcher == "tolerant"


def test_what_miles_starts_a_server_with_is_understood() -> None:
    config = resolve_namespace(argparse.Namespace(**MILES), ("http://e:1",))
    assert config.model.chat_template_path is None
    assert config.model.apply_chat_template_kwargs == {"clear_thinking": False}
    assert (config.server.session_server_ip, config.ports, config.instance_id) == ("10.0.0.1", (5123,), "abc")
    assert config.timeouts.engine_timeout_s == 900.0
    assert not config.history.save_debug_trajectory_data
    assert (config.model.num_layers, config.model.moe_router_topk, config.model.num_experts) == (48, 8, 128)
    assert not any(name.split(".")[0] == "miles" for name in sys.modules)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        pytest.param({"miles_router_timeout": None}, 1800.0, id="neither"),
        pytest.param({"miles_router_timeout": 60}, 60.0, id="theirs"),
        pytest.param({"miles_router_timeout": 60, "engine_timeout": 70}, 70.0, id="ours-wins"),
    ],
)
def test_the_routers_timeout_is_the_engines(changes: dict[str, Any], seconds: float) -> None:
    config = resolve_namespace(SimpleNamespace(**BARE | changes), ())
    assert config.timeouts.engine_timeout_s == seconds


def test_a_timeout_that_does_not_nest_is_named() -> None:
    with pytest.raises(ArgumentErrors, match="--engine-timeout 7200 must be shorter than --request-timeout 3600"):
        resolve_namespace(SimpleNamespace(**BARE, miles_router_timeout=7200, request_timeout=3600), ())


def test_a_turn_may_take_as_long_as_the_routers_timeout_asks() -> None:
    config = resolve_namespace(SimpleNamespace(**BARE, miles_router_timeout=7200), ())
    assert config.request_timeout_s == 14400


def test_a_bad_value_goes_by_the_name_that_the_trainer_gave_it() -> None:
    with pytest.raises(ArgumentErrors, match=r"--engine-timeout \(from miles_router_timeout\) should be greater"):
        options_from_namespace(SimpleNamespace(miles_router_timeout=0))


@pytest.mark.parametrize("version", [False, None, True, "v1", "v2"])
def test_a_session_server_is_on_whatever_the_namespace_says(version: object) -> None:
    config = resolve_namespace(SimpleNamespace(**BARE, use_session_server=version), ())
    assert config.history_kind is (HistoryKind.TREE if version == "v2" else HistoryKind.LINEAR)


def test_paths_and_enums_count_as_their_text() -> None:
    mode = enum.Enum("Mode", {"HOLD": "in_place"})
    settings = options_from_namespace(
        SimpleNamespace(hf_checkpoint=Path("/c"), pause_generation_mode=mode["HOLD"])
    ).settings
    assert settings.model.hf_checkpoint == "/c"
    assert settings.engine.pause_generation_mode is PauseMode.IN_PLACE


def test_the_environment_stands_behind_the_namespace() -> None:
    environment = {"TURNKEEPER_GATE_TIMEOUT": "30", "TURNKEEPER_TITO_MODEL": "default"}
    loaded = options_from_namespace(SimpleNamespace(**BARE), environment=environment)
    assert loaded.settings.timeouts.gate_timeout_s == 30
    assert loaded.settings.model.tito_model == "qwen3"
    assert loaded.origins["tito_model"].source is Source.NAMESPACE


def test_what_a_bare_namespace_lacks_is_named_by_attribute_and_flag() -> None:
    with pytest.raises(ArgumentErrors) as caught:
        resolve_namespace(SimpleNamespace(tito_model="qwen3"), ())
    checkpoint, mode = str(caught.value).splitlines()
    assert "--hf-checkpoint" in checkpoint
    assert "hf_checkpoint" in checkpoint
    assert "pause_generation_mode" in mode
    assert "--pause-generation-mode" in mode


def test_a_template_that_a_user_chose_does_not_go_with_a_family() -> None:
    with pytest.raises(ArgumentErrors, match="cannot replace the template of --tito-model qwen3"):
        resolve_namespace(SimpleNamespace(**BARE, chat_template_path=__file__), ())


def test_validation_raises_everything_at_once() -> None:
    arguments = SimpleNamespace(**BARE, use_session_server="v2", partial_rollout=True, group_rm=True, fully_async=True)
    with pytest.raises(ArgumentErrors) as caught:
        miles_validate_args(arguments)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "--use-session-server does not go with --partial-rollout",
        "--use-session-server v2 does not go with --group-rm",
        "--fully-async does not go with --partial-rollout",
    ]


@pytest.mark.parametrize("kind", [ValueError, AssertionError, ConfigError])
def test_the_error_is_of_every_kind_that_callers_catch(kind: type[Exception]) -> None:
    with pytest.raises(kind):
        validate_args(SimpleNamespace(**BARE, use_session_server=True, partial_rollout=True))


def test_validation_logs_what_is_risky_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    arguments = SimpleNamespace(**MILES, mask_offpolicy_in_partial_rollout=True)
    before = dict(vars(arguments))
    with caplog.at_level(logging.WARNING, "turnkeeper.config"):
        validate_args(arguments)
    assert [record.getMessage().split()[0] for record in caplog.records] == [
        "--use-session-server",
        "--mask-offpolicy-in-partial-rollout",
    ]
    assert vars(arguments) == before


def test_arguments_of_a_parser_that_got_our_flags_are_valid() -> None:
    parser = add_arguments(argparse.ArgumentParser(), environment={})
    validate_args(parser.parse_args([]))
    validate_args(
        parser.parse_args(["--use-session-server", "--hf-checkpoint", "/c", "--custom-agent-function-path", "a.b"])
    )


LORA: dict[str, tuple[dict[str, Any], str | None]] = {
    "nothing": ({}, None),
    "rank 0": ({"lora_rank": 0, "lora_adapter_path": None}, None),
    "rank": ({"lora_rank": 32}, "miles_lora"),
    "rank as text": ({"lora_rank": "32"}, "miles_lora"),
    "rank 0 as text": ({"lora_rank": "0"}, None),
    "no rank at all": ({"lora_rank": "none"}, None),
    "adapter": ({"lora_rank": 0, "lora_adapter_path": "/adapter"}, "miles_lora"),
    "adapter alone": ({"lora_adapter_path": Path("/adapter")}, "miles_lora"),
    "trained, not sampled with": ({"lora_rank": 32, "lora_train_only": True}, None),
    "a name of its own": ({"lora_rank": 32, "lora_name": "mine"}, "mine"),
}


@pytest.mark.parametrize(("attributes", "name"), LORA.values(), ids=LORA.keys())
def test_an_adapter_that_is_trained_is_sampled_with(attributes: dict[str, Any], name: str | None) -> None:
    assert resolve_namespace(SimpleNamespace(**BARE, **attributes), ()).engine.lora_name == name


SERVERS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "nothing": ({}, (30100,)),
    "workers alone": ({"session_server_workers": 3}, (30100, 30101, 30102)),
    "workers from a flag's port": ({"session_server_port": [31000], "session_server_workers": 2}, (31000, 31001)),
    "workers on free ports": ({"session_server_port": 0, "session_server_workers": 2}, (0, 0)),
    "its port": ({"session_server_port": 31007, "session_server_workers": 32}, (31007,)),
    "its port as text": ({"session_server_port": "31007", "session_server_workers": 32}, (31007,)),
    "its instance": ({"session_server_instance_id": "r-7", "session_server_workers": 32}, (30100,)),
    "its instance on a free port": (
        {"session_server_instance_id": "r-7", "session_server_port": 0, "session_server_workers": 2},
        (0,),
    ),
    "its instance and a flag's port": (
        {"session_server_instance_id": "r-7", "session_server_port": [31007], "session_server_workers": 4},
        (31007,),
    ),
    "the last port there is": ({"session_server_port": 65535, "session_server_workers": 32}, (65535,)),
}


@pytest.mark.parametrize(("given", "ports"), SERVERS.values(), ids=SERVERS.keys())
def test_one_server_among_several_serves_from_one_port(given: dict[str, Any], ports: tuple[int, ...]) -> None:
    config = resolve_namespace(SimpleNamespace(**BARE | given), ())
    assert config.ports == ports
    assert config.server.session_server_workers == len(ports)


def test_workers_of_the_environment_are_not_those_of_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEPER_SESSION_SERVER_WORKERS", "4")
    assert resolve_namespace(SimpleNamespace(**BARE, session_server_port=31007), ()).ports == (31007,)
    assert len(resolve_namespace(SimpleNamespace(**BARE), ()).ports) == 4


CONFIG: dict[str, Any] = {
    "host": "10.0.0.1",
    "port": 31007,
    "instance_id": "run-7",
    "backend_url": "http://e:1",
    "timeout": 900.0,
    "hf_checkpoint": "/c",
    "chat_template_path": None,
    "tito_model": "glm53",
    "apply_chat_template_kwargs": {"clear_thinking": False},
    "use_rollout_routing_replay": True,
    "use_rollout_indexer_replay": False,
    "use_sampling_support_replay": False,
    "sglang_output_store_backend": "none",
    "sglang_speculative_algorithm": None,
    "num_layers": 48,
    "moe_router_topk": 8,
    "save_debug_trajectory_data": None,
    "lora_rank": 0,
    "lora_adapter_path": None,
    "lora_train_only": False,
    "use_session_server": "v2",
    "session_message_matcher": "strict",
    "pause_generation_mode": "retract",
    "custom_rollout_request_hook_path": None,
    "custom_rollout_request_hook_args": {},
    "session_sample_picker_path": "miles.rollout.session.v2.picker_hub.drop_retries",
    "session_sample_postprocessor_path": "miles.rollout.session.v2.postprocessor_hub.default_postprocess",
}
"""What later trees of miles construct one session server of."""


def test_the_configuration_of_one_server_is_understood() -> None:
    config = resolve_namespace(SimpleNamespace(**CONFIG))
    assert (config.server.session_server_ip, config.ports, config.instance_id) == ("10.0.0.1", (31007,), "run-7")
    assert config.engine.backend_url == ("http://e:1",)
    assert config.timeouts.engine_timeout_s == 900.0
    assert config.history_kind is HistoryKind.TREE
    assert config.model.tito_model == "glm53"
    assert not any(name.split(".")[0] == "miles" for name in sys.modules)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        pytest.param({"timeout": None}, 1800.0, id="neither"),
        pytest.param({"timeout": None, "engine_timeout": 70}, 70.0, id="ours"),
        pytest.param({"engine_timeout": 70}, 70.0, id="ours-wins"),
    ],
)
def test_our_names_win_in_a_configuration_too(changes: dict[str, Any], seconds: float) -> None:
    assert resolve_namespace(SimpleNamespace(**CONFIG | changes)).timeouts.engine_timeout_s == seconds


def test_names_of_a_configuration_mean_nothing_in_a_namespace() -> None:
    namespace = SimpleNamespace(**BARE, host="10.0.0.1", port=5, timeout=3, instance_id="x", backend_url="http://x:1")
    config = resolve_namespace(namespace, ("http://e:1",))
    assert (config.server.session_server_ip, config.ports) == ("127.0.0.1", (30100,))
    assert (config.engine.backend_url, config.timeouts.engine_timeout_s) == (("http://e:1",), 1800.0)


@pytest.mark.parametrize(
    ("url", "urls"),
    [
        pytest.param("http://e:1 http://e:2", ("http://e:1", "http://e:2"), id="text"),
        pytest.param(["http://e:1", "http://e:2"], ("http://e:1", "http://e:2"), id="list"),
    ],
)
def test_a_configuration_names_its_engines(url: Any, urls: tuple[str, ...]) -> None:
    assert resolve_namespace(SimpleNamespace(**CONFIG | {"backend_url": url})).engine.backend_url == urls


@pytest.mark.parametrize("url", [None, "", []])
def test_a_configuration_without_an_engine_is_refused(url: object) -> None:
    with pytest.raises(ArgumentErrors, match="give backend_url"):
        resolve_namespace(SimpleNamespace(**CONFIG | {"backend_url": url}))


def test_a_hook_on_requests_and_its_arguments_are_taken_and_not_imported() -> None:
    given = {"custom_rollout_request_hook_path": "nowhere.hook", "custom_rollout_request_hook_args": {"a": 1}}
    config = resolve_namespace(SimpleNamespace(**CONFIG | given))
    assert config.engine.custom_rollout_request_hook_path == "nowhere.hook"
    assert config.engine.custom_rollout_request_hook_args == {"a": 1}
    assert options_from_namespace(SimpleNamespace(**BARE | given)).warnings == ()


def test_a_hook_of_the_older_form_is_taken_with_a_warning_and_not_called() -> None:
    """Trees without arguments for the hook call it with all of their own."""
    given = {"custom_rollout_request_hook_path": "nowhere.hook"}
    loaded = options_from_namespace(SimpleNamespace(**BARE | given))
    (warning,) = loaded.warnings
    assert warning.startswith("custom_rollout_request_hook_path nowhere.hook is not called")
    assert loaded.settings.engine.custom_rollout_request_hook_path is None


ASKED = {"sglang_output_store_backend": "mooncake"}


@pytest.mark.parametrize("name", UNSERVED)
def test_what_is_not_done_here_is_refused(name: str) -> None:
    asked = SimpleNamespace(**BARE | {"use_session_server": "v1", name: ASKED[name]})
    for check in (validate_args, lambda namespace: resolve_namespace(namespace, ())):
        with pytest.raises(ArgumentErrors, match=f"^{name} {ASKED[name]}: "):
            check(asked)
    validate_args(SimpleNamespace(**BARE | {"tito_model": "default", "use_session_server": False, name: ASKED[name]}))
