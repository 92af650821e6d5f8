"""What follows from the options.

1. Turns ask for the rows they add in every pause mode but retract.
2. v1 reads sessions linear, v2 as a tree; a choice that was not made follows the session's kind.
3. Workers listen on consecutive ports; port 0 stays 0 for each.
4. The wire is chosen by whoever names one; the default that a trainer's namespace is filled with names none.
"""

import pytest

from turnkeeper.choices import EngineWire, HistoryKind, OnToolsChange, OnTruncated
from turnkeeper.config.load import Source, load
from turnkeeper.config.resolve import resolve


@pytest.mark.parametrize(("mode", "adds"), [("abort", True), ("in_place", True), ("retract", False)])
def test_the_pause_mode_decides_which_rows_are_asked_for(mode: str, adds: bool) -> None:
    assert resolve(load({"pause_generation_mode": mode})).use_addition_r3 is adds


@pytest.mark.parametrize(
    ("version", "kind"), [(None, HistoryKind.LINEAR), ("v1", HistoryKind.LINEAR), ("v2", HistoryKind.TREE)]
)
def test_the_version_decides_how_sessions_are_read(version: str | None, kind: HistoryKind) -> None:
    assert resolve(load({"use_session_server": version})).history_kind is kind


def test_choices_that_were_not_made_follow_the_sessions_kind() -> None:
    config = resolve(load({}))
    assert [
        (config.get_on_tools_change(kind), config.get_on_truncated(kind))
        for kind in (HistoryKind.LINEAR, HistoryKind.TREE)
    ] == [(OnToolsChange.KEEP, OnTruncated.BRIDGE), (OnToolsChange.FORK, OnTruncated.CLOSE)]


def test_choices_that_were_made_hold_for_both_kinds() -> None:
    config = resolve(load({"on_tools_change": "refuse", "on_truncated": "bridge"}))
    assert {config.get_on_tools_change(kind) for kind in HistoryKind} == {OnToolsChange.REFUSE}
    assert {config.get_on_truncated(kind) for kind in HistoryKind} == {OnTruncated.BRIDGE}


@pytest.mark.parametrize(("port", "ports"), [(31000, (31000, 31001, 31002)), (0, (0, 0, 0))])
def test_workers_listen_on_consecutive_ports(port: int, ports: tuple[int, ...]) -> None:
    assert resolve(load({"session_server_port": port, "session_server_workers": 3})).ports == ports


def test_an_instance_without_a_name_gets_one() -> None:
    assert resolve(load({"session_server_instance_id": "a"})).instance_id == "a"
    assert resolve(load({})).instance_id != resolve(load({})).instance_id


@pytest.mark.parametrize(
    ("given", "source", "wire"),
    [
        ({}, Source.FLAG, None),
        ({"engine_wire": "chat"}, Source.FLAG, EngineWire.CHAT),
        ({"engine_wire": "generate"}, Source.FLAG, EngineWire.GENERATE),
        ({"engine_wire": "chat"}, Source.NAMESPACE, None),
        ({"engine_wire": "generate"}, Source.NAMESPACE, EngineWire.GENERATE),
    ],
)
def test_a_wire_is_chosen_by_whoever_names_one(given: dict[str, str], source: Source, wire: EngineWire | None) -> None:
    assert resolve(load(given, source=source)).engine_wire is wire
