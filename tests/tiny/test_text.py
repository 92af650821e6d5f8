"""Tokens to text.

1. Joined pieces are the tokenizer's own decoding, whatever bytes the tokens hold; half a character waits.
2. A stop text is found in the token that completes it; its beginning is never given out.
3. Special tokens leave text only when asked for.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from tiny.builders import TOKENIZER, VOCABULARY
from turnkeeper.tiny.scheduler import OutputText

tokens = st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=30)


def _output(stop: tuple[str, ...] = (), *, skip_special: bool = True) -> OutputText:
    return OutputText(VOCABULARY, stop=stop, skip_special=skip_special)


@settings(max_examples=100, deadline=None)
@given(ids=tokens, skip_special=st.booleans())
def test_joined_pieces_are_the_tokenizers_decoding(ids: list[int], skip_special: bool) -> None:
    output = _output(skip_special=skip_special)
    pieces = []
    for token in ids:
        assert output.push(token) is None
        pieces.append(output.take())
    output.finish()
    pieces.append(output.take())
    assert "".join(pieces) == output.text == TOKENIZER.decode(ids, skip_special_tokens=skip_special)


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=20))
def test_no_piece_ends_in_half_a_character(text: str) -> None:
    output = _output()
    pieces = []
    for token in TOKENIZER.encode(text, add_special_tokens=False).ids:
        output.push(token)
        pieces.append(output.take())
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=100, deadline=None)
@given(text=st.text("ab", max_size=12), stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_stop_text_is_found_by_the_token_that_completes_it(text: str, stop: list[str]) -> None:
    output = _output(tuple(stop))
    given_out = ""
    for end, character in enumerate(text, 1):
        found = output.push(TOKENIZER.token_to_id(character))
        expected = [s for s in stop if text[:end].endswith(s)]
        assert (found in expected) if expected else found is None
        if found is not None:
            output.cut()
            given_out += output.take()
            assert given_out == output.text == text[: end - max(len(s) for s in expected)]
            return
        given_out += output.take()
    output.finish()
    assert given_out + output.take() == text
