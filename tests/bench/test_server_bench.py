"""The bench of the session server. Nothing here is timed.

1. A small case runs through real processes, and its report has every figure, as JSON and as tables.
2. The mock's rows are those of one table, wherever they are cut; its replies fit the requests.
3. Names of cases tell them apart, and the quick ones are few.
4. A budget row says whether its figure is within it.
5. A chunked reply is read as the body it is.
6. Another session server is measured beside turnkeeper, and found by the port that it listens on.
"""

import asyncio
import json
import socket
from pathlib import Path

import numpy as np
import pybase64
import pytest
from rich.console import Console

from tablekit import checking_table
from turnkeeper.bench.beside import Beside
from turnkeeper.bench.budget import BudgetRow, check_budget
from turnkeeper.bench.load.client import join_chunks
from turnkeeper.bench.load.text import TokenRuler
from turnkeeper.bench.load.workload import Speaker, Talk, build_replies
from turnkeeper.bench.mock import MockEngine, build_canned, count_prompt
from turnkeeper.bench.reference import Reference, find_listener
from turnkeeper.bench.rows import PERIOD, build_rows
from turnkeeper.bench.scenario import QUICK, Case, Rows, list_all
from turnkeeper.bench.server import find_checkpoint, run_server_bench
from turnkeeper.bench.yardstick import measure_yardstick
from turnkeeper.channels.indexer import decode_indexer
from turnkeeper.channels.routing import RoutingShape
from turnkeeper.choices import HistoryKind
from turnkeeper.engines.sglang.chat import parse_chat_reply
from turnkeeper.errors import ConfigError
from turnkeeper.rendering import Tokenizer
from turnkeeper.server.command import running_command
from turnkeeper.tiny.checkpoint import shipped_checkpoint

TALK = Talk(name="tiny", turns=2, first_tokens=500, prompt_tokens=60, reply_tokens=60)
SHAPE = RoutingShape(layers=2, topk=2, experts=16)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer((shipped_checkpoint() / "tokenizer.json").read_bytes())


def test_a_small_case_runs_and_is_reported_whole(tmp_path: Path) -> None:
    case = Case(
        sessions=2,
        talk=TALK,
        rows=Rows.INCREMENTAL,
        history=HistoryKind.TREE,
        is_streamed=True,
        think_s=0.001,
        runs=2,
    )
    plan = Beside(
        large_sessions=1,
        large=TALK,
        small_sessions=1,
        small_turns=2,
        small_think_s=0.001,
        large_think_s=0.001,
        rounds=2,
    )
    seen: list[str] = []
    report = run_server_bench(
        [case],
        checkpoint=shipped_checkpoint(),
        seed=7,
        beside=[plan],
        on_case=lambda result: seen.append(result.case.name),
    )
    assert seen == [case.name]
    told = json.loads(json.dumps(report.to_json()))
    (shown,) = told["cases"]
    assert [run["served"]["turns"] for run in shown["runs"]] == [4, 4]
    figures = (
        "cpu_ms",
        "yardstick_ms",
        "cpu_yardsticks",
        "cpu_ratio",
        "speed_ratio",
        "turns_per_s",
        "first_turn_s",
        "rest_mib",
        "peak_mib",
    )
    assert all(shown[figure] > 0 for figure in figures)
    assert shown["collected"]["size_mib"] > 0
    pairs = [told["beside"][0][name] for name in ("direct", "served")]
    assert [(pair["alone"]["turns"], pair["beside"]["turns"]) for pair in pairs] == [(4, 4), (4, 4)]
    assert {row["figure"] for row in told["budget"]} >= {"resident at rest", "start to first turn"}
    with (tmp_path / "tables").open("w") as file:
        report.print(Console(width=200, file=file))
    assert case.name in (tmp_path / "tables").read_text()


def test_rows_are_those_of_one_table_wherever_they_are_cut() -> None:
    with checking_table() as table:
        for topk in [1, 2, 3]:
            for rows in [0, 1, 2, 3, 4, PERIOD + 1, 2 * PERIOD + 2]:
                for start in [0, 1, 2, 3, PERIOD - 1, PERIOD, 2 * PERIOD + 5]:
                    with table.case(repr(start), repr(rows), repr(topk)):
                        shape = RoutingShape(layers=2, topk=topk, experts=16)
                        source = build_rows(shape, 3)
                        row_bytes = shape.layers * topk * 4
                        period = np.frombuffer(source.raw[: PERIOD * row_bytes], np.uint8).reshape(PERIOD, row_bytes)
                        expected = period[np.arange(start, start + rows) % PERIOD].tobytes()
                        assert pybase64.b64decode(b"".join(source.cut(start, rows)), validate=True) == expected


