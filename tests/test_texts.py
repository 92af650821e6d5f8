"""Plain texts.

1. The common prefix of two texts ends at their first difference, or with the shorter one.
2. A shortened text fits its limit, and is the text itself where that fits.
3. A misspelt name is taken for the nearest one, or for the only one with all of its parts; else for none.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.texts import count_common_prefix, guess_name, shorten

TEXTS = st.text("ab\u00e9\U0001f600", max_size=40)


@given(TEXTS, TEXTS, TEXTS)
def test_the_common_prefix_ends_at_the_first_difference(shared: str, left: str, right: str) -> None:
    first, second = shared + left, shared + right
    size = count_common_prefix(first, second)
    assert first[:size] == second[:size]
    assert size == min(len(first), len(second)) or first[size] != second[size]


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("", 5, ""),
        ("abcde", 5, "abcde"),
        ("abcdef", 5, "ab..."),
        ("x" * 60, 60, "x" * 60),
        ("x" * 61, 60, "x" * 57 + "..."),
    ],
)
def test_a_long_text_is_cut_to_its_limit(text: str, limit: int, shown: str) -> None:
    assert shorten(text, limit) == shown
    assert len(shown) <= limit


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("gate-timeot", "gate-timeout"),
        ("gatetimeout", "gate-timeout"),
        ("instance", "server-instance-id"),
        ("session", None),
        ("xyzzy", None),
        ("", None),
    ],
)
def test_a_name_is_guessed_by_its_spelling_or_its_parts(word: str, name: str | None) -> None:
    names = ["gate-timeout", "server-instance-id", "session-server-port", "max-session-turns"]
    assert guess_name(word, names) == name
