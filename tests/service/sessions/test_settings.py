"""The body of ``POST /sessions``.

1. Every field may be left out or null; good values are kept.
2. An unknown key or a bad value is refused by its name, and no session is made.
3. ``on_truncated`` wins over the server's option, under both histories, and stands in the session's events.
4. temperature, top_p and top_k are pins wherever they stand; in both places they have one value.
"""

import pytest

from httpkit import running_site
from servicekit import assistant, build_kit, user
from turnkeeper.choices import HistoryKind, OnTruncated
from turnkeeper.core import fold
from turnkeeper.errors import RequestError, TruncatedTurnError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.sessions import NewSession, parse_new_session

GOOD: dict[str, tuple[JsonObject, NewSession]] = {
    "nothing": ({}, NewSession()),
    "nulls": (dict.fromkeys(NewSession.model_fields), NewSession()),
    "everything": (
        {
            "sampling_params": {"max_new_tokens": 5},
            "metadata": {"a": 1},
            "ttl_s": 60,
            "history": "tree",
            "max_seq_len": 9,
            "on_truncated": "bridge",
        },
        NewSession(
            sampling_params={"max_tokens": 5},
            metadata={"a": 1},
            ttl_s=60.0,
            history=HistoryKind.TREE,
            max_seq_len=9,
            on_truncated=OnTruncated.BRIDGE,
        ),
    ),
    "a fraction of a second": ({"ttl_s": 0.5}, NewSession(ttl_s=0.5)),
    "a trainer's sampler": (
        {"evaluation": False, "temperature": 0.8, "top_p": 0.9, "top_k": -1},
        NewSession(temperature=0.8, top_p=0.9, top_k=-1),
    ),
    "greedy evaluation": (
        {"evaluation": True, "temperature": 0},
        NewSession(temperature=0, evaluation=True),
    ),
    "nulls of a trainer": ({"evaluation": None, "temperature": None, "top_p": None, "top_k": None}, NewSession()),
    "pins of both places": (
        {"sampling_params": {"seed": 1, "top_p": 1.0}, "temperature": 1.0, "top_p": 1},
        NewSession(sampling_params={"seed": 1, "top_p": 1.0}, temperature=1.0, top_p=1),
    ),
}


@pytest.mark.parametrize(("body", "new"), GOOD.values(), ids=GOOD.keys())
def test_good_fields_are_kept(body: JsonObject, new: NewSession) -> None:
    assert parse_new_session(body) == new


