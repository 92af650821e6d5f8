"""The body of ``POST /sessions``.

1. Every field may be left out or null; good values are kept.
2. An unknown key or a bad value is refused by its name.
"""

import pytest

from turnkeeper.choices import HistoryKind
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.settings import NewSession, parse_new_session

GOOD: dict[str, tuple[JsonObject, NewSession]] = {
    "nothing": ({}, NewSession()),
    "nulls": ({"ttl_s": None, "history": None, "max_seq_len": None, "sampling_params": None}, NewSession()),
    "everything": (
        {
            "sampling_params": {"max_new_tokens": 5},
            "metadata": {"a": 1},
            "ttl_s": 60,
            "history": "tree",
            "max_seq_len": 9,
        },
        NewSession(pins={"max_tokens": 5}, metadata={"a": 1}, ttl_s=60.0, history=HistoryKind.TREE, max_seq_len=9),
    ),
}


@pytest.mark.parametrize(("body", "new"), GOOD.values(), ids=GOOD.keys())
def test_good_fields_are_kept(body: JsonObject, new: NewSession) -> None:
    assert parse_new_session(body) == new


BAD: dict[str, tuple[JsonObject, str]] = {
    "unknown key": ({"sampling": {}}, "^sampling is not a field"),
    "pins as list": ({"sampling_params": []}, "sampling_params"),
    "bad pin": ({"sampling_params": {"temperature": "hot"}}, "temperature"),
    "metadata as text": ({"metadata": "x"}, "metadata"),
    "ttl 0": ({"ttl_s": 0}, "ttl_s"),
    "ttl as text": ({"ttl_s": "60"}, "ttl_s"),
    "ttl true": ({"ttl_s": True}, "ttl_s"),
    "history unknown": ({"history": "v2"}, "history must be linear or tree"),
    "history as list": ({"history": ["tree"]}, "history"),
    "length 0": ({"max_seq_len": 0}, "max_seq_len"),
    "length as fraction": ({"max_seq_len": 1.5}, "max_seq_len"),
    "length true": ({"max_seq_len": True}, "max_seq_len"),
}


@pytest.mark.parametrize(("body", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_field_is_refused_by_name(body: JsonObject, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        parse_new_session(body)
