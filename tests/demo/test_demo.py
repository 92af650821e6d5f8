"""``turnkeeper demo``, run small.

1. A run ends with status 0, a table of figures, and a folder from which it can be audited again.
2. Each invariant, broken on purpose in what one party says, is seen: status 1 and a line that names it.
3. ``--json`` gives the figures of each run, and what was violated, to programs.
4. What is no run is refused, and a folder of somebody else's is left alone.
5. With a session server that is killed twice in the middle all invariants hold too.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from turnkeeper.cli.main import app
from turnkeeper.samples import Sample, decode_samples, encode_samples

WIDE = {"COLUMNS": "250", "NO_COLOR": "1"}


def _invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["demo", *words], env=WIDE)
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run's folder, and what it printed."""
    out = tmp_path_factory.mktemp("runs")
    status, printed = _invoke("--tasks", "8", "--rollouts", "2", "--out", str(out))
    assert status == 0, printed
    return out / "in_place", printed


def _edit_trace(folder: Path, edit: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change what an engine says: of the session with the most finished calls on it."""
    for path in sorted(folder.glob("engine-*.trace.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        edit(lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _edit_sample(
    folder: Path, change: Callable[[Sample], Sample], fits: Callable[[Sample], bool] = lambda sample: True
) -> None:
    """Change what the trainer got: the sample of the first session whose sample ``fits``."""
    batches = ((path, decode_samples(path.read_bytes())) for path in sorted((folder / "samples").iterdir()))
    path, batch = next((path, batch) for path, batch in batches if all(map(fits, batch.samples)))
    payload = encode_samples([change(sample) for sample in batch.samples], batch.session_metadata)
    path.write_bytes(payload.to_bytes())


def _lose_an_outcome(folder: Path) -> None:
    path = folder / "outcomes.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def _forget_dropped_tokens(folder: Path) -> None:
    """An engine sampled for a call that no session knows of."""

    def add(lines: list[dict[str, Any]]) -> None:
        lines.append({**lines[0], "routing_key": "nobody"})

    _edit_trace(folder, add)


def _render_a_prompt_again(folder: Path) -> None:
    """The second prompt of a session differs from the first call's path in one token."""

    def change(lines: list[dict[str, Any]]) -> None:
        seen: set[str] = set()
        for line in sorted(lines, key=lambda line: len(line["prompt_ids"])):
            if line["routing_key"] in seen:
                line["prompt_ids"][3] += 1
                return
            seen.add(line["routing_key"])

    _edit_trace(folder, change)


def _change_a_logprob(folder: Path) -> None:
    def change(sample: Sample) -> Sample:
        logprobs = sample.rollout_log_probs.copy()
        logprobs[int(np.argmax(sample.loss_mask))] -= 1e-12
        return replace(sample, rollout_log_probs=logprobs)

    _edit_sample(folder, change)


def _train_a_prompt_token(folder: Path) -> None:
    def change(sample: Sample) -> Sample:
        mask = sample.loss_mask.copy()
        mask[int(np.argmin(mask))] = 1
        return replace(sample, loss_mask=mask)

    # A session of one turn has no prompt token after its first sampled one, so nothing to train wrongly.
    _edit_sample(folder, change, fits=lambda sample: not sample.loss_mask.all())


def _change_an_expert(folder: Path) -> None:
    def change(sample: Sample) -> Sample:
        assert sample.rollout_routed_experts is not None
        rows = sample.rollout_routed_experts.copy()
        rows[5, 1, 0] ^= 1
        return sample.replace_tensors(rollout_routed_experts=rows)

    _edit_sample(folder, change)


def _send_no_rows(folder: Path) -> None:
    _edit_sample(folder, lambda sample: sample.replace_tensors(rollout_routed_experts=None))


def _mistake_a_version(folder: Path) -> None:
    def change(sample: Sample) -> Sample:
        sample.metadata["turnkeeper"]["versions"][0]["version"] = "another"
        return sample

    _edit_sample(folder, change)


def _update_to_the_same_weights(folder: Path) -> None:
    path = folder / "run.json"
    run = json.loads(path.read_text())
    path.write_text(json.dumps({**run, "weights": [run["weights"][0]] * 2}))


def _update_between_turns(folder: Path) -> None:
    """No call was aborted or retracted or went on under the new weights."""

    def change(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line["weight_versions"] = [
                {**span, "version": line["weight_versions"][0]["version"]} for span in line["weight_versions"]
            ]

    _edit_trace(folder, change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Something that one party of a run says wrongly."""

    invariant: str
    spoil: Callable[[Path], None]


BREAKS = (
    Break(invariant="played", spoil=_lose_an_outcome),
    Break(invariant="accounted", spoil=_forget_dropped_tokens),
    Break(invariant="prefix", spoil=_render_a_prompt_again),
    Break(invariant="tokens", spoil=_change_a_logprob),
    Break(invariant="tokens", spoil=_train_a_prompt_token),
    Break(invariant="rows", spoil=_change_an_expert),
    Break(invariant="rows", spoil=_send_no_rows),
    Break(invariant="versions", spoil=_mistake_a_version),
    Break(invariant="updated", spoil=_update_to_the_same_weights),
    Break(invariant="updated", spoil=_update_between_turns),
)


def test_a_run_ends_with_its_figures(run: tuple[Path, str]) -> None:
    folder, printed = run
    assert "pause mode in_place: all invariants hold" in printed
    assert "FAILED" not in printed
    for figure in ("sessions", "turns", "tokens sampled", "prefix breaks", "rows checked", "tasks solved", "time"):
        assert figure in printed
    assert "default, 1" in printed
    assert f"samples: {folder / 'samples'}" in printed


def test_a_run_can_be_audited_again(run: tuple[Path, str]) -> None:
    folder, printed = run
    status, again = _invoke("--audit", str(folder))
    assert status == 0
    assert again == printed[printed.index(again.splitlines()[0]) :]


@pytest.mark.parametrize("mode", ["abort", "retract"])
def test_the_other_pause_modes_hold_too(mode: str, tmp_path: Path) -> None:
    status, printed = _invoke("--tasks", "8", "--out", str(tmp_path), "--pause-generation-mode", mode)
    assert status == 0, printed
    assert f"pause mode {mode}: all invariants hold" in printed


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run whose session server was killed, and what it printed."""
    out = tmp_path_factory.mktemp("killed")
    status, printed = _invoke("--tasks", "8", "--out", str(out), "--kill")
    assert status == 0, printed
    return out / "in_place", printed


def test_a_run_survives_the_death_of_its_server(killed: tuple[Path, str]) -> None:
    folder, printed = killed
    assert "all invariants hold" in printed
    assert "lost and played again" in printed
    run = json.loads((folder / "run.json").read_text())
    assert len(run["kills"]) == 2
    assert {path.name for path in folder.glob("server*.log")} == {"server.log", "server-1.log", "server-2.log"}


def _forget_a_kill(run: dict[str, Any]) -> None:
    run["kills"].pop()


def _kill_at_rest(run: dict[str, Any]) -> None:
    """Nothing had begun when the server was killed."""
    run["kills"][0] = [0] * len(run["kills"][0])


@pytest.mark.parametrize("spoil", [_forget_a_kill, _kill_at_rest])
def test_a_kill_that_met_nothing_fails_the_demo(
    spoil: Callable[[dict[str, Any]], None], killed: tuple[Path, str], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(killed[0], tmp_path / "run"))
    run = json.loads((folder / "run.json").read_text())
    spoil(run)
    (folder / "run.json").write_text(json.dumps(run))
    status, printed = _invoke("--audit", str(folder))
    assert status == 1
    assert "FAILED killed:" in printed


def test_a_turn_that_is_recorded_for_a_lost_call_fails_the_demo(killed: tuple[Path, str], tmp_path: Path) -> None:
    """A token that was sampled for a dead server and is trained as well counts twice."""
    folder = Path(shutil.copytree(killed[0], tmp_path / "run"))

    def change(sample: Sample) -> Sample:
        return replace(sample, loss_mask=np.zeros_like(sample.loss_mask))

    _edit_sample(folder, change)
    status, printed = _invoke("--audit", str(folder))
    assert status == 1
    assert "FAILED accounted:" in printed


def test_the_printed_lines_open_a_sample(run: tuple[Path, str]) -> None:
    _, printed = run
    lines = printed.partition("To open one:\n")[2].partition("check this run")[0]
    code = "\n".join(line.strip() for line in lines.splitlines())
    opened: dict[str, Any] = {}
    exec(code, opened)
    assert opened["sample"].response


@pytest.mark.parametrize("case", BREAKS, ids=lambda case: case.spoil.__name__.strip("_"))
def test_a_broken_invariant_fails_the_demo(case: Break, run: tuple[Path, str], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run[0], tmp_path / "run"))
    case.spoil(folder)
    status, printed = _invoke("--audit", str(folder))
    assert status == 1
    assert f"FAILED {case.invariant}:" in printed


def test_json_says_it_to_programs(run: tuple[Path, str], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run[0], tmp_path / "run"))
    result = CliRunner().invoke(app, ["demo", "--audit", str(folder), "--json"])
    (sound,) = json.loads(result.stdout)["runs"]
    assert (result.exit_code, result.stderr) == (0, "")
    assert list(sound) == ["mode", "folder", "seconds", "holds", "figures", "violations"]
    assert (sound["mode"], sound["folder"], sound["holds"], sound["violations"]) == ("in_place", str(folder), True, [])
    figures = sound["figures"]
    assert figures["sampled"] == figures["trainable"] + figures["masked"] + figures["dropped"] > 0
    assert (figures["lost"], figures["in_flight_at_kills"]) == (0, [])
    _lose_an_outcome(folder)
    result = CliRunner().invoke(app, ["demo", "--audit", str(folder), "--json"])
    (broken,) = json.loads(result.stdout)["runs"]
    assert (result.exit_code, broken["holds"]) == (1, False)
    assert {"invariant", "message"} == set(broken["violations"][0])


def test_what_is_no_finished_run_is_refused(tmp_path: Path) -> None:
    status, printed = _invoke("--audit", str(tmp_path))
    assert status == 2
    assert "holds no finished run" in printed


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "in_place").mkdir()
    (tmp_path / "in_place" / "thesis.tex").write_text("mine")
    status, printed = _invoke("--out", str(tmp_path))
    assert status == 2
    assert "thesis.tex" in printed
    assert (tmp_path / "in_place" / "thesis.tex").read_text() == "mine"
