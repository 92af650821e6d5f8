"""Where the stored ids of a path say something else than its messages: ``tito_session_mismatch``.

A path never changes, so each comparison is made once and kept with the session. It is CPU work for a thread.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import Renderer
from turnkeeper.service.entry import SessionEntry

logger = logging.getLogger("turnkeeper.mismatch")


async def compare_paths(
    renderer: Renderer, entry: SessionEntry, leaves: Iterable[TurnId]
) -> dict[TurnId, list[JsonObject]]:
    """The entries of each path, by its last turn; a path that cannot be compared is left out."""
    found: dict[TurnId, list[JsonObject]] = {}
    for leaf in leaves:
        if leaf not in entry.mismatches:
            entry.note_mismatches(leaf, await _compare(renderer, entry, leaf))
        entries = entry.mismatches[leaf]
        if entries is not None:
            found[leaf] = entries
    return found


async def _compare(renderer: Renderer, entry: SessionEntry, leaf: TurnId) -> list[JsonObject] | None:
    forest = entry.session.forest
    root = forest.path(leaf)[0].request
    work = partial(
        renderer.compare, forest.engine_messages(leaf), root.tools, root.chat_template_kwargs, forest.path_ids(leaf)
    )
    try:
        return [mismatch.to_json() for mismatch in await asyncio.to_thread(work)]
    except Exception:
        logger.exception("cannot compare the path of turn %s of session %s", leaf, entry.id)
        return None
