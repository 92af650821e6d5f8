"""Another session server with the same routes, measured beside turnkeeper in the same run: ``--reference URL``.

Its user starts the server, in front of the mock engine that the bench runs on ``--mock-port``. It serves one worker on
this machine, and its process is found by the port that it listens on, so that its CPU time can be read.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from turnkeeper.bench.load import Latencies, run_load
from turnkeeper.bench.load.agent import Agent
from turnkeeper.bench.load.client import BenchHttpError
from turnkeeper.bench.measure import COLLECTED, choose_seed, collect_samples, open_agents
from turnkeeper.bench.scenario import Case
from turnkeeper.bench.stack import Material, ProcessMeter, running_mock
from turnkeeper.errors import ConfigError

_LISTENS = "0A"
"""The state of a socket that listens, as Linux writes it in /proc/net/tcp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Which server is measured, and where its engine is."""

    url: str
    mock_port: int
    """The port of the mock engine, which is the server's only engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceResult:
    """One case on the reference: medians over its runs."""

    case: Case
    cpu_ms: float
    """CPU time of the server's process a turn."""
    p50_ms: float
    p99_ms: float
    turns_per_s: float
    collect_ms: float
    """From asking for a session's samples to their last byte."""


async def measure_reference(case: Case, material: Material, reference: Reference) -> ReferenceResult:
    """Measure a case on the reference, with the agents and texts that turnkeeper was measured with.

    Raises:
        ConfigError: nothing listens there, its process cannot be seen, or it does not answer as a session server does.
    """
    meter = ProcessMeter(find_listener(urlsplit(reference.url).port or 80))
    agents: list[Agent] = []
    cpu_ms: list[float] = []
    runs: list[Latencies] = []
    try:
        async with running_mock(material, case.model, case.talk, delay_s=case.delay_s, port=reference.mock_port):
            for number in range(case.runs):
                seed = choose_seed(material, number)
                opened = await open_agents(case, material, reference.url, seed=seed)
                before = meter.read_cpu_s()
                runs.append(await run_load(opened, case.turns_each, think_s=case.think_s, seed=seed))
                cpu_ms.append((meter.read_cpu_s() - before) * 1e3 / runs[-1].turns)
                agents += opened
            collected = await collect_samples(agents[:COLLECTED], meter)
    except (BenchHttpError, OSError, KeyError, ValueError) as error:
        raise ConfigError(
            f"the server at {reference.url} does not serve {case.name}: {error!s:.300}",
            hint=f"start it with the engine http://127.0.0.1:{reference.mock_port} and the case's options, or choose "
            "other cases with --only",
        ) from error
    return ReferenceResult(
        case=case,
        cpu_ms=median(cpu_ms),
        p50_ms=median(run.p50_ms for run in runs),
        p99_ms=median(run.p99_ms for run in runs),
        turns_per_s=median(run.turns_per_s for run in runs),
        collect_ms=collected.median_ms,
    )


def find_listener(port: int) -> int:
    """Find the id of the process that listens on a port of this machine.

    Raises:
        ConfigError: there is none, or it belongs to another user.
    """
    links = {f"socket:[{inode}]" for inode in _list_listening(port)}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(_read_link(entry) in links for entry in (process / "fd").iterdir()):
                return int(process.name)
    raise ConfigError(
        f"no process of this user listens on port {port}",
        hint="--reference names a session server on this machine that is already started",
    )


def _list_listening(port: int) -> list[str]:
    """List the inodes of the sockets that listen on a port."""
    found: list[str] = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    found.append(fields[9])
    return found


def _read_link(path: Path) -> str:
    with contextlib.suppress(OSError):
        return str(path.readlink())
    return ""
