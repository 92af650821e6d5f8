"""Profiling a server, with a stand-in for py-spy: what is sampled is its business.

1. A case runs through real processes while the sampler runs, and its stacks become shares of the threads' CPU time.
2. A sampler that fails, or is not there, is an error.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import profile
from turnkeeper.bench.load.workload import Talk
from turnkeeper.bench.scenario import Case
from turnkeeper.bench.stack import Material
from turnkeeper.errors import ConfigError, ProcessError
from turnkeeper.tiny.checkpoint import shipped_checkpoint

TALK = Talk(name="tiny", turns=2, first_tokens=500, prompt_tokens=60, reply_tokens=60)
SAMPLER = """#!{python}
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("sampling", flush=True)
signal.sigwait([signal.SIGINT])
open(sys.argv[sys.argv.index("--output") + 1], "w").write(
    "thread (1): MainThread;f (turnkeeper/core/session.py:1) 3\\n"
    "thread (2): render_0;e (turnkeeper/rendering/tokenization/encoder.py:1) 1\\n"
)
"""


def write_script(folder: Path, text: str) -> str:
    path = folder / "py-spy"
    path.write_text(text.replace("{python}", sys.executable))
    path.chmod(0o755)
    return str(path)


async def test_a_case_is_sampled_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = write_script(tmp_path, SAMPLER)
    monkeypatch.setattr(profile, "find_sampler", lambda: sampler)
    material = Material.read(shipped_checkpoint(), tmp_path, seed=1)
    found = await profile.profile_case(replace(Case(sessions=1), talk=TALK), material, sessions=2)
    assert found.turns == 4
    assert 0 < found.main_cpu_ms <= found.cpu_ms
    assert {stack[0]: count for stack, count in found.stacks.items()} == {"MainThread": 3, "render": 1}
    with (tmp_path / "table").open("w") as file:
        Console(width=120, file=file).print(profile.render_shares(found))
    assert "tokenizing" in (tmp_path / "table").read_text()


async def test_a_sampler_that_fails_is_an_error(tmp_path: Path) -> None:
    sampler = write_script(tmp_path, "#!/bin/sh\necho not allowed\nexit 1\n")
    with pytest.raises(ProcessError, match="not allowed"):
        async with profile.sampling(sampler, 1, tmp_path / "stacks"):
            pass


def test_a_sampler_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="not installed"):
        profile.find_sampler()
