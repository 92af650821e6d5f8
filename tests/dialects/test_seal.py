"""Signatures and sealed reasoning.

1. What this server gave is known again, for that text only.
2. Anything else is no error.
"""

import pytest
from hypothesis import given

from dialectkit import TEXTS
from turnkeeper.dialects.seal import is_signed, open_reasoning, seal_reasoning, sign_thinking


@given(TEXTS, TEXTS)
def test_a_signature_belongs_to_one_text(text: str, other: str) -> None:
    assert is_signed(text, sign_thinking(text))
    assert is_signed(other, sign_thinking(text)) == (other == text)


@given(TEXTS)
def test_sealed_reasoning_opens_to_itself(text: str) -> None:
    assert open_reasoning(seal_reasoning(text)) == text


def test_half_a_surrogate_pair_survives() -> None:
    assert open_reasoning(seal_reasoning("\ud83d")) == "\ud83d"


@pytest.mark.parametrize(
    "sealed",
    [
        "",
        "ENC0",
        "gAAAAAB",
        "turnkeeper.",
        "turnkeeper.ab.!!",
        seal_reasoning("a")[:-4] + "Yg==",
        seal_reasoning("abc")[:-1],
    ],
)
def test_what_others_sealed_does_not_open(sealed: str) -> None:
    assert open_reasoning(sealed) is None
