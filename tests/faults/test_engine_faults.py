"""Fault x phase: what the agent gets, what is recorded, what is accounted for.

1. Every fault of an engine, at every turn, streamed or not, has one status, one code, one word on retrying.
2. It leaves turns and paths as they were, and the next turn works.
3. What was sampled in vain is accounted for: as tokens where the engine told, as a call where it did not.
"""

import asyncio
from dataclasses import dataclass

import pytest

from httpkit import Site, running_site
from servicekit import get_renderer, user
from turnkeeper.core.event import ReplyDelivered, TokensDropped, TurnCommitted
from turnkeeper.jsontypes import JsonObject
from turnkeeper.testing import Phase, ScriptedEngine, ScriptedReply

LOST = "a call"
NOTHING = "nothing"
TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row of the table."""

    id: str
    reply: ScriptedReply
    status: int
    code: str
    retry: str
    """What the headers say: ``no``, ``after``, or ``free`` where they leave it to the client."""
    lost: str
    """What is accounted for."""


def abort(count: int) -> ScriptedReply:
    return ScriptedReply(finish_reason="abort", ids=tuple(range(10, 10 + count)), text="")


def set_id(reply: JsonObject, token: object) -> None:
    reply["choices"][0]["meta_info"]["output_token_logprobs"][0][1] = token


FAULTS = (
    Fault(
        id="cut before the headers",
        reply=ScriptedReply(fault=Phase.HEADERS),
        status=502,
        code="engine",
        retry="free",
        lost=LOST,
    ),
    Fault(
        id="cut in the body",
        reply=ScriptedReply(fault=Phase.BODY),
        status=502,
        code="engine",
        retry="free",
        lost=LOST,
    ),
    Fault(
        id="half a JSON text",
        reply=ScriptedReply(fault=Phase.TRUNCATED),
        status=502,
        code="engine_protocol",
        retry="no",
        lost=LOST,
    ),
    Fault(
        id="lengths disagree",
        reply=ScriptedReply(edit=lambda reply: reply["choices"][0]["meta_info"].update(completion_tokens=1)),
        status=502,
        code="engine_protocol",
        retry="no",
        lost=TOKENS,
    ),
    Fault(
        id="the prompt was rendered again",
        reply=ScriptedReply(edit=lambda reply: reply["choices"][0]["meta_info"].update(prompt_tokens=1)),
        status=502,
        code="engine_protocol",
        retry="no",
        lost=TOKENS,
    ),
    Fault(
        id="a logprob is no number",
        reply=ScriptedReply(
            edit=lambda reply: reply["choices"][0]["meta_info"]["output_token_logprobs"][0].__setitem__(0, None)
        ),
        status=502,
        code="engine_protocol",
        retry="no",
        lost=TOKENS,
    ),
    Fault(
        id="an id beyond the vocabulary",
        reply=ScriptedReply(edit=lambda reply: set_id(reply, 10**6)),
        status=502,
        code="engine_protocol",
        retry="no",
        lost=TOKENS,
    ),
    Fault(
        id="an id that is a boolean",
        reply=ScriptedReply(edit=lambda reply: set_id(reply, True)),
        status=502,
        code="engine_protocol",
        retry="no",
        lost=LOST,
    ),
    Fault(
        id="a final abort",
        reply=abort(7),
        status=503,
        code="turn_aborted",
        retry="no",
        lost=TOKENS,
    ),
    Fault(
        id="a final abort before the first token",
        reply=abort(0),
        status=503,
        code="turn_aborted",
        retry="no",
        lost=NOTHING,
    ),
    Fault(
        id="the engine refuses",
        reply=ScriptedReply(status=400),
        status=400,
        code="engine_refused",
        retry="no",
        lost=NOTHING,
    ),
    Fault(
        id="the engine is busy",
        reply=ScriptedReply(status=429),
        status=429,
        code="engine_refused",
        retry="after",
        lost=NOTHING,
    ),
    Fault(
        id="the request is too large for a proxy",
        reply=ScriptedReply(status=413),
        status=413,
        code="engine_refused",
        retry="no",
        lost=NOTHING,
    ),
    Fault(
        id="the engine breaks",
        reply=ScriptedReply(status=500),
        status=502,
        code="engine",
        retry="free",
        lost=LOST,
    ),
)


def say_retry(headers: dict[str, str]) -> str:
    if headers.get("x-should-retry") == "false":
        return "no"
    return "after" if "retry-after" in headers else "free"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("turn", [0, 1], ids=["first turn", "later turn"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
async def test_a_fault_has_one_answer_and_leaves_the_session_as_it_was(fault: Fault, turn: int, stream: bool) -> None:
    version = "v2" if stream else "v1"
    engine = ScriptedEngine(encode=lambda text: get_renderer().tokenizer.encode(text).tolist())
    async with running_site(engine, use_session_server=version, abort_grace=0) as site:
        session = await site.create()
        messages = [user("a")]
        if turn:
            reply = await site.chat(session, messages)
            messages += [reply.json()["choices"][0]["message"], user("b")]
        engine.script.append(fault.reply)
        failed = await site.chat(session, messages, stream=stream)
        assert (failed.status, failed.json()["error"]["code"]) == (fault.status, fault.code)
        assert say_retry(failed.headers) == fault.retry
        check_untouched(site, session, fault, turns=turn)
        assert (await site.chat(session, messages, stream=stream)).status == 200
        check_untouched(site, session, fault, turns=turn + 1)


def check_untouched(site: Site, session: str, fault: Fault, *, turns: int) -> None:
    """Turns, events and accounting of the session."""
    entry = site.find_entry(session.removeprefix("/sessions/"))
    events = [type(event) for event in entry.session.events[1:]]
    assert events.count(TurnCommitted) == len(entry.session.forest) == turns
    assert events.count(ReplyDelivered) == turns
    assert events.count(TokensDropped) == (fault.lost != NOTHING)
    ledger = entry.session.ledger
    kept = sum(len(turn.completion.ids) for turn in entry.session.forest.turns)
    assert ledger.sampled == kept + sum(ledger.dropped.values())
    assert (sum(ledger.calls.values()), bool(ledger.dropped)) == (fault.lost == LOST, fault.lost == TOKENS)
    assert not entry.in_flight
    assert entry.session.in_flight == 0


async def test_an_engine_that_never_answers_is_a_504_and_is_told() -> None:
    engine = ScriptedEngine([ScriptedReply(wait=asyncio.Event())])
    async with running_site(engine, engine_timeout=0.05) as site:
        session = await site.create()
        late = await site.chat(session, [user("a")])
        assert (late.status, late.json()["error"]["code"]) == (504, "engine_timeout")
        assert (await site.chat(session, [user("a")])).status == 200
        rid = engine.generations[0].json["rid"]
        aborted = [request.json["rid"] for request in engine.requests if request.path == "/abort_request"]
        assert aborted == [rid]
