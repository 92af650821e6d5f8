"""The measurement of ``turnkeeper bench``: what a turn costs the session server."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from turnkeeper.bench.beside import Beside, measure_beside
from turnkeeper.bench.comparison import Comparison, ComparisonResult, measure_comparison
from turnkeeper.bench.measure import CaseResult, measure_case
from turnkeeper.bench.reference import Reference, ReferenceResult, measure_reference
from turnkeeper.bench.report import BenchReport, Machine
from turnkeeper.bench.scenario import Case
from turnkeeper.bench.stack import Material
from turnkeeper.errors import ConfigError
from turnkeeper.tiny.checkpoint import shipped_checkpoint


def find_checkpoint(given: Path | None) -> Path:
    """Find the folder whose tokenizer is used: the one given, the real one that the tests fetch, the embedded one."""
    fetched = Path(os.environ.get("TURNKEEPER_ASSETS") or ".assets") / "qwen3"
    if given is not None:
        return given
    return fetched if (fetched / "tokenizer.json").exists() else shipped_checkpoint()


def name_tokenizer(checkpoint: Path) -> str:
    """Name the tokenizer in words."""
    if checkpoint == shipped_checkpoint():
        return "that of the embedded engine, which is small: figures do not compare with those of real ones"
    return f"tokenizer.json of {checkpoint.name}, read by the tokenizers library unless a case says otherwise"


def run_server_bench(
    cases: Sequence[Case],
    *,
    checkpoint: Path,
    seed: int,
    beside: Sequence[Beside] = (),
    reference: Reference | None = None,
    comparisons: Sequence[Comparison] = (),
    on_case: Callable[[CaseResult], None] | None = None,
    on_comparison: Callable[[Comparison], None] | None = None,
) -> BenchReport:
    """Measure the cases, one after the other.

    Args:
        cases: what to measure.
        checkpoint: the folder whose tokenizer and template are used.
        seed: of the texts.
        beside: also measure small sessions beside large ones.
        reference: also measure this server, each case behind turnkeeper's.
        comparisons: options of the server to measure beside each other.
        on_case: told of each result as it comes.
        on_comparison: told of each comparison before it is measured.

    Raises:
        ConfigError: no case was chosen, this is no Linux, the checkpoint cannot be read, or the reference does not
            serve a case.
    """
    if not Path("/proc/self/status").exists():
        raise ConfigError("the bench reads CPU time and memory from Linux's /proc, and there is none")

    async def measure() -> BenchReport:
        results: list[CaseResult] = []
        references: list[ReferenceResult] = []
        with tempfile.TemporaryDirectory() as folder:
            material = Material.read(checkpoint, Path(folder), seed)
            for case in cases:
                results.append(await measure_case(case, material))
                if on_case is not None:
                    on_case(results[-1])
                if reference is not None:
                    references.append(await measure_reference(case, material, reference))
            compared: list[ComparisonResult] = []
            for comparison in comparisons:
                if on_comparison is not None:
                    on_comparison(comparison)
                compared.append(await measure_comparison(comparison, material))
            found = tuple([await measure_beside(material, plan) for plan in beside])
        return BenchReport(
            machine=Machine.read(),
            tokenizer=name_tokenizer(checkpoint),
            load_s=material.load_s,
            results=tuple(results),
            beside=found,
            comparisons=tuple(compared),
            reference=tuple(references),
        )

    return uvloop.run(measure())
