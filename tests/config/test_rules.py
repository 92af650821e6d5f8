"""Which options go together.

1. Each rule has a case that breaks it, with what its message must say, and one that satisfies it.
2. All broken rules are reported at once, and each only where it applies.
3. A warning stops nothing.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from turnkeeper.config.load import load
from turnkeeper.config.resolve import resolve_command_line
from turnkeeper.config.rule import Entry, Findings, Severity
from turnkeeper.config.rules import RULES, check
from turnkeeper.errors import ArgumentErrors
from turnkeeper.rendering import FAMILIES

V1: dict[str, Any] = {"use_session_server": "v1", "hf_checkpoint": "/c", "pause_generation_mode": "in_place"}
V2: dict[str, Any] = V1 | {"use_session_server": "v2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    id: str
    """The rule's name; a suffix behind ``/`` tells cases of one rule apart."""
    breaks: dict[str, Any]
    holds: dict[str, Any]
    says: tuple[str, ...] = field(default=())
    """What the message names."""
    entry: Entry = Entry.TRAINER
    severity: Severity = Severity.ERROR


CASES = (
    Case(
        id="version_known",
        breaks=V1 | {"use_session_server": "v3"},
        holds=V2,
        says=("--use-session-server v3", "v1", "v2"),
    ),
    Case(
        id="trainer_option",
        breaks={"max_weight_staleness": 2, "custom_agent_function_path": "a.b"},
        holds={"group_rm": True},
        says=("--max-weight-staleness belongs to the trainer", "--custom-agent-function-path belongs to the trainer"),
        entry=Entry.SERVE,
    ),
    Case(
        id="engine_given",
        breaks={},
        holds={"backend_url": "http://127.0.0.1:30000"},
        says=("--backend-url http://127.0.0.1:30000",),
        entry=Entry.SERVE,
    ),
    Case(
        id="engine_address",
        breaks={"backend_url": ["http://a:1", "b:2"]},
        holds={"backend_url": ["http://a:1", "https://b/path"]},
        says=("--backend-url b:2",),
    ),
    Case(
        id="engine_address/port",
        breaks={"backend_url": ["http://a:99999"]},
        holds={"backend_url": ["http://[::1]:30000"]},
        says=("--backend-url http://a:99999",),
    ),
    Case(
        id="engine_address/password",
        breaks={"backend_url": ["http://me:pw@a:99999"]},
        holds={"backend_url": ["http://me:p%40w@a:1"]},
        says=("--backend-url http://***@a:99999",),
    ),
    Case(
        id="trace_endpoint",
        breaks={"trace_endpoint": "collector:4318"},
        holds={"trace_endpoint": "http://collector:4318/v1/traces"},
        says=("--trace-endpoint collector:4318",),
    ),
    Case(
        id="trace_endpoint/password",
        breaks={"trace_endpoint": "https://me:pw@collector/v1/traces"},
        holds={"trace_endpoint": "https://collector/v1/traces"},
        says=("--trace-endpoint https://***@collector/v1/traces", "OTEL_EXPORTER_OTLP_HEADERS"),
    ),
    Case(
        id="engine_key/twice",
        breaks={"engine_api_key": "k", "engine_api_key_file": "nowhere"},
        holds={"engine_api_key": "k"},
        says=("--engine-api-key and --engine-api-key-file",),
    ),
    Case(
        id="engine_key/spaces",
        breaks={"engine_api_key": "a b"},
        holds={},
        says=("printable ASCII",),
    ),
    Case(
        id="engine_key/file",
        breaks={"engine_api_key_file": "/nowhere/key"},
        holds={},
        says=("/nowhere/key cannot be read",),
    ),
    Case(
        id="server_keys/spaces",
        breaks={"api_key": ["a\u00e9"]},
        holds={"api_key": ["a", "b"]},
        says=("printable ASCII",),
    ),
    Case(
        id="server_keys/file",
        breaks={"api_key_file": "/nowhere/key"},
        holds={},
        says=("/nowhere/key cannot be read",),
    ),
    Case(
        id="forwarded_fields/weights",
        breaks={"forward_field": ["lora_path", "bootstrap_more"]},
        holds={"forward_field": ["documents", "chat_mode"]},
        says=("--forward-field lora_path: agents never choose weights", "--forward-field bootstrap_more: agents never"),
    ),
    Case(
        id="forwarded_fields/tokens",
        breaks={"forward_field": ["input_ids"]},
        holds={},
        says=("--forward-field input_ids: the field would take the tokens",),
    ),
    Case(
        id="forwarded_fields/fixed",
        breaks={"forward_field": ["rid"]},
        holds={},
        says=("--forward-field rid: the server fixes",),
    ),
    Case(
        id="forwarded_fields/listed",
        breaks={"forward_field": ["top_k"]},
        holds={},
        says=("--forward-field top_k: the field reaches the engines",),
    ),
    Case(
        id="passed_through/generates",
        breaks={"pass_through": ["GET health_generate", "POST v1/completions"]},
        holds={"pass_through": ["GET server_info", "post /v1/embeddings"]},
        says=("--pass-through 'GET health_generate': a route that generates", "'POST v1/completions'"),
    ),
    Case(
        id="passed_through/controls",
        breaks={"pass_through": ["POST flush_cache", "DELETE server_info", "server_info"]},
        holds={},
        says=(
            "'POST flush_cache': a route that controls",
            "'DELETE server_info': write METHOD",
            "'server_info': write",
        ),
    ),
    Case(
        id="one_port",
        breaks={"session_server_port": [31000, 31004]},
        holds={"session_server_port": [31000]},
        says=("31000 31004", "--session-server-workers N"),
    ),
    Case(
        id="some_workers",
        breaks={"session_server_workers": 0},
        holds={"session_server_workers": 1},
        says=("--session-server-workers 0", "at least 1"),
    ),
    Case(
        id="ports_exist",
        breaks={"session_server_port": 65535, "session_server_workers": 2},
        holds={"session_server_port": 65534, "session_server_workers": 2},
        says=("--session-server-port 65535", "--session-server-workers 2", "65536"),
    ),
    Case(
        id="timeouts_nest/engine",
        breaks={"engine_timeout": 3600, "request_timeout": 3600},
        holds={"engine_timeout": 3599, "request_timeout": 3600},
        says=("--engine-timeout 3600 must be shorter than --request-timeout 3600",),
    ),
    Case(
        id="timeouts_nest/gate",
        breaks={"gate_timeout": 4000, "request_timeout": 3600},
        holds={"gate_timeout": 4000, "request_timeout": 5000},
        says=("--gate-timeout 4000 must be shorter than --request-timeout 3600",),
    ),
    Case(
        id="timeouts_nest/both",
        breaks={"request_timeout": 500},
        holds={"engine_timeout": 7200, "gate_timeout": 7200},
        says=(
            "--engine-timeout 1800 must be shorter than --request-timeout 500",
            "--gate-timeout 600 must be shorter than --request-timeout 500",
        ),
    ),
    Case(
        id="checkpoint_given",
        breaks={"use_session_server": "v1"},
        holds=V1,
        says=("--hf-checkpoint", "hf_checkpoint"),
    ),
    Case(
        id="family_known",
        breaks=V1 | {"tito_model": "qwen33"},
        holds=V1 | {"tito_model": "qwen3"},
        says=("qwen33", "did you mean qwen3"),
    ),
    Case(
        id="family_needs_server",
        breaks={"tito_model": "qwen3"},
        holds=V1 | {"tito_model": "qwen3"},
        says=("--tito-model qwen3", "--use-session-server"),
    ),
    Case(
        id="family_is_default",
        breaks=V1,
        holds=V1 | {"tito_model": "qwen3"},
        says=("best effort", "turnkeeper verify"),
        severity=Severity.WARNING,
    ),
    Case(
        id="template_or_family",
        breaks=V1 | {"tito_model": "qwen3", "chat_template_path": __file__},
        holds=V1 | {"chat_template_path": __file__},
        says=(__file__, "--tito-model qwen3"),
    ),
    Case(
        id="template_exists",
        breaks=V1 | {"chat_template_path": "/nowhere/t.jinja"},
        holds=V1 | {"chat_template_path": __file__},
        says=("--chat-template-path /nowhere/t.jinja",),
    ),
    Case(
        id="tools_of_engine",
        breaks=V1 | {"render_tools": "engine", "engine": "vllm"},
        holds=V1 | {"render_tools": "engine"},
        says=("--render-tools engine", "--engine vllm"),
    ),
    Case(
        id="template_arguments",
        breaks=V1 | {"apply_chat_template_kwargs": {"add_generation_prompt": False}},
        holds=V1 | {"apply_chat_template_kwargs": {"enable_thinking": False}},
        says=("--apply-chat-template-kwargs", "add_generation_prompt"),
    ),
    Case(
        id="matcher_known",
        breaks={"session_message_matcher": "tolerent"},
        holds={"session_message_matcher": "my.module.match"},
        says=("--session-message-matcher 'tolerent'", "did you mean tolerant"),
    ),
    Case(
        id="picker_known",
        breaks={"session_sample_picker_path": "all"},
        holds={"session_sample_picker_path": "keep_siblings"},
        says=("--session-sample-picker-path 'all'", "drop_retries"),
    ),
    Case(
        id="postprocessor_known",
        breaks={"session_sample_postprocessor_path": "my module.f"},
        holds={"session_sample_postprocessor_path": "my.module.f"},
        says=("--session-sample-postprocessor-path 'my module.f'", "default_postprocess"),
    ),
    Case(
        id="pause_mode_given",
        breaks={"use_session_server": "v1", "hf_checkpoint": "/c"},
        holds=V1,
        says=("pause_generation_mode", "--pause-generation-mode"),
    ),
    Case(
        id="partial_rollout/v1",
        breaks=V1 | {"partial_rollout": True},
        holds={"partial_rollout": True},
        says=("--use-session-server", "--partial-rollout", "cannot be recycled", "Leave --partial-rollout out"),
    ),
    Case(
        id="partial_rollout/v2",
        breaks=V2 | {"partial_rollout": True},
        holds=V2,
        says=("--use-session-server", "--partial-rollout"),
    ),
    Case(
        id="partial_rollout/serve",
        breaks={"partial_rollout": True},
        holds={},
        says=("--use-session-server", "--partial-rollout"),
        entry=Entry.SERVE,
    ),
    Case(
        id="tree_group_rm",
        breaks=V2 | {"group_rm": True},
        holds=V1 | {"group_rm": True},
        says=("--use-session-server v2", "--group-rm"),
    ),
    Case(
        id="tree_recompute",
        breaks=V2 | {"recompute_logprobs_via_prefill": True},
        holds=V1 | {"recompute_logprobs_via_prefill": True},
        says=("--use-session-server v2", "--recompute-logprobs-via-prefill"),
    ),
    Case(
        id="retract_replay",
        breaks=V1 | {"pause_generation_mode": "retract", "use_rollout_routing_replay": True},
        holds=V1 | {"pause_generation_mode": "abort", "use_rollout_routing_replay": True},
        says=(
            "--use-session-server",
            "--use-rollout-routing-replay",
            "--pause-generation-mode retract",
            "every turn",
            "very large",
            "known faults",
        ),
        severity=Severity.WARNING,
    ),
    Case(
        id="retract_replay/without-replay",
        breaks=V2 | {"pause_generation_mode": "retract", "use_rollout_routing_replay": True},
        holds=V2 | {"pause_generation_mode": "retract"},
        severity=Severity.WARNING,
    ),
    Case(
        id="retract_replay/without-session-server",
        breaks=V2 | {"pause_generation_mode": "retract", "use_rollout_routing_replay": True},
        holds={"pause_generation_mode": "retract", "use_rollout_routing_replay": True},
        severity=Severity.WARNING,
    ),
    Case(
        id="masks_need_top_k",
        breaks=V1 | {"use_rollout_sampling_mask": True},
        holds=V1,
        says=("--use-rollout-sampling-mask", "finite top_k", "vLLM"),
        severity=Severity.WARNING,
    ),
    Case(
        id="colocated_in_place",
        breaks=V1 | {"colocate": True},
        holds=V1 | {"colocate": True, "pause_generation_mode": "abort"},
        says=("--colocate", "--pause-generation-mode in_place", "idle"),
        severity=Severity.WARNING,
    ),
    Case(
        id="fully_async_abort",
        breaks={"fully_async": True, "pause_generation_mode": "abort"},
        holds={"fully_async": True, "pause_generation_mode": "in_place"},
        says=("--fully-async", "--pause-generation-mode abort"),
    ),
    Case(
        id="fully_async_partial_rollout",
        breaks={"fully_async": True, "partial_rollout": True},
        holds={"fully_async": True},
        says=("--fully-async", "--partial-rollout"),
    ),
    Case(
        id="fully_async_colocate",
        breaks={"fully_async": True, "colocate": True},
        holds={"colocate": True},
        says=("--fully-async", "--colocate"),
    ),
    Case(
        id="fully_async_recompute",
        breaks={"fully_async": True, "recompute_logprobs_via_prefill": True},
        holds={"fully_async": False, "recompute_logprobs_via_prefill": True},
        says=("--fully-async", "--recompute-logprobs-via-prefill"),
    ),
    Case(
        id="mask_without_partial",
        breaks={"mask_offpolicy_in_partial_rollout": True},
        holds={"mask_offpolicy_in_partial_rollout": True, "partial_rollout": True},
        says=("--mask-offpolicy-in-partial-rollout", "--partial-rollout"),
        entry=Entry.SERVE,
    ),
    Case(
        id="mask_without_partial_trainer",
        breaks={"mask_offpolicy_in_partial_rollout": True},
        holds={"mask_offpolicy_in_partial_rollout": True, "partial_rollout": True},
        says=("--mask-offpolicy-in-partial-rollout", "--partial-rollout"),
        severity=Severity.WARNING,
    ),
)


