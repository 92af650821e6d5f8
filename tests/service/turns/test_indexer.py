"""The indexer's rows of a conversation in memory.

1. What the turns of a session hold of them grows with the conversation, not with its square, and the account knows it.
2. A payload with another row in place of one held is kept whole, and samples are that of the last turn.
"""

import numpy as np
import pybase64
import pytest

from channelkit import INDEXER, indexer_of_turn
from servicekit import Kit, assistant, build_kit, user
from turnkeeper.channels.indexer import IndexerPayload
from turnkeeper.core import Session
from turnkeeper.samples import decode_samples
from turnkeeper.service.sessions.footprint import Part, measure_session

LAYERS, TOPK = 2, 4
ROW_BYTES = LAYERS * TOPK * 4


async def talk(kit: Kit, session_id: str, turns: int, *, salts: dict[int, int] | None = None) -> list[np.ndarray]:
    """So many turns, each with a payload in which row i says i, plus the turn's salt in the first row."""
    messages, payloads = [user("hi")], []
    for number in range(turns):
        turn = await kit.begin(session_id, messages)
        (call,) = kit.engine.waiting
        reply = f"reply {number}"
        rows = len(call.request.prompt_ids) + len(kit.engine.build(call, text=reply).ids) - 1
        payload = np.broadcast_to(np.arange(rows, dtype="<i4")[:, None, None], (rows, LAYERS, TOPK)).copy()
        payload[0] += (salts or {}).get(number, 0)
        payloads.append(payload)
        text = pybase64.b64encode(payload.tobytes())
        found = IndexerPayload(rows=text, layers=LAYERS)
        kit.engine.answer(text=reply, payloads={INDEXER: found})
        await turn.read()
        messages = [*messages, assistant(reply), user("go on")]
    return payloads


def count_bytes(session: Session) -> int:
    """What the arrays of the turns take, with whatever they are views of."""
    arrays = [indexer_of_turn(turn.completion) for turn in session.forest.turns]
    return sum(
        max(array.nbytes, 0 if array.base is None else array.base.nbytes) for array in arrays if array is not None
    )


@pytest.mark.parametrize("turns", [1, 5, 40])
async def test_each_row_is_held_once(turns: int) -> None:
    kit = build_kit(use_rollout_indexer_replay=True)
    session_id = kit.create()
    payloads = await talk(kit, session_id, turns)
    session = kit.look(session_id)
    assert count_bytes(session) == (session.forest.turns[-1].path_tokens - 1) * ROW_BYTES == payloads[-1].nbytes
    entry = kit.find_entry(session_id)
    assert entry.held[Part.ROWS] == measure_session(entry)[Part.ROWS] == payloads[-1].nbytes
    (sample,) = decode_samples((await kit.service.collect(session_id)).to_bytes()).samples
    assert sample.rollout_indexer_topk is not None
    assert sample.rollout_indexer_topk.tobytes() == payloads[-1].tobytes()


async def test_a_payload_with_another_row_in_place_of_one_held_is_kept_whole() -> None:
    kit = build_kit(use_rollout_indexer_replay=True)
    session_id = kit.create()
    payloads = await talk(kit, session_id, 4, salts={2: 9, 3: 9})
    kept = [indexer_of_turn(turn.completion) for turn in kit.look(session_id).forest.turns]
    sizes = [len(payload) for payload in payloads]
    assert [len(rows) for rows in kept if rows is not None] == [
        sizes[0],
        sizes[1] - sizes[0],
        sizes[2],
        sizes[3] - sizes[2],
    ]
    (sample,) = decode_samples((await kit.service.collect(session_id)).to_bytes()).samples
    assert sample.rollout_indexer_topk is not None
    assert sample.rollout_indexer_topk.tobytes() == payloads[-1].tobytes()
