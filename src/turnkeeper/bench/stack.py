"""The processes of a measurement: the mock engine and the session server, each started as a user would start it."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import orjson

from turnkeeper.bench.load.client import Client
from turnkeeper.bench.load.text import TokenRuler
from turnkeeper.bench.load.workload import MODELS, CannedReply, Talk, build_replies, write_config
from turnkeeper.bench.mock import write_script
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.rendering import Tokenizer
from turnkeeper.server.command import running_command

_MIB = 1 << 20
CHECKPOINT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True)
class ProcessMeter:
    """The CPU time and the memory of a running process, read from Linux."""

    pid: int

    def read_cpu_s(self) -> float:
        """CPU seconds so far, user and system, all threads that it has or had, in nanosecond steps."""
        # The id of another process's CPU clock, as clock_getcpuclockid(3) computes it.
        return time.clock_gettime((~self.pid << 3) | 2)

    def read_loop_cpu_s(self) -> float:
        """CPU seconds so far of the process's first thread, which runs the event loop of a server with one worker."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def read_rss_mib(self) -> float:
        """Resident memory in MiB."""
        return self._read("VmRSS:")

    def read_peak_mib(self) -> float:
        """Read the most resident memory since the last ``reset_peak``, in MiB."""
        return self._read("VmHWM:")

    def reset_peak(self) -> None:
        """Begin to look for a peak anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _read(self, key: str) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024 / _MIB
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The material that all cases share: a checkpoint to copy from, and text."""

    source: Path
    """The folder whose tokenizer is used."""
    folder: Path
    """Where scripts and checkpoint folders are written."""
    ruler: TokenRuler
    tokenizer: Tokenizer
    load_s: float
    """How long loading the tokenizer took, in seconds."""
    seed: int

    @classmethod
    def read(cls, source: Path, folder: Path, seed: int) -> "Material":
        """Load the tokenizer."""
        started = perf_counter()
        tokenizer = Tokenizer(read_checkpoint(source).tokenizer_json)
        load_s = perf_counter() - started
        ruler = TokenRuler(tokenizer)
        return cls(source=source, folder=folder, ruler=ruler, tokenizer=tokenizer, load_s=load_s, seed=seed)

    def write_checkpoint(self, model: str) -> Path:
        """Write a checkpoint folder with this tokenizer and the model's routing."""
        target = self.folder / model
        if not target.exists():
            target.mkdir()
            for name in CHECKPOINT_FILES:
                if (self.source / name).exists():
                    (target / name).symlink_to((self.source / name).resolve())
            write_config(target, MODELS[model])
        return target


@dataclass(frozen=True, slots=True, kw_only=True)
class Mock:
    """A running mock engine."""

    url: str
    meter: ProcessMeter
    replies: Sequence[CannedReply]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchServer:
    """A running session server."""

    url: str
    meter: ProcessMeter
    started_at: float
    """``perf_counter`` when its process was started."""
    ready_s: float
    """From there to its readiness line."""


@asynccontextmanager
async def running_mock(
    material: Material, model: str, talk: Talk, *, delay_s: float = 0.0, port: int = 0
) -> AsyncGenerator[Mock]:
    """Run a mock engine until the block ends, on a free port where none is given."""
    replies = build_replies(material.tokenizer, talk, material.seed)
    script = material.folder / "script.json"
    write_script(script, replies, MODELS[model], material.seed)
    async with running_command([str(script), str(port)], module="turnkeeper.bench.mock") as command:
        client = await Client.connect(command.url)
        await client.request("POST", "/bench", orjson.dumps({"delay_s": delay_s}))
        client.close()
        yield Mock(url=command.url, meter=ProcessMeter(command.process.pid), replies=replies)


@asynccontextmanager
async def running_server(
    material: Material, model: str, mock: Mock, flags: Sequence[str]
) -> AsyncGenerator[BenchServer]:
    """Run a session server in front of a mock until the block ends."""
    checkpoint = material.write_checkpoint(model)
    arguments = ["serve", "--hf-checkpoint", str(checkpoint), "--tito-model", "qwen3", "--backend-url", mock.url]
    started = perf_counter()
    async with running_command([*arguments, "--session-server-port", "0", *flags]) as command:
        yield BenchServer(
            url=command.url,
            meter=ProcessMeter(command.process.pid),
            started_at=started,
            ready_s=perf_counter() - started,
        )
