"""The bytes of single tokens.

1. A token that is whole text has the bytes of its text, whatever the vocabulary.
2. A token that is part of a character has its own bytes; those of a character's tokens are the character's.
3. A token that is written in no known way has the bytes of what it decodes to.
"""

import pytest

from servicekit import get_renderer
from turnkeeper.rendering.tokenization.spelling import spell_token

TEXTS = ("plain", " a space", "tab\tand\nline", "é", "日本", "🙂", "👩‍👩‍👧", "ı\u0301", "\x00", "a\u00ad b", "ﷺ", "𝕏")


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_its_tokens_are_the_text(text: str) -> None:
    tokenizer = get_renderer().tokenizer
    ids = tokenizer.encode(text).tolist()
    assert b"".join(tokenizer.spell(token_id) for token_id in ids) == text.encode()


def test_control_tokens_are_spelled_as_they_are_decoded() -> None:
    tokenizer = get_renderer().tokenizer
    assert tokenizer.spell(tokenizer.get_id("<|im_end|>")) == b"<|im_end|>"


@pytest.mark.parametrize(
    ("token", "spelled"),
    [
        ("<0xF0>", b"\xf0"),
        ("<0x9f>", b"\x9f"),
        ("ðŁ", b"\xf0\x9f"),
        ("Ļ", b"\x99"),
        ("Ġâ", b" \xe2"),
        ("Ċ", b"\n"),
        ("Ā", b"\x00"),
        ("\u2581日", "\ufffd".encode()),
        ("<0xZZ>\u2581", "\ufffd".encode()),
    ],
)
def test_parts_of_characters_are_spelled_by_their_vocabulary(token: str, spelled: bytes) -> None:
    assert spell_token(token, "\ufffd") == spelled
