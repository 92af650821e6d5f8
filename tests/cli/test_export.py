"""``turnkeeper export``: the sessions of a store as Parquet tables.

1. Each table has the columns that its declaration names, in their types; DuckDB reads them.
2. What a session is made of is in them to the last id, and its accounting adds up to what it sampled.
3. Rows come in groups, so that no more than one is in memory; the files are there once all of them are whole.
4. An export beside a server disturbs nothing. A session that cannot be read is left out and named.
"""

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from cli.test_removal import read_files
from service.sessions.test_storing import play, serving
from servicekit import assistant, user
from storekit import StoredTalk, create, rows_of, storing
from turnkeeper.cli.main import app
from turnkeeper.views import parquet
from turnkeeper.views.tables import TABLES


async def export(folder: Path, out: Path, *words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["export", str(folder), "--parquet", str(out), *words])


def read(out: Path, table: str) -> list[dict[str, Any]]:
    return pq.read_table(out / f"{table}.parquet").to_pylist()


async def test_the_tables_are_as_they_are_declared(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as kit:
        await play(kit)
    result = await export(tmp_path / "store", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.split() == [str(tmp_path / "out" / f"{name}.parquet") for name in TABLES]
    for name, columns in TABLES.items():
        schema = pq.read_schema(tmp_path / "out" / f"{name}.parquet")
        assert schema.names == [column.name for column in columns]
    turns = pq.read_schema(tmp_path / "out" / "turns.parquet")
    assert turns.field("prompt_ids").type == pa.list_(pa.int32())
    assert turns.field("logprobs").type == pa.list_(pa.float32())
    assert turns.field("committed_at").type == pa.timestamp("us", tz="UTC")


async def test_duckdb_reads_them(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as kit:
        await play(kit, metadata={"task": 7})
    await export(tmp_path / "store", tmp_path / "out")
    with duckdb.connect() as database:
        found = database.sql(f"""
            SELECT s.metadata->>'task', count(*), sum(len(t.completion_ids)), min(epoch(t.committed_at)) > 0
            FROM '{tmp_path}/out/turns.parquet' t JOIN '{tmp_path}/out/sessions.parquet' s USING (session_id)
            GROUP BY ALL
        """).fetchall()
        ((total,),) = database.sql(f"SELECT sum(tokens) FROM '{tmp_path}/out/accounting.parquet'").fetchall()
    assert [(task, turns, is_timed) for task, turns, _, is_timed in found] == [("7", 3, True)]
    assert total >= found[0][2] > 0


async def test_what_a_session_is_made_of_is_in_them(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as kit:
        session_id = await play(kit, metadata={"task": 7, "a": "\ud83d"})
        await kit.say(session_id, [user("a"), assistant("first, changed"), user("d")], "fourth \ud83d")
        live = kit.look(session_id)
        ledger = live.ledger
    await export(tmp_path / "store", tmp_path / "out", session_id)
    (session,) = read(tmp_path / "out", "sessions")
    assert (session["state"], session["history"], session["turns"]) == ("open", "tree", 4)
    assert json.loads(session["metadata"]) == {"task": 7, "a": "\ud83d"}
    for turn, row in zip(live.forest.turns, read(tmp_path / "out", "turns"), strict=True):
        assert (row["session_id"], row["turn"], row["parent"]) == (session_id, turn.id, turn.parent)
        assert row["prompt_ids"] == turn.prompt.ids.tolist()
        assert row["completion_ids"] == turn.completion.ids.tolist()
        assert row["logprobs"] == pytest.approx(turn.completion.logprobs.tolist(), rel=1e-6)
        assert row["committed_at"] == datetime.fromtimestamp(turn.committed_at, UTC)
        assert json.loads(row["messages"]) == list(turn.messages)
        assert json.loads(row["reply"]) == turn.completion.message
        assert [span["stop"] for span in row["versions"]] == [span.stop for span in turn.completion.versions]
    terms = read(tmp_path / "out", "accounting")
    assert sum(term["tokens"] or 0 for term in terms) == ledger.sampled
    assert sum(term["calls"] or 0 for term in terms) == sum(ledger.calls.values())
    (fork,) = [fork for fork in read(tmp_path / "out", "forks") if fork["turn"] == 3]
    assert (fork["near"], fork["cause"], fork["message"]) == (0, "reply_rewritten", 1)


async def test_rows_come_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    talk = StoredTalk()
    async with storing(tmp_path / "store") as store:
        stored = await create(store, talk)
        for number in range(9):
            await talk.say(stored, rows=rows_of(3) if number else None)
    await export(tmp_path / "store", tmp_path / "out")
    metadata = pq.read_metadata(tmp_path / "out" / "turns.parquet")
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [4, 4, 1]
    assert [row["routing_rows"] for row in read(tmp_path / "out", "turns")] == [None, *[3] * 8]


async def test_an_export_disturbs_no_server(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as kit:
        session_id = await play(kit)
        await kit.say(session_id, [user("x")], "fourth")  # with it is stored what nobody waited for
        before = read_files(tmp_path / "store")
        assert (await export(tmp_path / "store", tmp_path / "out")).exit_code == 0
        assert read_files(tmp_path / "store") == before
        assert len(read(tmp_path / "out", "turns")) == 4
        await kit.say(session_id, [user("y")], "fifth")


async def test_a_session_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as kit:
        broken, sound = await play(kit), await play(kit)
    with closing(sqlite3.connect(tmp_path / "store" / "slot-000" / "sessions.db")) as database, database:
        database.execute("UPDATE events SET record = x'00' WHERE place = 0 AND session = 1")
    result = await export(tmp_path / "store", tmp_path / "out")
    assert result.exit_code == 1
    assert f"session {broken} is left out: " in result.stderr
    assert [row["session_id"] for row in read(tmp_path / "out", "sessions")] == [sound]
    result = await export(tmp_path / "store", tmp_path / "new", "0" * 32)
    assert (result.exit_code, "has no records of session" in result.stderr) == (1, True)
    assert list((tmp_path / "new").iterdir()) == []


async def test_what_cannot_be_used_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path / "store"):
        pass
    (tmp_path / "file").write_text("")
    result = await export(tmp_path / "store", tmp_path / "file")
    assert (result.exit_code, "name a folder that this user may write" in result.stderr) == (2, True)
    monkeypatch.setattr(parquet, "find_spec", lambda _: None)
    result = await export(tmp_path / "store", tmp_path / "out")
    assert (result.exit_code, "pip install 'turnkeeper[export]'" in result.stderr) == (2, True)
    assert not (tmp_path / "out").exists()
