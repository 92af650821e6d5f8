"""Signatures and sealed reasoning.

1. What this server gave is known again, for that text only.
2. Anything else is no error.
3. A signature comes through clients that read it as base64 and write its bytes anew, with either alphabet or without
   padding.
"""

import base64
from collections.abc import Callable

import pytest
from hypothesis import given

from dialectkit import TEXTS
from turnkeeper.dialects.opaque_reasoning import decode_reasoning, encode_reasoning, is_signed, sign_thinking


@given(TEXTS, TEXTS)
def test_a_signature_belongs_to_one_text(text: str, other: str) -> None:
    assert is_signed(text, sign_thinking(text))
    assert is_signed(other, sign_thinking(text)) == (other == text)


RECODED: dict[str, Callable[[str], str]] = {
    "its bytes": lambda text: base64.b64encode(base64.b64decode(text, validate=True)).decode(),
    "through the alphabet of URLs": lambda text: base64.b64encode(
        base64.urlsafe_b64decode(text.replace("+", "-").replace("/", "_"))
    ).decode(),
    "without padding": lambda text: text.rstrip("="),
}


@pytest.mark.parametrize("recode", RECODED.values(), ids=RECODED.keys())
@given(text=TEXTS)
def test_a_signature_survives_being_written_anew(recode: Callable[[str], str], text: str) -> None:
    assert is_signed(text, recode(sign_thinking(text)))


@given(TEXTS)
def test_sealed_reasoning_opens_to_itself(text: str) -> None:
    assert decode_reasoning(encode_reasoning(text)) == text


def test_half_a_surrogate_pair_survives() -> None:
    assert decode_reasoning(encode_reasoning("\ud83d")) == "\ud83d"


@pytest.mark.parametrize(
    "sealed",
    [
        "",
        "ENC0",
        "gAAAAAB",
        "turnkeeper.",
        "turnkeeper.ab.!!",
        encode_reasoning("a")[:-4] + "Yg==",
        encode_reasoning("abc")[:-1],
    ],
)
def test_what_others_sealed_does_not_open(sealed: str) -> None:
    assert decode_reasoning(sealed) is None
