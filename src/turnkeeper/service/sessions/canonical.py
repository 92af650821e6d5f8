"""Turns whose sampled ids are not those that the tokenizer makes of their text: counted, and said in samples.

A turn never changes, so each is looked at once, when its session is first collected, and what is found is kept with
the session. It is CPU work for threads: in one of those that render where the fast tokenizer serves, which keeps a
cache for each thread, and in any other with `tokenizers`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from turnkeeper.core import Turn
from turnkeeper.core.tokens import TokenIds
from turnkeeper.ids import TurnId
from turnkeeper.rendering import Tokenizer
from turnkeeper.rendering.tokenization import find_noncanonical, is_respelled
from turnkeeper.service.render_pool import run_in_pool
from turnkeeper.service.sessions.entry import SessionEntry

logger = logging.getLogger("turnkeeper.canonical")


class Texts:
    """The texts of ids, each decoded once: one collect looks at a completion's text and then writes it."""

    def __init__(self, decode: Callable[[TokenIds], str]) -> None:
        self._decode = decode
        self._known: dict[bytes, str] = {}

    def decode(self, ids: TokenIds) -> str:
        """Return the text of ids; any thread may ask."""
        key = ids.tobytes()
        text = self._known.get(key)
        if text is None:
            text = self._known[key] = self._decode(ids)
        return text


async def note_noncanonical_turns(tokenizer: Tokenizer, entry: SessionEntry, texts: Texts) -> None:
    """Look at the turns that were committed since the last time, until there are none."""
    while turns := entry.session.forest.turns[entry.split_turns :]:
        entry.note_noncanonical(turns, await _find(tokenizer, entry, turns, texts))


async def _find(tokenizer: Tokenizer, entry: SessionEntry, turns: Sequence[Turn], texts: Texts) -> dict[TurnId, int]:
    try:
        if tokenizer.is_fast:
            turns = await run_in_pool(partial(_find_respelled, tokenizer, turns, texts))
        return await asyncio.to_thread(_find_places, tokenizer, turns) if turns else {}
    except Exception:
        logger.exception("cannot tell which ids of session %s are canonical", entry.id)
        return {}


def _find_respelled(tokenizer: Tokenizer, turns: Sequence[Turn], texts: Texts) -> tuple[Turn, ...]:
    asked = ((turn, turn.completion.ids) for turn in turns)
    return tuple(turn for turn, ids in asked if is_respelled(tokenizer, ids, texts.decode(ids)))


def _find_places(tokenizer: Tokenizer, turns: Sequence[Turn]) -> dict[TurnId, int]:
    places = ((turn.id, find_noncanonical(tokenizer, turn.completion.ids)) for turn in turns)
    return {turn_id: place for turn_id, place in places if place is not None}
