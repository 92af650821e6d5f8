"""A side channel is one declaration: a fourth one takes its whole way by a row of the table.

It is asked for, read, checked, kept, stored, joined along paths and put into samples; nothing else names it.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from httpkit import Site, running_site
from servicekit import get_renderer, user
from turnkeeper.channels import CHANNELS, CallFacts, Capture, Channel, ItemRun, Kept, PathTurn, SampleTensor, TurnPlan
from turnkeeper.core.event import TurnCommitted
from turnkeeper.errors import EngineProtocolError, TokenIntegrityError
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.store import SessionDecoder, SessionEncoder
from turnkeeper.testing import ScriptedEngine, ScriptedReply


class Sampled:
    """What was sampled is asked for, nothing of the prompt."""

    def __init__(self, prompt_tokens: int) -> None:
        self.payload_start = prompt_tokens


class Entropies(Channel):
    """The entropy of the distribution that each token was drawn from."""

    name = label = stored_as = "entropies"
    stored_runs = ("entropies",)
    members = ("output_token_entropies",)
    fields = ("return_entropies",)
    tensors = (
        SampleTensor(
            name="rollout_entropies",
            dtype=np.dtype("<f8"),
            shape="[R]",
            null="not asked for",
            meaning="In nats; 0.0 on tokens not sampled.",
            is_left_out_when_null=True,
        ),
    )

    def render(self, wire: Any, asked: Sampled) -> dict[str, Any]:
        return {"return_entropies": True}

    def read(self, wire: Any, holder: dict[str, Any], take: Any) -> Any:
        return holder.get("output_token_entropies")

    def is_on(self, options: Mapping[str, Any]) -> bool:
        return True

    def open(self, settings: Any) -> Capture:
        return EntropyCapture()

    def check_added(self, items: ItemRun, parent_items: Any, *, parent_tokens: int, path_tokens: int) -> None:
        if len(items) >= path_tokens:
            raise TokenIntegrityError("more entropies than tokens", index=0, expected=path_tokens, found=len(items))

    def assemble(self, turns: Sequence[PathTurn], *, tokens: int) -> dict[str, np.ndarray]:
        found = np.zeros(tokens - turns[0].sampled)
        for turn in turns:
            start = turn.sampled - turns[0].sampled
            found[start : turn.kept - turns[0].sampled] = turn.channels[self.name].array[: turn.kept - turn.sampled]
        return {"rollout_entropies": found}

    def check_tensors(
        self, tensors: Mapping[str, np.ndarray], *, tokens: int, loss_mask: Any, turns: Any
    ) -> str | None:
        found = tensors.get("rollout_entropies")
        return None if found is None or len(found) == len(loss_mask) else "entropies are not parallel to the loss mask"


class EntropyCapture(Capture):
    channel = Entropies()

    def plan(self, turn: TurnPlan) -> Sampled:
        return Sampled(turn.prompt_tokens)

    def take(self, payload: Any, asked: Any, call: CallFacts, *, held: Any, earlier: Any) -> np.ndarray:
        if not isinstance(payload, list) or len(payload) != len(call.ids):
            raise EngineProtocolError(f"{len(call.ids)} entropies were asked for, the reply of {call.url} has none")
        return np.array(payload, np.float64)

    def join(self, taken: Sequence[Any], *, prompt_tokens: int, counts: Sequence[int], count: int) -> np.ndarray:
        return np.concatenate(taken)[:count]

    def finish(self, taken: np.ndarray, turn: CallFacts, *, held: Any) -> Kept:
        return Kept(items=ItemRun(taken), marks={"mean_entropy": float(taken.mean())})


@pytest.fixture(autouse=True)
def _toy() -> Generator[None]:
    CHANNELS.add(Entropies())
    yield
    CHANNELS.remove("entropies")


def measure(choice: dict[str, Any]) -> None:
    """Let the engine report an entropy that follows from the token."""
    meta = choice["choices"][0]["meta_info"]
    meta["output_token_entropies"] = [token / 7 for _, token, _ in meta["output_token_logprobs"]]


def build_engine(*edits: Any) -> ScriptedEngine:
    encode = get_renderer().tokenizer.encode
    return ScriptedEngine([ScriptedReply(edit=edit) for edit in edits], encode=lambda text: encode(text).tolist())


async def collect(site: Site, session: str, **body: Any) -> Sample:
    (sample,) = decode_samples((await site.call("POST", f"{session}/samples", body)).body).samples
    return sample


async def test_a_fourth_channel_takes_its_whole_way_by_a_row_of_the_table() -> None:
    engine = build_engine(measure, measure)
    async with running_site(engine, tito_model="qwen3") as site:
        session = await site.create()
        reply = (await site.chat(session, [user("a")])).json()["choices"][0]["message"]
        assert (await site.chat(session, [user("a"), reply, user("b")])).status == 200
        assert all(request.json["return_entropies"] is True for request in engine.generations)
        for limit in (None, 30):
            sample = await collect(site, session, **({} if limit is None else {"max_seq_len": limit}))
            response = sample.tokens[len(sample.tokens) - sample.response_length :]
            expected = np.where(sample.loss_mask == 1, response / 7, 0.0)
            assert sample.tensors["rollout_entropies"].tolist() == expected.tolist()
            assert sample.to_dict()["rollout_entropies"] == expected.tolist()
        (entry,) = site.parts.registry
        committed = [event for event in entry.session.events if isinstance(event, TurnCommitted)]
        encoder, decoder = SessionEncoder(), SessionDecoder()
        for event in committed:
            stored = encoder.encode(event)
            back = decoder.decode(stored.record, lambda number, found=stored: ItemRun(found.payloads[number].array))
            assert isinstance(back, TurnCommitted)
            kept, again = (each.turn.completion.channels["entropies"] for each in (event, back))
            assert kept.runs[0].equals(again.runs[0])
            assert event.turn.completion.marks["mean_entropy"] > 0


async def test_a_reply_without_it_is_a_502() -> None:
    async with running_site(build_engine(None), tito_model="qwen3") as site:
        reply = await site.chat(await site.create(), [user("a")])
        assert (reply.status, "entropies were asked for" in reply.body.decode()) == (502, True)