BAD: dict[str, tuple[JsonObject, str]] = {
    "unknown key": ({"sampling": {}}, "^sampling is not a field .*known: sampling_params, .*on_truncated"),
    "unknown key that is null": ({"x": None}, "^x is not a field"),
    "unknown key beside a bad value": ({"ttl_s": 0, "ttl": 60}, "^ttl is not a field"),
    "unknown key beside a bad scope": ({"scopes": ["x"], "scope": []}, "^scope is not a field"),
    "unknown keys": ({"a": 1, "b": 2}, "^a is not a field"),
    "long unknown key": ({"a" * 5000: 1}, "^a{64} is not a field"),
    "the name of another spelling": ({"pins": {}}, "^pins is not a field"),
    "a key of 1000 characters": ({"k" * 1000: 1}, "^k{64} is not a field"),
    "pins as list": ({"sampling_params": []}, "sampling_params"),
    "unknown pin": ({"sampling_params": {"heat": 1}}, "^sampling_params.heat is not a sampling field"),
    "bad pin": ({"sampling_params": {"temperature": "hot"}}, "temperature"),
    "metadata as text": ({"metadata": "x"}, "metadata"),
    "ttl 0": ({"ttl_s": 0}, "ttl_s"),
    "ttl as text": ({"ttl_s": "60"}, "ttl_s"),
    "ttl true": ({"ttl_s": True}, "ttl_s"),
    "ttl nan": ({"ttl_s": float("nan")}, "ttl_s"),
    "ttl infinite": ({"ttl_s": float("inf")}, "ttl_s"),
    "ttl of 400 digits": ({"ttl_s": 10**400}, "ttl_s"),
    "history unknown": ({"history": "v2"}, "history must be 'linear' or 'tree', got 'v2'"),
    "history as list": ({"history": ["tree"]}, "history"),
    "length 0": ({"max_seq_len": 0}, "max_seq_len"),
    "length as fraction": ({"max_seq_len": 1.5}, "max_seq_len"),
    "length true": ({"max_seq_len": True}, "max_seq_len"),
    "length as text": ({"max_seq_len": "9"}, "max_seq_len"),
    "end unknown": ({"on_truncated": "open"}, "on_truncated must be 'close' or 'bridge', got 'open'"),
    "end true": ({"on_truncated": True}, "on_truncated"),
    "end as list": ({"on_truncated": ["bridge"]}, "on_truncated"),
    "evaluation as text": ({"evaluation": "yes"}, "^evaluation must be a valid boolean, got 'yes'"),
    "evaluation as number": ({"evaluation": 1}, "^evaluation must be a valid boolean"),
    "hot": ({"temperature": "hot"}, "^temperature must be a number"),
    "below 0": ({"temperature": -1}, "^temperature must be a number of at least 0"),
    "top_p above 1": ({"top_p": 1.5}, "^top_p must be a number in"),
    "top_k as fraction": ({"top_k": 0.5}, "^top_k must be a whole number"),
    "top_k true": ({"top_k": True}, "^top_k must be a whole number"),
    "another sampling field": ({"max_tokens": 5}, "^max_tokens is not a field"),
    "two values": ({"sampling_params": {"top_k": 5}, "top_k": 4}, "^one top_k is expected, got 4 and"),
}


@pytest.mark.parametrize(("body", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_field_is_refused_by_name(body: JsonObject, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        parse_new_session(body)
    known = {*(key[:64] for key in body), "temperature"}
    assert str(refused.value.facts["param"]).partition(".")[0] in known


@pytest.mark.parametrize("history", HistoryKind)
@pytest.mark.parametrize("server", [None, *OnTruncated])
@pytest.mark.parametrize("asked", [None, *OnTruncated])
async def test_a_session_says_whether_a_turn_that_was_cut_may_be_extended(
    history: HistoryKind, server: OnTruncated | None, asked: OnTruncated | None
) -> None:
    kit = build_kit(on_truncated=server)
    session_id = kit.create(history=str(history), on_truncated=asked and str(asked))
    cut = await kit.begin(session_id, [user("a")])
    kit.engine.answer(text="half a", finish_reason="length")
    await cut.read()
    default = OnTruncated.BRIDGE if history is HistoryKind.LINEAR else OnTruncated.CLOSE
    expected = asked or server or default
    session = kit.look(session_id)
    assert fold(session.events).policy == session.policy
    assert session.policy.on_truncated is expected
    messages = [user("a"), assistant("half a"), user("go on")]
    if expected is OnTruncated.CLOSE:
        with pytest.raises(TruncatedTurnError, match="on_truncated"):
            await kit.begin(session_id, messages)
    else:
        await kit.say(session_id, messages, "the rest")
        assert session.forest.turns[1].parent == 0


async def test_a_refused_body_makes_no_session() -> None:
    async with running_site() as site:
        for body in ({"on_truncated": "open"}, {"x": 1}, {"history": 3}):
            refused = await site.call("POST", "/sessions", body)
            assert (refused.status, refused.json()["code"]) == (400, "request")
            assert next(iter(body)) in refused.json()["error"]
        assert (await site.call("GET", "/sessions")).json()["sessions"] == []


def test_many_unknown_keys_cost_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def validate(*_: object) -> None:
        raise AssertionError("validation describes each of the keys, and everybody waits for it")

    monkeypatch.setattr(NewSession, "model_validate", validate)
    with pytest.raises(RequestError, match=r"^key0 is not a field"):
        parse_new_session({f"key{number}": number for number in range(500_000)})
