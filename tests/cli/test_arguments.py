"""What a process list shows of a server.

1. Keys, users and passwords among a server's arguments are overwritten, however they are spelled; the rest stays.
2. A server does so before it serves.
"""

import subprocess
import sys

import pytest

from turnkeeper.cli.arguments import find_secrets

KEY, OTHER = "k3y-of-the-admin", "a"
SHOWN: dict[str, tuple[list[str], list[str]]] = {
    "a key": (["--api-key", KEY], ["--api-key", "****************"]),
    "a key behind an equals sign": ([f"--api-key={KEY}"], ["--api-key=****************"]),
    "two keys": (["--api-key", KEY, "--api-key", OTHER], ["--api-key", "****************", "--api-key", "*"]),
    "a key of one letter": (["serve", "--api-key", "a", "--at", "/a/a"], ["serve", "--api-key", "*", "--at", "/a/a"]),
    "a key within a word": ([f"x{KEY}", f"{KEY}y"], [f"x{KEY}", f"{KEY}y"]),
    "a user in a URL": (["--backend-url", "http://u:p@h:1/x"], ["--backend-url", "http://***@h:1/x"]),
    "a user behind an equals sign": (["--backend-url=http://u:p@h:1"], ["--backend-url=http://***@h:1"]),
    "two URLs in one": (["http://u@h,https://v:w@i"], ["http://*@h,https://***@i"]),
    "an at sign in a path": (["http://h/a@b", "x@y"], ["http://h/a@b", "x@y"]),
    "an empty argument": (["", "--api-key", KEY, ""], ["", "--api-key", "****************", ""]),
    "other letters": (["--name", "\u00e9", "--api-key", KEY], ["--name", "\u00e9", "--api-key", "****************"]),
}


@pytest.mark.parametrize(("given", "shown"), SHOWN.values(), ids=SHOWN.keys())
def test_secrets_are_found_in_arguments(given: list[str], shown: list[str]) -> None:
    arguments = bytearray(b"".join(each.encode() + b"\0" for each in given))
    for first, last in find_secrets(bytes(arguments), [KEY, OTHER, ""]):
        arguments[first:last] = b"*" * (last - first)
    assert arguments.split(b"\0")[:-1] == [each.encode() for each in shown]


WATCH = """
import sys
from turnkeeper.cli import serve
from turnkeeper.server import workers
def look(config, *, is_whole_process):
    print(open("/proc/self/cmdline").read(), config.server.api_key, config.engine.engine_api_key, sys.argv[-1])
    return 0
workers.serve_workers = look
from turnkeeper.cli.main import main
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep arguments elsewhere")
def test_a_server_hides_its_keys_before_it_serves() -> None:
    url = "http://user:password@127.0.0.1:9"
    options = ["--hf-checkpoint", "x", "--backend-url", url, "--engine-api-key=engine-key", "--api-key", KEY]
    command = [sys.executable, "-c", WATCH, "serve", *options]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.partition("('")
    assert "--backend-url\0http://*************@127.0.0.1:9\0" in shown[0]
    assert "--api-key\0****************\0" in shown[0]
    assert not any(secret in shown[0] for secret in (KEY, "engine-key", "password"))
    assert KEY in shown[2]
    assert "engine-key" in shown[2]
