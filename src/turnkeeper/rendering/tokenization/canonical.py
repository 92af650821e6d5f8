r"""The canonical split of a text, which is the one that the tokenizer makes of it, and sampled ids that are another.

::

    canonical    Hel|lo  world      what `encode` gives for "Hello world"
    sampled      H|el|lo  world     the same text; no prompt would ever hold it in these ids

A policy may sample any split. Its tokens train as they were sampled, so nothing is wrong with such a completion, but
whatever makes ids of its text anew has other ids.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from turnkeeper.core.tokens import NO_TOKENS, TokenIds, count_common_prefix, join_ids
from turnkeeper.rendering.tokenization.encoder import Encoder
from turnkeeper.rendering.tokenization.tokenizer import BROKEN, Tokenizer

_ANCHORS = ("\n", ":")
"""Texts behind which a piece of a completion is encoded, where it matters what stands before it. Two of them, since
a piece may begin with something that merges with one."""

_CHARACTER_BYTES = 4
"""The most bytes of a character: one that is cut has fewer, and fewer tokens."""


def is_respelled(tokenizer: Tokenizer, ids: TokenIds, text: str) -> bool:
    """Return True when the encoder in use makes other ids of a completion's text: a check that costs little where a
    fast encoder serves, after which `find_noncanonical` decides.

    Args:
        tokenizer: the tokenizer of the checkpoint.
        ids: shape [C]; sampled ids, control tokens included.
        text: what they decode to.
    """
    return not np.array_equal(tokenizer.encoder.encode(text) if text else NO_TOKENS, ids)


def find_noncanonical(tokenizer: Tokenizer, ids: TokenIds) -> int | None:
    """Find the first id of a completion that `tokenizers` does not make of the completion's text.

    The part of a last character that a cut left over says nothing about a split, and does not count. A tokenizer that
    writes spaces in another way at the beginning of a text has several canonical splits: each of them will do.

    Args:
        tokenizer: the tokenizer of the checkpoint.
        ids: shape [C]; sampled ids, control tokens included.

    Returns:
        The place of the id; None where the ids are canonical.
    """
    encoder = tokenizer.huggingface_encoder
    place = _count_equal(tokenizer, encoder, ids)
    if place is None:
        return None
    whole = _drop_cut_character(tokenizer, ids)
    if len(whole) < len(ids):
        place = _count_equal(tokenizer, encoder, whole)
    return _find_in_place(tokenizer, encoder, whole) if tokenizer.moves_spaces else place


def _find_in_place(tokenizer: Tokenizer, encoder: Encoder, ids: TokenIds) -> int | None:
    """Find the first id that is canonical neither at the beginning of a text nor inside one."""
    anchors = [NO_TOKENS, *(encoder.encode(anchor) for anchor in _ANCHORS)]
    for start, piece in _cut_at_markers(tokenizer, ids):
        equal = [(_count_equal(tokenizer, encoder, join_ids([anchor, piece])), len(anchor)) for anchor in anchors]
        places = [max(0, count - before) for count, before in equal if count is not None]
        if len(places) == len(anchors):
            return start + max(places)
    return None


def _count_equal(tokenizer: Tokenizer, encoder: Encoder, ids: TokenIds) -> int | None:
    """Count the leading ids that the encoder makes of the text of all; None where it makes them all, and no more."""
    text = tokenizer.decode(ids)
    canonical = encoder.encode(text) if text else NO_TOKENS
    return None if np.array_equal(canonical, ids) else min(count_common_prefix(canonical, ids), len(ids) - 1)


def _drop_cut_character(tokenizer: Tokenizer, ids: TokenIds) -> TokenIds:
    """Leave out the ids of a last character that is not complete."""
    for count in range(min(_CHARACTER_BYTES, len(ids) + 1)):
        kept = ids[: len(ids) - count]
        if not tokenizer.decode(kept).endswith(BROKEN):
            return kept
    return ids


def _cut_at_markers(tokenizer: Tokenizer, ids: TokenIds) -> Iterator[tuple[int, TokenIds]]:
    """Yield the ids between added tokens, each run with the place of its first id."""
    markers = np.fromiter(tokenizer.markers, dtype=np.int32, count=len(tokenizer.markers))
    places = np.flatnonzero(np.isin(ids, markers)).tolist()
    for before, after in pairwise([-1, *places, len(ids)]):
        if after > before + 1:
            yield before + 1, ids[before + 1 : after]
