"""Text that is handed on while a reply is generated.

1. Where ids are streamed and nothing is taken back later, text goes out as it comes, thinking apart.
2. Whoever joins later gets all of it; a stop string, or a turn that may be restarted, holds it back.
3. What was said is what the finished reply begins with, or the turn is not recorded.
"""

import pytest

from servicekit import Kit, build_kit, user
from turnkeeper.dialects import CHAT, StreamStart
from turnkeeper.errors import EngineProtocolError
from turnkeeper.service.turns import TextDelta


def build_streaming_kit() -> Kit:
    return build_kit(on_abort="resume")


async def test_text_goes_out_as_it_comes() -> None:
    kit = build_streaming_kit()
    turn = await kit.begin(kit.create(), [user("a")], stream=True)
    kit.engine.calls[0].stream("Hel")
    kit.engine.calls[0].stream("lo")
    assert turn.waiter.take_text() == TextDelta(content="Hello")
    assert not turn.waiter.take_text()
    kit.engine.calls[0].stream(" you")
    assert turn.waiter.take_text() == TextDelta(content=" you")


async def test_thinking_goes_out_apart() -> None:
    kit = build_streaming_kit()
    turn = await kit.begin(kit.create(), [user("a")], stream=True)
    kit.engine.calls[0].stream("<think>why</think>because")
    text = turn.waiter.take_text()
    assert (text.reasoning, text.content) == ("why", "because")


async def test_whoever_joins_later_gets_all_of_it() -> None:
    kit = build_streaming_kit()
    session_id = kit.create()
    first = await kit.begin(session_id, [user("a")], stream=True)
    kit.engine.calls[0].stream("Hello")
    assert first.waiter.take_text()
    second = await kit.begin(session_id, [user("a")], stream=True, retry=1)
    assert second.waiter.take_text() == TextDelta(content="Hello")


@pytest.mark.parametrize(
    ("options", "fields"),
    [({"on_abort": "restart"}, {"stream": True}), ({}, {"stream": True, "stop": "x"}), ({}, {"stream": False})],
    ids=["may be restarted", "stop string", "not a stream"],
)
async def test_text_is_held_back_where_it_could_be_taken_back(
    options: dict[str, str], fields: dict[str, object]
) -> None:
    kit = build_kit(**{"on_abort": "resume", **options})
    await kit.begin(kit.create(), [user("a")], **fields)
    assert kit.engine.calls[0].on_ids is None


@pytest.mark.parametrize(("reply", "is_recorded"), [("Hello you", True), ("Goodbye", False)])
async def test_a_finished_reply_begins_with_what_was_said(reply: str, is_recorded: bool) -> None:
    kit = build_streaming_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")], stream=True)
    stream = CHAT.parse_request({"messages": [user("a")], "stream": True}, kit.context).open_stream(
        StreamStart(response_id=turn.waiter.response_id)
    )
    turn.waiter.expect(stream.finish)
    kit.engine.calls[0].stream("Hello")
    text = turn.waiter.take_text()
    stream.extend(reasoning=text.reasoning, content=text.content)
    kit.engine.answer(text=reply)
    if is_recorded:
        assert b" you" in (await turn.waiting)
    else:
        with pytest.raises(EngineProtocolError, match="does not begin"):
            await turn.waiting
    assert len(kit.look(session_id).forest) == is_recorded
    assert kit.look(session_id).ledger.sampled > 0
