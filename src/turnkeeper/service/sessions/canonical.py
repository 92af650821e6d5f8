"""Turns whose sampled ids are not those that the tokenizer makes of their text: counted, and said in samples.

A turn never changes, so each is looked at once, when its session is first collected, and what is found is kept with
the session. It is CPU work for threads: in one of those that render where the fast tokenizer serves, which keeps a
cache for each thread, and in any other with `tokenizers`.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from turnkeeper.core import Turn
from turnkeeper.ids import TurnId
from turnkeeper.rendering import Tokenizer
from turnkeeper.rendering.tokenization import find_noncanonical, is_respelled
from turnkeeper.service.render_pool import run_in_pool
from turnkeeper.service.sessions.entry import SessionEntry

logger = logging.getLogger("turnkeeper.canonical")


async def note_noncanonical_turns(tokenizer: Tokenizer, entry: SessionEntry) -> None:
    """Look at the turns that were committed since the last time, until there are none."""
    while turns := entry.session.forest.turns[entry.split_turns :]:
        entry.note_noncanonical(turns, await _find(tokenizer, entry, turns))


async def _find(tokenizer: Tokenizer, entry: SessionEntry, turns: Sequence[Turn]) -> dict[TurnId, int]:
    try:
        if tokenizer.is_fast:
            turns = await run_in_pool(partial(_find_respelled, tokenizer, turns))
        return await asyncio.to_thread(_find_places, tokenizer, turns) if turns else {}
    except Exception:
        logger.exception("cannot tell which ids of session %s are canonical", entry.id)
        return {}


def _find_respelled(tokenizer: Tokenizer, turns: Sequence[Turn]) -> tuple[Turn, ...]:
    return tuple(turn for turn in turns if is_respelled(tokenizer, turn.completion.ids))


def _find_places(tokenizer: Tokenizer, turns: Sequence[Turn]) -> dict[TurnId, int]:
    places = ((turn.id, find_noncanonical(tokenizer, turn.completion.ids)) for turn in turns)
    return {turn_id: place for turn_id, place in places if place is not None}
