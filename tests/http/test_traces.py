"""What real clients sent, replayed through the whole server.

1. Every call of a trace is answered 200 through its own dialect, streamed where the client streamed.
2. Each main turn attaches to the one before; side requests (titles) are roots of their own.
3. Real chat templates that refuse or drop system messages take every call: each text is in the prompt once, the
   session keeps the messages as they were sent, and the engine is sent those that were written.
4. With sampling masks on, each sampled token of every sample has the mask that the engine gave it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from httpkit import Site, running_site
from maskkit import MASKS, TRUNCATING, MaskingEngine
from rendering.standins import standin
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering.message import get_text
from turnkeeper.samples import decode_samples
from turnkeeper.testing import ScriptedReply

TRACES = Path(__file__).parent.parent / "data" / "traces"

PARENTS: dict[str, list[int | None]] = {
    "claude-agent-sdk": [None, 0, 1],
    "claude-code": [None, None, 1, 2],
    "codex": [None, 0, 1],
    "mini-swe-agent": [None, 0, 1, 2, 2, 2],
    "opencode": [None, None, 1, 2],
    "pi": [None, 0, 1],
    "py-agents": [None, 0, 1, 2, None, 4, 5, None, 7, 8],
    "py-pydai": [None, 0, 1, 2, None, 4, 5],
    "py-smolagents": [None] * 8,
    "py-strands": [None, 0, 1, 2],
    "qwen-code": [None, 0, 1],
}
"""The turn that each model call of a trace goes on from: its index among the calls, None for a root."""


def script(reply: JsonObject) -> ScriptedReply:
    """The reply that the client was given."""
    calls = reply.get("tool_calls") or ()
    return ScriptedReply(
        text=reply.get("content") or "",
        reasoning=reply.get("reasoning_content"),
        tool_calls=calls,
        finish_reason="tool_calls" if calls else "stop",
    )


class Client:
    """Sends the calls of a trace to one session as the client did, with the call ids that this server shows.

    A trace may hold several runs of a client, which name their calls alike: in one session they get ids of their own.
    """

    def __init__(self, site: Site, session: str) -> None:
        self._site = site
        self._session = session
        self._shown: dict[str, str] = {}

    async def replay(self, call: JsonObject) -> None:
        headers = {name.replace("-", "_"): value for name, value in call["headers"].items()}
        if call["reply"] is not None:
            self._site.engine.script.append(script(call["reply"]))
        body = self._rename(call["body"])
        reply = await self._site.call(call["method"], self._session + call["path"], body, **headers)
        assert reply.status == 200, reply.body
        if call["reply"] is not None:
            forest = self._site.find_entry(self._session.removeprefix("/sessions/")).session.forest
            shown = forest.turns[-1].completion.message.get("tool_calls", ())
            given = call["reply"].get("tool_calls") or ()
            self._shown |= {old["id"]: new["id"] for old, new in zip(given, shown, strict=True)}

    def _rename(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._shown.get(value, value)
        if isinstance(value, list):
            return [self._rename(item) for item in value]
        return {key: self._rename(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("name", PARENTS)
async def test_each_turn_attaches_where_its_client_meant_it(name: str) -> None:
    trace: JsonObject = json.loads((TRACES / f"{name}.json").read_text())
    async with running_site(use_session_server="v2") as site:
        session = await site.create()
        client = Client(site, session)
        for call in trace["turns"]:
            await client.replay(call)
        metadata: Any = (await site.call("GET", session)).json()["metadata"]
    assert [node["parent"] for node in metadata["tree"]["nodes"]] == PARENTS[name]


@pytest.mark.parametrize("name", PARENTS)
async def test_each_token_keeps_its_mask(name: str) -> None:
    trace: JsonObject = json.loads((TRACES / f"{name}.json").read_text())
    engine = MaskingEngine()
    options = {**MASKS, "session_sample_picker_path": "keep_siblings"}
    async with running_site(engine, use_session_server="v2", **options) as site:
        session = await site.create(**TRUNCATING)
        client = Client(site, session)
        for call in trace["turns"]:
            await client.replay(call)
        assert all(request.json["return_sampling_mask"] for request in engine.generations)
        reply = await site.call("POST", f"{session}/samples", {})
        samples = decode_samples(reply.body).samples
        turns = [turn for sample in samples for turn in sample.metadata["turnkeeper"]["turns"]]
        assert {turn["id"] for turn in turns} == set(range(len(PARENTS[name])))
        assert sum(map(engine.told.check, samples)) == sum(turn["end"] - turn["start"] for turn in turns)


INSTRUCTED = ("claude-agent-sdk", "claude-code", "codex")
"""Clients that send system or developer messages which do not stand alone at the beginning."""
TEMPLATES = ("qwen35", "qwen36", "qwen38small", "minimax_m25", "gptoss", "qwen3", "glm47", "kimi25", "deepseekv4")


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("name", INSTRUCTED)
async def test_a_real_chat_template_takes_what_the_client_sends(name: str, family: str) -> None:
    trace: JsonObject = json.loads((TRACES / f"{name}.json").read_text())
    renderer = standin(family)
    async with running_site(use_session_server="v2", renderer=renderer) as site:
        session = await site.create()
        client = Client(site, session)
        for call in trace["turns"]:
            await client.replay(call)
        forest = site.find_entry(session.removeprefix("/sessions/")).session.forest
        calls = [request.json for request in site.engine.requests if "input_ids" in request.json]
    assert [turn.parent for turn in forest.turns] == PARENTS[name]
    for turn, call in zip(forest.turns, calls, strict=True):
        sent = forest.path_messages(turn.id)[:-1]
        assert name != "codex" or [message["role"] for message in sent[:3]] == ["developer", "developer", "user"]
        assert call["messages"] == list(renderer.place(sent))
        prompt = renderer.tokenizer.decode(freeze_ids(call["input_ids"]))
        texts = [get_text(message).strip() for message in sent if message["role"] in ("system", "developer")]
        assert len(texts) > 1 or not turn.request.tools
        assert [prompt.count(text) for text in texts] == [1] * len(texts)


def test_every_trace_is_listed() -> None:
    assert {path.stem for path in TRACES.glob("*.json")} == PARENTS.keys()
