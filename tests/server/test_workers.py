"""One process or several.

1. Each of several processes gets its port and a name of its own; warnings are logged once.
2. A configuration survives the way to another process.
3. A strict probe names every engine that does not answer, and nothing starts.
"""

import pickle

import pytest

from turnkeeper.config.load import load
from turnkeeper.config.resolve import ResolvedConfig, resolve
from turnkeeper.errors import ConfigError
from turnkeeper.server.workers import check_engines, is_loopback, serve_workers, split_workers
from turnkeeper.testing import ScriptedEngine, running, unreachable_url


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_is_told_from_what_others_reach(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def build(**options: object) -> ResolvedConfig:
    return resolve(load({"hf_checkpoint": "/c", "session_server_instance_id": "a", **options}), warnings=("w",))


def test_one_process_keeps_everything() -> None:
    config = build()
    assert split_workers(config) == (config,)


def test_each_of_several_gets_a_port_and_a_name() -> None:
    workers = split_workers(build(session_server_port=31000, session_server_workers=3))
    assert [(worker.ports[worker.worker or 0], worker.instance_id) for worker in workers] == [
        (31000, "a-0"),
        (31001, "a-1"),
        (31002, "a-2"),
    ]


def test_warnings_are_logged_by_one() -> None:
    workers = split_workers(build(session_server_workers=2))
    assert [worker.warnings for worker in workers] == [("w",), ()]


def test_a_configuration_survives_the_way_to_another_process() -> None:
    config = build(max_body_bytes="1MiB", on_abort="resume", api_key="k")
    assert pickle.loads(pickle.dumps(config)) == config


async def test_a_strict_probe_passes_engines_that_answer() -> None:
    async with running(ScriptedEngine()) as url:
        await check_engines(build(backend_url=url))


async def test_a_strict_probe_names_every_engine_that_does_not_answer() -> None:
    async with running(ScriptedEngine()) as url:
        with unreachable_url() as first, unreachable_url() as second:
            with pytest.raises(ConfigError, match="--strict-probe") as caught:
                await check_engines(build(backend_url=[first, url, second]))
            named = [each for each in (first, url, second) if f"\n{each}: " in str(caught.value)]
    assert named == [first, second]


def test_a_server_with_a_strict_probe_does_not_start_without_its_engine() -> None:
    with unreachable_url() as url, pytest.raises(ConfigError, match="--strict-probe"):
        serve_workers(build(backend_url=url, strict_probe=True))
