"""What must hold of a server after whatever was sent to it."""

from httpkit import Reply, Site
from turnkeeper.samples import SampleBatch, decode_samples
from turnkeeper.service.sessions import SessionEntry


def get_entry(site: Site, session: str) -> SessionEntry:
    """What the server holds of a session."""
    return site.find_entry(session.removeprefix("/sessions/"))


async def check_sound(site: Site, session: str, *, turns: int) -> SampleBatch:
    """The session shows so many turns, is at rest, and its samples account for every token; its samples."""
    entry = get_entry(site, session)
    assert len(entry.session.forest) == turns
    assert not entry.in_flight
    assert (entry.session.in_flight, entry.busy) == (0, 0)
    shown = await site.call("GET", session)
    assert shown.status == 200, shown.body
    assert shown.json()["session_id"] == entry.id
    collected = await site.call("POST", f"{session}/samples")
    assert collected.status == 200, collected.body
    batch = decode_samples(collected.body)
    accounting = batch.session_metadata["turnkeeper"]["accounting"]
    kept = sum(len(turn.completion.ids) for turn in entry.session.forest.turns)
    masked, dropped = (sum(accounting[term].values()) for term in ("masked", "dropped"))
    assert accounting["sampled"] == accounting["trainable"] + masked + dropped
    assert accounting["sampled"] == kept + sum(entry.session.ledger.dropped.values())
    return batch


def check_error(reply: Reply, status: int, code: str, *, is_final: bool = True) -> None:
    """An error in the shape of chat completions, with its word on retrying."""
    assert (reply.status, reply.json()["error"]["code"]) == (status, code), reply.body
    assert set(reply.json()["error"]) == {"message", "type", "code", "param"}
    assert (reply.headers.get("x-should-retry") == "false") == is_final
