"""A turn from request to record.

1. The prompt goes on from the stored ids; the reply is recorded as it was delivered.
2. Nothing changes when a request is refused or its engine call fails; the session stays usable.
3. Requests that overlap are recorded as siblings, and each can be continued.
4. Pins win over what the agent sends; what they override is recorded.
5. A token limit lowers the budget, and ends the session in the dialect's own error.
"""

import asyncio

import pytest

from servicekit import FakeEngine, Kit, assistant, build_kit, build_request, user
from turnkeeper.core import DropReason, Label
from turnkeeper.errors import (
    ContextLengthError,
    EngineError,
    EngineProtocolError,
    HistoryDivergedError,
    SessionNotFoundError,
    TurnkeeperError,
    TurnLimitError,
)

POLICIES = pytest.mark.parametrize("version", ["v1", "v2"])


def count_turns(kit: Kit, session_id: str) -> int:
    return len(kit.look(session_id).forest)


@POLICIES
async def test_a_turn_goes_on_from_the_stored_ids(version: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = kit.create()
    reply = await kit.say(session_id, [user("a")], "first")
    await kit.say(session_id, [user("a"), assistant(reply), user("b")], "second")
    first, second = (call.request.prompt_ids.tolist() for call in kit.engine.calls)
    completion = kit.look(session_id).forest.turns[0].completion.ids.tolist()
    assert second[: len(first) + len(completion)] == first + completion


@POLICIES
async def test_a_reply_is_recorded_as_it_was_delivered(version: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    kit.engine.answer(text="hello")
    body = await turn.read()
    recorded = kit.look(session_id).forest.turns[0].completion
    assert body["choices"][0]["message"] == recorded.message
    assert body["id"] == recorded.response_id
    assert body["usage"]["completion_tokens"] == len(recorded.ids)
    assert kit.look(session_id).is_delivered(kit.look(session_id).forest.turns[0].id)


async def test_an_unknown_session_is_not_found() -> None:
    kit = build_kit()
    with pytest.raises(SessionNotFoundError):
        await kit.begin("0" * 32, [user("a")])


REFUSED = {
    "another first message": ([user("x"), assistant("y"), user("z")], HistoryDivergedError),
    "a prompt over the limit": (
        [user("a"), assistant("first"), user("b"), assistant("second"), user("word " * 100)],
        ContextLengthError,
    ),
}


@pytest.mark.parametrize(("messages", "error"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_refused_request_changes_nothing(messages: list[dict[str, object]], error: type[Exception]) -> None:
    kit = build_kit()
    session_id = kit.create(max_seq_len=100)
    await kit.say(session_id, [user("a")], "first")
    await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")
    events = list(kit.look(session_id).events)
    with pytest.raises(error):
        await kit.begin(session_id, messages)
    assert kit.look(session_id).events == events
    assert len(kit.engine.calls) == 2
    assert kit.look(session_id).in_flight == 0


FAILURES = {
    "not there": EngineError("no connection", url="http://engine", accepted=False),
    "broken": EngineError("reset", url="http://engine"),
    "unexpected": ValueError("a bug"),
}


@POLICIES
@pytest.mark.parametrize("error", FAILURES.values(), ids=FAILURES.keys())
async def test_a_failed_engine_call_records_nothing_and_the_session_goes_on(version: str, error: Exception) -> None:
    kit = build_kit(use_session_server=version)
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    kit.engine.fail(error)
    with pytest.raises(type(error)):
        await turn.read()
    assert count_turns(kit, session_id) == 0
    assert await kit.say(session_id, [user("a")], "again") == "again"


BROKEN_REPLIES = {
    "fewer logprobs": {"logprobs": []},
    "another count": {"completion_tokens": 99},
    "another prompt": {"prompt_tokens": 1},
}


@pytest.mark.parametrize("changes", BROKEN_REPLIES.values(), ids=BROKEN_REPLIES.keys())
async def test_a_reply_that_contradicts_itself_is_refused_and_accounted_for(changes: dict[str, object]) -> None:
    kit = build_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    kit.engine.answer(text="hello", **changes)
    with pytest.raises(EngineProtocolError):
        await turn.read()
    ledger = kit.look(session_id).ledger
    assert count_turns(kit, session_id) == 0
    assert ledger.sampled > 0
    assert ledger.unaccounted == 0


@POLICIES
async def test_overlapping_requests_are_siblings_that_can_be_continued(version: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = kit.create()
    first = await kit.begin(session_id, [user("a")], seed=1)
    second = await kit.begin(session_id, [user("a")], seed=2)
    kit.engine.answer(1, text="B")
    assert await second.text() == "B"
    kit.engine.answer(text="A")
    assert await first.text() == "A"
    forest = kit.look(session_id).forest
    assert [forest.label(turn.id) for turn in forest.turns] == [Label.PARALLEL, Label.PARALLEL]
    for reply, parent in (("A", 1), ("B", 0)):
        await kit.say(session_id, [user("a"), assistant(reply), user("more")])
        assert forest.turns[-1].parent == parent


async def test_pins_win_and_what_they_override_is_recorded() -> None:
    kit = build_kit()
    session_id = kit.create(sampling_params={"temperature": 1, "max_completion_tokens": 512})
    await kit.say(session_id, [user("a")], temperature=0.2, max_tokens=32000, top_p=0.9)
    assert kit.engine.calls[0].request.sampling == {"temperature": 1, "max_tokens": 512, "top_p": 0.9}
    turn = kit.look(session_id).forest.turns[0]
    assert turn.request.sampling == {"temperature": 1, "max_tokens": 512, "top_p": 0.9}
    assert turn.completion.marks["overridden"] == {"temperature": 0.2, "max_tokens": 32000}
    assert turn.completion.marks["unpinned"] == ["top_p"]


async def test_a_budget_that_does_not_fit_is_lowered_and_said() -> None:
    kit = build_kit()
    session_id = kit.create(max_seq_len=100)
    await kit.say(session_id, [user("a")], max_tokens=4096)
    request = kit.engine.calls[0].request
    assert request.sampling["max_tokens"] == 100 - len(request.prompt_ids)
    assert kit.look(session_id).forest.turns[0].completion.marks["lowered_max_tokens_from"] == 4096


@pytest.mark.parametrize("source", ["session", "option", "engine", "checkpoint"])
async def test_a_prompt_over_the_limit_is_refused_without_an_engine_call(source: str) -> None:
    kit = build_kit(
        engine=FakeEngine(context_length=12 if source == "engine" else None),
        checkpoint_config={"max_position_embeddings": 12} if source == "checkpoint" else {},
        **({"max_seq_len": 12} if source == "option" else {}),
    )
    await kit.parts.monitor.poll()
    session_id = kit.create(**({"max_seq_len": 12} if source == "session" else {}))
    with pytest.raises(ContextLengthError, match="maximum context length is 12 tokens") as caught:
        await kit.begin(session_id, [user("many words are here, far too many of them")])
    assert caught.value.facts["limit_tokens"] == 12
    assert kit.engine.calls == []


async def test_turns_of_a_session_are_limited() -> None:
    kit = build_kit(max_session_turns=1)
    session_id = kit.create()
    await kit.say(session_id, [user("a")])
    with pytest.raises(TurnLimitError):
        await kit.begin(session_id, [user("a"), assistant("ok"), user("b")])


@POLICIES
async def test_a_turn_whose_reply_cannot_be_rendered_is_not_recorded(version: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])

    def refuse(_: object) -> bytes:
        raise TurnkeeperError("cannot be said")

    turn.waiter.expect(refuse)
    kit.engine.answer(text="hello")
    with pytest.raises(TurnkeeperError, match="cannot be said"):
        await turn.read()
    assert count_turns(kit, session_id) == 0
    assert kit.look(session_id).ledger.dropped
    assert kit.look(session_id).ledger.unaccounted == 0


async def test_a_reply_whose_calls_cannot_be_named_ends_its_turn() -> None:
    """What nobody foresaw between the engine's reply and the response reaches the client and is accounted for."""
    kit = build_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    kit.engine.answer(text="hello", message={"role": "assistant", "content": "", "tool_calls": [5]})
    async with asyncio.timeout(5):
        with pytest.raises(AttributeError):
            await turn.read()
    session = kit.look(session_id)
    assert (len(session.forest), session.in_flight) == (0, 0)
    assert session.ledger.calls == {}
    assert session.ledger.dropped == {DropReason.REFUSED_REPLY: session.ledger.sampled}
    assert await kit.say(session_id, [user("a")], "again") == "again"


async def test_large_prompts_are_rendered_in_a_thread() -> None:
    kit = build_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("word " * 2000)])
    kit.engine.answer(text="ok")
    assert await turn.text() == "ok"


async def test_counting_tokens_changes_nothing_and_equals_the_prompt() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    messages = [user("a"), assistant("first"), user("b")]
    events = list(kit.look(session_id).events)
    counted = await kit.service.count_tokens(session_id, build_request(messages))
    assert kit.look(session_id).events == events
    await kit.say(session_id, messages)
    assert counted == len(kit.engine.calls[-1].request.prompt_ids)