def test_a_reply_fits_its_request(tokenizer: Tokenizer) -> None:
    replies = build_replies(tokenizer, TALK, seed=1, count=2)
    engine = MockEngine(replies=[build_canned(reply) for reply in replies], rows=build_rows(SHAPE, 1))
    body = b'{"input_ids":[1,2,3,4,5],"return_routed_experts":true,"routed_experts_start_len":2}'
    answers = [b"".join(engine.answer(b"/v1/chat/completions", body)) for _ in range(2)]
    first, second = (parse_chat_reply(answer, "mock") for answer in answers)
    assert first.ids.tolist() == replies[0].ids
    assert first.prompt_tokens == 5
    assert first.message["tool_calls"][0]["id"] != second.message["tool_calls"][0]["id"]
    rows = 5 + len(replies[0].ids) - 1 - 2
    assert first.payloads.get("routed_experts") is not None
    ids = decode_indexer(first.payloads.get("routed_experts"), layers=2, rows=rows)
    assert ids.size == rows * SHAPE.row_ids
    assert ids.max() < SHAPE.experts


def test_a_prompt_without_ids_has_the_length_it_says() -> None:
    assert count_prompt(b'{"messages":[],"bench_prompt_tokens":77}') == 77


def test_conversations_are_as_long_as_they_say_and_all_different(tokenizer: Tokenizer) -> None:
    talk = Talk(name="t", turns=4, first_tokens=3000, prompt_tokens=1000, reply_tokens=200)
    ruler = TokenRuler(tokenizer)
    speakers = [Speaker(talk, ruler, seed) for seed in (1, 2)]
    opened = [speaker.open()[-1]["content"] for speaker in speakers]
    assert opened[0] != opened[1]
    answers = [speakers[0].answer({"tool_calls": [{"id": "a"}]})[0]["content"] for _ in range(8)]
    assert len(set(answers)) == 8
    tokens = sum(len(tokenizer.encode(answer)) for answer in answers) / 8
    assert 500 < tokens < 2000


@pytest.mark.parametrize("cases", [QUICK, list_all()], ids=["quick", "all"])
def test_every_case_has_a_name_of_its_own(cases: tuple[Case, ...]) -> None:
    assert len({case.name for case in cases}) == len(cases)


def test_a_row_of_the_budget_is_met_or_missed() -> None:
    row = BudgetRow(figure="f", unit="ms", limit=5, measured=6)
    assert not row.is_met
    assert BudgetRow(figure="f", unit="1/s", limit=5, measured=6, is_floor=True).is_met
    assert check_budget([]) == []


def test_the_real_tokenizer_is_taken_where_it_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEPER_ASSETS", str(tmp_path))
    assert find_checkpoint(None) == shipped_checkpoint()
    (tmp_path / "qwen3").mkdir()
    (tmp_path / "qwen3" / "tokenizer.json").write_text("{}")
    assert find_checkpoint(None) == tmp_path / "qwen3"
    assert find_checkpoint(tmp_path) == tmp_path


async def test_a_reference_is_measured_beside_turnkeeper(tmp_path: Path) -> None:
    case = Case(sessions=2, talk=TALK, runs=2)
    mock_port = find_free_port()
    backend = f"http://127.0.0.1:{mock_port}"
    options = ["--hf-checkpoint", str(shipped_checkpoint()), "--tito-model", "qwen3", "--backend-url", backend]
    async with running_command(["serve", *options, "--session-server-port", "0"]) as server:
        reference = Reference(url=server.url, mock_port=mock_port)
        assert find_listener(int(server.url.rpartition(":")[2])) == server.process.pid
        report = await asyncio.to_thread(
            run_server_bench, [case], checkpoint=shipped_checkpoint(), seed=7, reference=reference
        )
    (found,) = json.loads(json.dumps(report.to_json()))["reference"]
    assert found["case"] == case.name
    assert all(found[figure] > 0 for figure in ("cpu_ms", "p50_ms", "p99_ms", "turns_per_s", "collect_ms"))
    with (tmp_path / "tables").open("w") as file:
        report.print(Console(width=200, file=file))
    assert "the server of --reference" in (tmp_path / "tables").read_text()


def test_a_reference_that_is_not_there_is_named() -> None:
    port = find_free_port()
    with pytest.raises(ConfigError, match=f"no process of this user listens on port {port}"):
        find_listener(port)


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_a_yardstick_grows_with_the_rows_of_a_reply(tokenizer: Tokenizer) -> None:
    """Each kind of rows is more to parse by far, so that no noise of the machine turns the order round."""
    talk = Talk(name="t", turns=4, first_tokens=3000, prompt_tokens=3000, reply_tokens=60)
    replies = build_replies(tokenizer, talk, seed=1, count=2)
    ruler = TokenRuler(tokenizer)
    taken = [
        measure_yardstick(Case(sessions=1, talk=talk, rows=rows), tokenizer, ruler, replies, seed=1)
        for rows in (Rows.NONE, Rows.FULL)
    ]
    assert 0 < taken[0] < taken[1]


def test_chunks_are_joined() -> None:
    assert join_chunks(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n") == b"abcde"
