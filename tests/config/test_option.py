"""One option as the outside sees it.

1. Flag, environment variable, TOML key and attribute all come from the field's name.
2. Every option has help, a sentence on when to change it unless it is hidden, and a name of its own.
3. A value is read as text or typed; one that is not of the option is refused with what was expected and what came.
"""

import pytest
from pydantic import ByteSize

from turnkeeper.choices import OnAbort
from turnkeeper.config.option import BY_ATTRIBUTE, OPTIONS, SHOWN_OPTIONS


def test_every_name_comes_from_the_field() -> None:
    option = BY_ATTRIBUTE["gate_timeout"]
    assert (option.section, option.field) == ("timeouts", "gate_timeout_s")
    assert (option.flag, option.environment, option.key, option.unit) == (
        "--gate-timeout",
        "TURNKEEPER_GATE_TIMEOUT",
        "gate-timeout",
        "s",
    )


def test_names_are_unique_over_all_sections() -> None:
    assert len({option.flag for option in OPTIONS}) == len(BY_ATTRIBUTE) == len(OPTIONS)


def test_every_option_has_a_line_of_help() -> None:
    assert [each.flag for each in OPTIONS if not each.help.endswith(".") or not 12 < len(each.help) <= 120] == []


def test_every_option_that_is_shown_says_when_to_change_it() -> None:
    assert [each.flag for each in SHOWN_OPTIONS if len(each.when_to_change) < 20] == []
    assert [each.flag for each in SHOWN_OPTIONS if not each.when_to_change.endswith(".")] == []


def test_an_option_for_tests_works_and_is_not_shown() -> None:
    hidden = [option for option in OPTIONS if option.is_hidden]
    assert [option.attribute for option in hidden] == ["stream_heartbeat"]
    assert hidden[0].parse("0.5") == 0.5
    assert not set(hidden) & set(SHOWN_OPTIONS)


def test_every_default_is_a_value_of_its_option() -> None:
    assert [each.flag for each in OPTIONS if each.parse(each.default) != each.default] == []


@pytest.mark.parametrize(
    ("attribute", "given", "value"),
    [
        pytest.param("gate_timeout", "2.5", 2.5, id="duration"),
        pytest.param("max_sessions", "7", 7, id="count"),
        pytest.param("max_body_bytes", "12MiB", ByteSize(12 << 20), id="size-with-unit"),
        pytest.param("on_abort", "resume", OnAbort.RESUME, id="choice"),
        pytest.param("strict_probe", "yes", True, id="switch"),
        pytest.param("backend_url", "http://a, http://b", ("http://a", "http://b"), id="several-as-text"),
        pytest.param("session_server_port", 31000, (31000,), id="one-port"),
        pytest.param("session_server_port", [31000, 31002], (31000, 31002), id="two-ports"),
        pytest.param("apply_chat_template_kwargs", '{"a": 1}', {"a": 1}, id="json-text"),
        pytest.param("apply_chat_template_kwargs", {"a": 1}, {"a": 1}, id="json-object"),
        pytest.param("use_session_server", True, "v1", id="version-as-true"),
        pytest.param("use_session_server", False, None, id="version-as-false"),
        pytest.param("use_session_server", "v2", "v2", id="version"),
        pytest.param("save_debug_trajectory_data", "debug/x.jsonl", True, id="a-path-means-on"),
        pytest.param("save_debug_trajectory_data", "no", False, id="no-means-off"),
    ],
)
def test_a_value_is_read(attribute: str, given: object, value: object) -> None:
    assert BY_ATTRIBUTE[attribute].parse(given) == value


@pytest.mark.parametrize(
    ("attribute", "given", "problem"),
    [
        pytest.param("gate_timeout", "soon", "should be a valid number, got 'soon'", id="not-a-number"),
        pytest.param("gate_timeout", 0, "should be greater than 0, got 0", id="no-time"),
        pytest.param("gate_timeout", "inf", "should be a finite number, got 'inf'", id="for-ever"),
        pytest.param("max_sessions", "1.5", "should be a valid integer, got '1.5'", id="not-whole"),
        pytest.param("on_abort", "retry", "should be 'restart', 'resume' or 'fail', got 'retry'", id="no-choice"),
        pytest.param(
            "session_server_port", "99999", "should be less than or equal to 65535, got '99999'", id="no-port"
        ),
        pytest.param("apply_chat_template_kwargs", "[1]", "should be a valid dictionary, got '[1]'", id="no-object"),
        pytest.param("apply_chat_template_kwargs", "{", "not a JSON object", id="no-json"),
        pytest.param("max_body_bytes", "much", "cannot be read", id="no-size"),
    ],
)
def test_a_value_that_is_not_of_the_option_is_refused(attribute: str, given: object, problem: str) -> None:
    with pytest.raises(ValueError, match="got") as caught:
        BY_ATTRIBUTE[attribute].parse(given)
    assert problem in str(caught.value)


def test_metavars_say_what_to_write() -> None:
    assert [BY_ATTRIBUTE[name].metavar for name in ("on_abort", "gate_timeout", "max_sessions", "strict_probe")] == [
        "restart|resume|fail",
        "SECONDS",
        "N",
        "",
    ]


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        ("gate_timeout", "600"),
        ("max_body_bytes", "256MiB"),
        ("session_server_port", "30100"),
        ("strict_probe", ""),
        ("on_abort", "restart"),
        ("spill_directory", ""),
    ],
)
def test_a_default_reads_as_one_would_write_it(attribute: str, text: str) -> None:
    assert BY_ATTRIBUTE[attribute].default_text == text
