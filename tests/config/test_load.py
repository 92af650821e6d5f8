"""From what an operator wrote to checked values.

1. A flag wins over the environment, that over the file, that over the default; each value keeps its origin.
2. All values that cannot be read are reported at once, each with its flag and where it came from.
3. A key of the file that is no option is an error; a variable that is nearly an option is a warning.
"""

import tempfile
from collections import ChainMap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeeper.config.load import Source, load
from turnkeeper.config.option import OPTIONS
from turnkeeper.errors import ArgumentErrors, ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "turnkeeper.toml"
    path.write_text('gate-timeout = 30\nbackend-url = ["http://f"]\n[apply-chat-template-kwargs]\nthinking = true\n')
    return path


@pytest.mark.parametrize(
    ("flags", "environment", "with_file", "value", "source"),
    [
        pytest.param({"gate_timeout": "10"}, {"TURNKEEPER_GATE_TIMEOUT": "20"}, True, 10.0, Source.FLAG, id="flag"),
        pytest.param({}, {"TURNKEEPER_GATE_TIMEOUT": "20"}, True, 20.0, Source.ENVIRONMENT, id="environment"),
        pytest.param({}, {"TURNKEEPER_GATE_TIMEOUT": ""}, True, 30.0, Source.FILE, id="empty-variable"),
        pytest.param({"gate_timeout": None}, {}, True, 30.0, Source.FILE, id="file"),
        pytest.param({}, {}, False, 600.0, Source.DEFAULT, id="default"),
    ],
)
def test_the_nearer_source_wins(
    flags: dict[str, str | None], environment: dict[str, str], with_file: bool, value: float, source: Source, file: Path
) -> None:
    loaded = load(flags, environment=environment, file=file if with_file else None)
    assert loaded.settings.timeouts.gate_timeout_s == value
    assert loaded.origins["gate_timeout"].source is source
    assert loaded.is_given("gate_timeout") is (source is not Source.DEFAULT)


def test_every_option_has_an_origin() -> None:
    assert set(load({}).origins) == {option.attribute for option in OPTIONS}


def test_the_environment_may_name_the_file(file: Path) -> None:
    loaded = load({}, environment={"TURNKEEPER_CONFIG": str(file)})
    assert loaded.settings.engine.backend_url == ("http://f",)
    assert loaded.settings.model.apply_chat_template_kwargs == {"thinking": True}
    assert str(loaded.origins["backend_url"]) == str(file)


def test_all_values_that_cannot_be_read_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("max-sesions = 3\nmax-in-flight = 'many'\n")
    with pytest.raises(ArgumentErrors) as caught:
        load(
            {"gate_timeout": "soon"},
            environment={"TURNKEEPER_ON_ABORT": "retry"},
            file=tmp_path / "c.toml",
        )
    assert str(caught.value).splitlines() == [
        f"{tmp_path}/c.toml: max-sesions is no option; did you mean max-sessions?",
        "--on-abort (from TURNKEEPER_ON_ABORT) should be 'restart', 'resume' or 'fail', got 'retry'",
        "--gate-timeout should be a valid number, got 'soon'",
        f"--max-in-flight (from {tmp_path}/c.toml) should be a valid integer, got 'many'",
    ]


def test_a_value_of_a_namespace_goes_by_its_attribute() -> None:
    with pytest.raises(ArgumentErrors, match=r"--gate-timeout \(from gate_timeout\) should be greater than 0, got -1"):
        load({"gate_timeout": -1}, source=Source.NAMESPACE)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config .*none\.toml: No such file"):
        load({}, file=tmp_path / "none.toml")


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("gate-timeout: 3")
    with pytest.raises(ConfigError, match=r"c\.toml is not TOML"):
        load({}, file=tmp_path / "c.toml")


def test_a_variable_one_slip_away_from_an_option_is_a_warning() -> None:
    loaded = load({}, environment={"TURNKEEPER_GATE_TIMOUT": "3", "TURNKEEPER_SERVICE_HOST": "10.0.0.1"})
    assert loaded.warnings == ("TURNKEEPER_GATE_TIMOUT is no option; did you mean TURNKEEPER_GATE_TIMEOUT?",)


COUNTS = ("max_sessions", "max_session_turns", "max_in_flight", "num_layers")
LAYER = st.dictionaries(st.sampled_from(COUNTS), st.integers(min_value=1, max_value=10**6))


@given(flags=LAYER, variables=LAYER, table=LAYER)
@settings(max_examples=60)
def test_layers_lie_over_each_other_as_a_chain_of_maps(
    flags: dict[str, int], variables: dict[str, int], table: dict[str, int]
) -> None:
    defaults = {option.attribute: option.default for option in OPTIONS if option.attribute in COUNTS}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("".join(f"{name.replace('_', '-')} = {value}\n" for name, value in table.items()))
        file.flush()
        environment = {f"TURNKEEPER_{name.upper()}": str(value) for name, value in variables.items()}
        loaded = load(flags, environment=environment, file=Path(file.name))
    found = loaded.settings.limits.model_dump() | loaded.settings.model.model_dump()
    assert {name: found[name] for name in COUNTS} == dict(ChainMap(flags, variables, table, defaults))
