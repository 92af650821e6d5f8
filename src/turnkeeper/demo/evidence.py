"""The evidence of a run, read back from its folder: engines, session server and trainer speak for themselves.

The folder is the one input of the audit, so a run can be checked again later, by hand or by another program.

======================================  ==============================================================
``engine-N.trace.jsonl``                what engine N received, sampled and computed, a line a request
``samples/SESSION.safetensors``         the payload of ``POST /sessions/SESSION/samples`` as it came
``sessions/SESSION.json``               ``GET /sessions/SESSION`` at the end, less its records
``outcomes.jsonl``                      how the agent's rollouts ended
``run.json``                            what was asked for, how long it took, and where the kills lie in the traces
======================================  ==============================================================
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from turnkeeper.client import write_payload
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.demo.agent import RolloutOutcome
from turnkeeper.errors import ConfigError
from turnkeeper.fleet.route_check import PROBE_SESSION
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples import Sample, decode_samples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineCall:
    """One request as its engine saw it."""

    session_id: str
    """The routing key it came with."""
    prompt_ids: TokenIds
    output_ids: TokenIds
    logprobs: NDArray[np.float64]
    """Parallel to ``output_ids``."""
    versions: tuple[str, ...]
    """Parallel to ``output_ids``: the weights that sampled each."""
    experts_RLK: NDArray[np.integer]
    """Shape [prompt + output - 1, layers, topk]: the rows as the request's own forwards used them."""
    masks: tuple[tuple[int, ...], ...] | None
    """Parallel to ``output_ids``: what each was drawn from; None where the sampler left nothing out."""
    sampling_logprobs: NDArray[np.float64] | None
    """Parallel to ``output_ids``: the logprob of each within its mask; None without masks."""
    is_aborted: bool
    is_retracted: bool
    life: int = 0
    """How often the session server had been killed before the call ended, or was ended by the kill."""

    @property
    def path_ids(self) -> TokenIds:
        """The prompt and what was sampled after it."""
        return np.concatenate([self.prompt_ids, self.output_ids])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectedSession:
    """The samples and metadata that a trainer gets of one session."""

    session_id: str
    samples: tuple[Sample, ...]
    info: JsonObject
    """The session's metadata as ``GET /sessions/{id}`` gives it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """A run, from every side."""

    calls: tuple[EngineCall, ...]
    """Of all engines, each engine's in the order in which they ended; without the probes that a session server makes
    for itself, which belong to no session."""
    sessions: tuple[CollectedSession, ...]
    outcomes: tuple[RolloutOutcome, ...]
    run: JsonObject


def write_outcomes(folder: Path, outcomes: Sequence[RolloutOutcome]) -> None:
    """Write how the rollouts ended, a line each."""
    (folder / "outcomes.jsonl").write_bytes(b"".join(orjson.dumps(asdict(one)) + b"\n" for one in outcomes))


def write_session(folder: Path, session_id: str, *, payload: bytes, info: JsonObject) -> None:
    """Write one session's samples as they came, and what the server says of the session."""
    for name in ("samples", "sessions"):
        (folder / name).mkdir(exist_ok=True)
    write_payload(folder / "samples" / f"{session_id}.safetensors", payload)
    (folder / "sessions" / f"{session_id}.json").write_bytes(orjson.dumps(info))


def read_evidence(folder: Path) -> Evidence:
    """Read a run's folder.

    Raises:
        ConfigError: the folder does not hold a finished run.
    """
    if not (folder / "run.json").is_file():
        raise ConfigError(f"{folder} holds no finished run", hint="run `turnkeeper demo` first")
    run = orjson.loads((folder / "run.json").read_bytes())
    return Evidence(
        calls=tuple(call for call in _read_calls(folder, run["kills"]) if call.session_id != PROBE_SESSION),
        sessions=tuple(_read_session(path) for path in sorted((folder / "sessions").glob("*.json"))),
        outcomes=tuple(RolloutOutcome(**line) for line in _read_lines(folder / "outcomes.jsonl")),
        run=run,
    )


def list_traces(folder: Path) -> list[Path]:
    """List the traces of all engines, in the order of the engines."""
    return sorted(folder.glob("engine-*.trace.jsonl"))


def _read_calls(folder: Path, kills: Sequence[Sequence[int]]) -> Iterator[EngineCall]:
    for engine, trace in enumerate(list_traces(folder)):
        for number, line in enumerate(_read_lines(trace)):
            yield parse_call(line, life=sum(number >= traced[engine] for traced in kills))


def _read_lines(path: Path) -> Iterator[JsonObject]:
    with path.open("rb") as lines:
        for line in lines:
            yield orjson.loads(line)


def parse_call(line: JsonObject, *, life: int = 0) -> EngineCall:
    """Parse a request from its line of an engine's trace, written in one of the session server's lives."""
    # A request that was retracted has an epoch for each time its KV was computed; the last one's rows are what its
    # engine holds at the end.
    experts: list[Any] = line["epochs"][-1]["kv_experts"] if line["epochs"] else []
    masks: list[list[int]] | None = line["sampling_masks"]
    versions = (span["version"] for span in line["weight_versions"] for _ in range(span["start"], span["end"]))
    return EngineCall(
        session_id=line["routing_key"],
        prompt_ids=freeze_ids(line["prompt_ids"]),
        output_ids=freeze_ids(line["output_ids"]),
        logprobs=np.array(line["logprobs"], dtype=np.float64),
        versions=tuple(versions),
        experts_RLK=np.array(experts, dtype=np.int32),
        masks=None if masks is None else tuple(map(tuple, masks)),
        sampling_logprobs=None if masks is None else np.array(line["sampling_logprobs"], dtype=np.float64),
        is_aborted=line["finish_reason"] == "abort",
        is_retracted=line["num_retractions"] > 0,
        life=life,
    )


def _read_session(path: Path) -> CollectedSession:
    payload = path.parent.with_name("samples") / f"{path.stem}.safetensors"
    return CollectedSession(
        session_id=path.stem,
        samples=tuple(decode_samples(payload.read_bytes()).samples),
        info=orjson.loads(path.read_bytes()),
    )