def find(findings: Findings, case: Case) -> list[str]:
    name = case.id.partition("/")[0]
    return [violation.message for violation in findings.violations if violation.rule.name == name]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_broken_rule_is_found_and_says_what_to_do(case: Case) -> None:
    findings = check(load(case.breaks), case.entry)
    (message,) = find(findings, case)
    assert [text for text in case.says if text not in message] == []
    assert message in (findings.errors if case.severity is Severity.ERROR else findings.warnings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_rule_that_holds_is_silent(case: Case) -> None:
    assert find(check(load(case.holds), case.entry), case) == []


def test_every_rule_has_its_cases() -> None:
    assert {case.id.partition("/")[0] for case in CASES} == {rule.name for rule in RULES}


PINS = [
    pytest.param(family.name, name, value, id=f"{family.name}-{name}")
    for family in FAMILIES.values()
    for name, value in family.pinned.items()
]


@pytest.mark.parametrize(("family", "name", "value"), PINS)
def test_an_argument_that_a_family_pins_may_be_repeated_but_not_contradicted(
    family: str, name: str, value: object
) -> None:
    options = V1 | {"tito_model": family}
    assert check(load(options | {"apply_chat_template_kwargs": {name: value}}), Entry.TRAINER).errors == ()
    (error,) = check(load(options | {"apply_chat_template_kwargs": {name: "other"}}), Entry.TRAINER).errors
    assert f"{name}='other'" in error
    assert f"{name}={value!r}" in error


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("colocate", [False, True])
def test_a_session_server_goes_with_abort_colocated_or_not(version: str, colocate: bool) -> None:
    options = V1 | {"use_session_server": version, "colocate": colocate, "tito_model": "qwen3"}
    assert check(load(options | {"pause_generation_mode": "abort"}), Entry.TRAINER).violations == ()


def test_a_trainer_without_a_session_server_needs_nothing() -> None:
    assert check(load({}), Entry.TRAINER).violations == ()


def test_everything_that_is_broken_is_reported_at_once() -> None:
    with pytest.raises(ArgumentErrors) as caught:
        resolve_command_line(["--partial-rollout", "--request-timeout", "500"], environment={})
    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines] == ["no", "timeouts", "a", "--use-session-server"]
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AssertionError)


def test_a_warning_stops_nothing() -> None:
    words = "--hf-checkpoint /c --backend-url http://e:1 --use-rollout-routing-replay".split()  # noqa: SIM905
    config = resolve_command_line(words, environment={})
    assert [warning.split()[0] for warning in config.warnings] == ["--tito-model", "--use-session-server"]
