"""Routing rows from the engine's wire to the samples, through the whole server.

1. Which rows are asked for: by pause mode, at every turn, retry and branch; nothing at all without routing replay
   or in an evaluation session, which says that it is one.
2. Which rows are kept: those of the forwards that sampled the tokens, or the newest payload where that is asked for.
3. Rows that are missing, bad or recomputed: refused with the cause, or recorded and masked.
4. However a sample is cut, it has one row less than tokens; the indexer's rows likewise.
5. Each turn says how much of its prefix came from the cache, and whether older weights may have computed it.
"""

from typing import Any

import numpy as np
import pybase64
import pytest

from httpkit import Site, running_site
from servicekit import get_renderer, user
from turnkeeper.choices import PauseMode
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.testing import MoeShape, RecordedRequest, ScriptedEngine, ScriptedReply
from turnkeeper.testing.script import encode_payload, scripted_rows

MODES = pytest.mark.parametrize("mode", list(PauseMode))
HISTORIES = pytest.mark.parametrize("version", ["v1", "v2"])
MOE = {"layers": 2, "topk": 2, "experts": 8}
REPLAY: dict[str, Any] = {
    "use_rollout_routing_replay": True,
    "num_layers": 2,
    "moe_router_topk": 2,
    "num_experts": 8,
    "tito_model": "qwen3",
}


def build_engine(*script: ScriptedReply, moe: bool = True) -> ScriptedEngine:
    encode = get_renderer().tokenizer.encode
    return ScriptedEngine(script, encode=lambda text: encode(text).tolist(), moe=MoeShape() if moe else None)


