"""``tito_session_mismatch``.

1. It is empty where the ids say what the messages say, names what differs, and is absent where nobody knows.
2. GET and samples say the same; a path is compared once.
"""

import json

import pytest

from servicekit import Kit, assistant, build_kit, get_renderer, user
from turnkeeper.samples import decode_samples


async def show(kit: Kit, session_id: str) -> dict[str, object]:
    return json.loads(await kit.service.describe(session_id))["metadata"]


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_ids_that_say_what_the_messages_say_have_no_mismatch(version: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")
    assert (await show(kit, session_id))["tito_session_mismatch"] == []
    batch = decode_samples((await kit.service.collect(session_id)).to_bytes())
    assert batch.session_metadata["tito_session_mismatch"] == []
    assert ("tito_session_mismatch" in batch.samples[0].metadata) == (version == "v2")


async def test_a_reply_that_the_engine_parsed_otherwise_is_named() -> None:
    kit = build_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    kit.engine.answer(text="said", message=assistant("heard"))
    await turn.read()
    (entry,) = (await show(kit, session_id))["tito_session_mismatch"]
    assert entry["type"] == "assistant_text"
    assert set(entry) == {"type", "segment_index", "expected_text", "actual_text", "detail"}


async def test_a_session_without_turns_has_none() -> None:
    kit = build_kit()
    assert "tito_session_mismatch" not in await show(kit, kit.create())


async def test_a_path_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    first = await show(kit, session_id)
    monkeypatch.setattr(type(get_renderer()), "compare", None)
    assert (await show(kit, session_id)) == first


async def test_a_path_that_cannot_be_compared_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    kit = build_kit()
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    monkeypatch.setattr(type(get_renderer()), "compare", fail)
    assert "tito_session_mismatch" not in await show(kit, session_id)
