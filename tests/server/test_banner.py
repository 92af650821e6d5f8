"""What a server says of itself once it serves: the whole configuration can be told from it, and no key."""

import os

from turnkeeper.config.load import load
from turnkeeper.config.resolve import resolve
from turnkeeper.server.banner import describe_start, list_changed


def test_the_banner_says_what_serves() -> None:
    given = {
        "hf_checkpoint": "/models/Qwen3-8B",
        "tito_model": "qwen3",
        "backend_url": "http://user:s3cret@a, http://b",
        "use_session_server": "v2",
        "use_rollout_routing_replay": True,
        "session_server_instance_id": "one",
        "api_key": "s3cret",
        "gate_timeout": 30,
    }
    event = describe_start(resolve(load(given)), "http://127.0.0.1:1")
    assert event.name == "server_started"
    fields = {name: value for name, value in event.fields.items() if name not in ("version", "options")}
    assert fields == {
        "url": "http://127.0.0.1:1",
        "instance": "one",
        "pid": os.getpid(),
        "family": "qwen3",
        "checkpoint": "Qwen3-8B",
        "history": "tree",
        "engines": ("http://a", "http://b"),
        "engine_wire": None,
        "routing_replay": "experts",
        "pause_mode": "retract",
        "on_abort": "restart",
        "store": "memory",
        "keys": True,
    }
    assert "s3cret" not in str(event)


def test_options_that_differ_from_their_defaults_are_listed() -> None:
    given = {
        "hf_checkpoint": "/c",
        "gate_timeout": 30,
        "max_sessions": 65536,
        "custom_rollout_request_hook_args": {"token": "s3cret"},
        "apply_chat_template_kwargs": {"enable_thinking": False},
        "engine_api_key": "s3cret",
        "forward_field": "a b",
        "strict_probe": True,
    }
    assert list_changed(resolve(load(given))) == {
        "hf-checkpoint": "/c",
        "apply-chat-template-kwargs": '{"enable_thinking":false}',
        "engine-api-key": "***",
        "strict-probe": "true",
        "forward-field": "a b",
        "custom-rollout-request-hook-args": "***",
        "gate-timeout": "30",
    }