async def say(site: Site, session: str, messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """A turn; the conversation behind it."""
    asked = [*messages, user(text)]
    reply = await site.chat(session, asked)
    assert reply.status == 200, reply.body
    return [*asked, reply.json()["choices"][0]["message"]]


async def collect(site: Site, session: str, **body: Any) -> list[Sample]:
    reply = await site.call("POST", f"{session}/samples", body)
    assert reply.status == 200, reply.body
    return list(decode_samples(reply.body).samples)


async def describe_turns(site: Site, session: str) -> list[dict[str, Any]]:
    return (await site.call("GET", session)).json()["metadata"]["turnkeeper"]["turns"]


def count_path(engine: ScriptedEngine, index: int) -> int:
    """Tokens of the path that the engine's call number ``index`` ends."""
    text = f"reply {index + 1}"
    return len(engine.generations[index].json["input_ids"]) + len(get_renderer().tokenizer.encode(text)) + 1


def expect_rows(tokens: np.ndarray, *, salt: int = 0) -> np.ndarray:
    return scripted_rows(tokens, **MOE, salt=salt)


def read_start(request: RecordedRequest) -> int | None:
    assert request.json["return_routed_experts"] is True
    return request.json.get("routed_experts_start_len")


@HISTORIES
@MODES
async def test_what_is_asked_for_at_turns_retries_and_branches(mode: PauseMode, version: str) -> None:
    engine = build_engine()
    async with running_site(engine, use_session_server=version, pause_generation_mode=mode, **REPLAY) as site:
        session = await site.create()
        first = await say(site, session, [], "a")
        await say(site, session, first, "b")
        again = await say(site, session, first, "b")  # a retry; under linear the first try of it is taken back
        third = await say(site, session, again, "c")
        other = await say(site, session, first, "d") if version == "v2" else third
        await say(site, session, other, "e")
        parents = [None, 0, 0, 2, 0, 4] if version == "v2" else [None, 0, 0, 2, 3]
        expected = [0 if parent is None else count_path(engine, parent) - 1 for parent in parents]
        starts = [read_start(request) for request in engine.generations]
        assert starts == ([None] * len(parents) if mode is PauseMode.RETRACT else expected)
        records = (await site.call("GET", session)).json()["records"]
        sent = {tuple(request.json["input_ids"]): read_start(request) for request in engine.generations}
        for record in records:
            asked = record["request"]
            assert asked.get("routed_experts_start_len") == sent[tuple(asked["input_ids"])]
        for sample in await collect(site, session):
            assert sample.rollout_routed_experts is not None
            assert np.array_equal(sample.rollout_routed_experts, expect_rows(sample.tokens))


@HISTORIES
@MODES
async def test_nothing_is_asked_for_without_routing_replay(mode: PauseMode, version: str) -> None:
    engine = build_engine()
    async with running_site(engine, use_session_server=version, pause_generation_mode=mode) as site:
        session = await site.create()
        await say(site, session, await say(site, session, [], "a"), "b")
        for request in engine.generations:
            assert not {name for name in request.json if "routed" in name or "indexer" in name}
        (sample,) = await collect(site, session)
        assert sample.rollout_routed_experts is None
        assert sample.rollout_indexer_topk is None


@HISTORIES
@MODES
async def test_an_evaluation_session_asks_for_no_rows_and_says_what_it_is(mode: PauseMode, version: str) -> None:
    engine = build_engine()
    options = {"use_session_server": version, "pause_generation_mode": mode, "use_rollout_indexer_replay": True}
    async with running_site(engine, **options, **REPLAY) as site:
        session = await site.create(evaluation=True, temperature=0.5, top_p=1, top_k=-1)
        await say(site, session, await say(site, session, [], "a"), "b")
        for request in engine.generations:
            assert not {name for name in request.json if "routed" in name or "indexer" in name}
            assert [request.json[name] for name in ("temperature", "top_p", "top_k")] == [0.5, 1, -1]
        assert (await site.call("GET", session)).json()["metadata"]["turnkeeper"]["evaluation"] is True
        (sample,) = await collect(site, session)
        assert (sample.rollout_routed_experts, sample.rollout_indexer_topk) == (None, None)
        assert sample.metadata["turnkeeper"]["evaluation"] is True

        session = await site.create(evaluation=False)
        await say(site, session, [], "a")
        (sample,) = await collect(site, session)
        assert sample.rollout_routed_experts is not None
        assert "evaluation" not in sample.metadata["turnkeeper"]


@MODES
async def test_the_indexers_rows_are_asked_for_and_kept_whole(mode: PauseMode) -> None:
    engine = build_engine()
    async with running_site(engine, pause_generation_mode=mode, use_rollout_indexer_replay=True) as site:
        session = await site.create()
        await say(site, session, await say(site, session, [], "a"), "b")
        assert all(request.json["return_indexer_topk"] is True for request in engine.generations)
        assert not any("return_routed_experts" in request.json for request in engine.generations)
        (sample,) = await collect(site, session)
        assert sample.rollout_indexer_topk is not None
        assert sample.rollout_indexer_topk.dtype == np.int32
        assert np.array_equal(sample.rollout_indexer_topk, expect_rows(sample.tokens))


@pytest.mark.parametrize("kept", ["decode", "latest"])
async def test_a_whole_payload_of_other_weights_changes_what_is_kept_only_where_asked(kept: str) -> None:
    engine = build_engine(ScriptedReply(), ScriptedReply(rows_salt=1), ScriptedReply(rows_salt=1))
    async with running_site(engine, pause_generation_mode="retract", r3_rows=kept, **REPLAY) as site:
        session = await site.create()
        messages = await say(site, session, [], "a")
        messages = await say(site, session, messages, "b")
        await say(site, session, messages, "c")
        (sample,) = await collect(site, session)
        held = count_path(engine, 0) - 1
        old, new = expect_rows(sample.tokens), expect_rows(sample.tokens, salt=1)
        expected = new if kept == "latest" else np.concatenate([old[:held], new[held:]])
        assert sample.rollout_routed_experts is not None
        assert sample.rollout_routed_experts.tobytes() == expected.tobytes()
        marks = [turn.get("marks", {}).get("rows_changed") for turn in await describe_turns(site, session)]
        assert marks == [None, held, held if kept == "decode" else None]


async def test_the_first_turn_already_fails_on_an_engine_without_its_flag() -> None:
    engine = build_engine(moe=False)
    async with running_site(engine, pause_generation_mode="in_place", **REPLAY) as site:
        session = await site.create()
        refused = await site.chat(session, [user("a")])
        assert (refused.status, refused.json()["error"]["code"]) == (502, "engine_protocol")
        assert "--enable-return-routed-experts" in refused.json()["error"]["message"]
        assert (await site.call("GET", session)).json()["records"] == []
        engine.moe = MoeShape()
        assert (await site.chat(session, [user("a")])).status == 200


def spoil(row: int) -> Any:
    """An edit of a reply after which one row of its payload repeats an expert."""

    def edit(reply: dict[str, Any]) -> None:
        meta = reply["choices"][0]["meta_info"]
        rows = np.frombuffer(pybase64.b64decode(meta["routed_experts"]), "<i4").reshape(-1, 2, 2).copy()
        rows[row, 1] = 3
        meta["routed_experts"] = encode_payload(rows)

    return edit


@pytest.mark.parametrize("on_bad_rows", ["fail", "mask"])
async def test_bad_rows_fail_the_turn_or_mask_what_follows(on_bad_rows: str) -> None:
    engine = build_engine(ScriptedReply(), ScriptedReply(edit=spoil(-2)))
    async with running_site(engine, pause_generation_mode="in_place", on_bad_rows=on_bad_rows, **REPLAY) as site:
        session = await site.create()
        messages = [*await say(site, session, [], "a"), user("b")]
        reply = await site.chat(session, messages)
        if on_bad_rows == "fail":
            assert (reply.status, reply.json()["error"]["code"]) == (502, "engine_protocol")
            assert len((await site.call("GET", session)).json()["records"]) == 1
            assert (await site.chat(session, messages)).status == 200
            return
        assert reply.status == 200
        await say(site, session, [*messages, reply.json()["choices"][0]["message"]], "c")
        (sample,) = await collect(site, session)
        bad = count_path(engine, 1) - 3  # the last row but one samples the last token but one
        masked = [run for run in sample.metadata["turnkeeper"]["masked"] if run["reason"] == "bad_rows"]
        first = len(sample.tokens) - sample.response_length
        assert masked[0]["start"] + first == bad + 1
        trained = np.flatnonzero(sample.loss_mask) + first
        assert trained.max() == bad


@pytest.mark.parametrize(("choice", "status"), [("keep", 200), ("mask", 200), ("fail", 502)])
async def test_a_turn_whose_rows_were_computed_again_is_kept_masked_or_refused(choice: str, status: int) -> None:
    reply = ScriptedReply(num_retractions=1, spans=[("1", 0, 2), ("2", 2, 4)])
    engine = build_engine(reply)
    async with running_site(engine, pause_generation_mode="retract", r3_recomputed=choice, **REPLAY) as site:
        session = await site.create()
        answer = await site.chat(session, [user("a")])
        assert answer.status == status
        if status != 200:
            assert (await site.call("GET", session)).json()["records"] == []
            return
        (turn,) = await describe_turns(site, session)
        assert turn["marks"]["rows_recomputed"] is True
        (sample,) = await collect(site, session)
        assert bool(sample.loss_mask.any()) == (choice == "keep")


@MODES
async def test_a_sample_that_is_cut_has_one_row_less_than_tokens(mode: PauseMode) -> None:
    engine = build_engine()
    async with running_site(engine, pause_generation_mode=mode, use_rollout_indexer_replay=True, **REPLAY) as site:
        session = await site.create()
        messages = await say(site, session, [], "a")
        await say(site, session, await say(site, session, messages, "b"), "c")
        (whole,) = await collect(site, session)
        prompt = len(whole.tokens) - whole.response_length
        for limit in (prompt + 1, count_path(engine, 0), count_path(engine, 1) - 1, len(whole.tokens) - 1):
            (sample,) = await collect(site, session, max_seq_len=limit)
            assert len(sample.tokens) <= limit
            for rows in (sample.rollout_routed_experts, sample.rollout_indexer_topk):
                assert rows is not None
                assert np.array_equal(rows, expect_rows(whole.tokens)[: len(sample.tokens) - 1])


async def update(site: Site, mode: str, version: str) -> None:
    """Other weights, as a trainer gives them."""
    assert (await site.call("POST", "/engine/pause", {"mode": mode, "forward": True})).status == 200
    site.engine.weight_version = version
    assert (await site.call("POST", "/engine/continue", {"forward": True})).status == 200


def count_cached(count: int) -> ScriptedReply:
    return ScriptedReply(cached_tokens=count)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"pause_generation_mode": "in_place"}, [False, False, True, False]),
        ({"pause_generation_mode": "in_place", "cache_salt_by_version": True}, [False] * 4),
        ({"pause_generation_mode": "abort"}, [False] * 4),
        ({"pause_generation_mode": "retract"}, [False] * 4),
    ],
    ids=["in_place", "in_place, salted", "abort", "retract"],
)
async def test_a_prefix_that_older_weights_may_have_computed_is_marked(
    options: dict[str, Any], expected: list[bool]
) -> None:
    engine = build_engine(count_cached(0), count_cached(8), count_cached(8), count_cached(0))
    async with running_site(engine, **options) as site:
        session = await site.create()
        messages = await say(site, session, [], "a")
        messages = await say(site, session, messages, "b")
        await update(site, options["pause_generation_mode"], "2")
        messages = await say(site, session, messages, "c")
        await say(site, session, messages, "d")
        turns = await describe_turns(site, session)
        assert [turn["cached_tokens"] for turn in turns] == [0, 8, 8, 0]
        assert [turn.get("marks", {}).get("prefix_may_be_older", False) for turn in turns] == expected
        (sample,) = await collect(site, session)
        assert sample.prefix_cache_info.cached_tokens == 16


async def test_the_cache_is_salted_by_session_and_version() -> None:
    engine = build_engine()
    async with running_site(engine, pause_generation_mode="in_place", cache_salt_by_version=True) as site:
        sessions = [await site.create(), await site.create()]
        for session in sessions:
            await say(site, session, [], "a")
        await update(site, "in_place", "2")
        await say(site, sessions[0], [], "b")
        ids = [session.removeprefix("/sessions/") for session in sessions]
        salts = [request.json["cache_salt"] for request in engine.generations]
        assert salts == [f"{ids[0]}:default", f"{ids[1]}:default", f"{ids[0]}:2"]
    async with running_site(plain := build_engine()) as site:
        await say(site, await site.create(), [], "a")
        assert "cache_salt" not in plain.generations[0].json
