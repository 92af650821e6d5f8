"""One process or several.

1. Each of several processes gets its port and a name of its own; warnings are logged once.
2. A configuration survives the way to another process.
"""

import pickle

from turnkeeper.config.load import load
from turnkeeper.config.resolve import ResolvedConfig, resolve
from turnkeeper.serving import split_workers


def build(**options: object) -> ResolvedConfig:
    return resolve(load({"hf_checkpoint": "/c", "session_server_instance_id": "a", **options}), warnings=("w",))


def test_one_process_keeps_everything() -> None:
    config = build()
    assert split_workers(config) == (config,)


def test_each_of_several_gets_a_port_and_a_name() -> None:
    workers = split_workers(build(session_server_port=31000, session_server_workers=3))
    assert [(worker.ports, worker.instance_id) for worker in workers] == [
        ((31000,), "a-0"),
        ((31001,), "a-1"),
        ((31002,), "a-2"),
    ]


def test_warnings_are_logged_by_one() -> None:
    workers = split_workers(build(session_server_workers=2))
    assert [worker.warnings for worker in workers] == [("w",), ()]


def test_a_configuration_survives_the_way_to_another_process() -> None:
    config = build(max_body_bytes="1MiB", on_abort="resume", api_key="k")
    assert pickle.loads(pickle.dumps(config)) == config
