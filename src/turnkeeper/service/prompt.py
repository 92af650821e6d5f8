"""A pending turn's prompt. Rendering is CPU work: what is large runs in a thread, so that small sessions go on."""

import asyncio
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.tokens import TokenIds, join_ids
from turnkeeper.core.turn import Prompt
from turnkeeper.jsontypes import Message
from turnkeeper.rendering import ParentContext, Renderer

LARGE_CHARACTERS = 4_000
"""Text from which on a thread renders: about a thousand tokens, 5 ms by `tokenizers`."""

LARGE_CHARACTERS_FAST = 40_000
"""The same for the fast tokenizer: 0.2 ms. Handing a turn over costs half a millisecond of CPU."""

_POOL = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="render")
"""Few threads: the fast tokenizer keeps a cache for each, 17 MB at first and up to 180 MB; and no more than can run."""


async def render_prompt(renderer: Renderer, pending: PendingTurn) -> Prompt:
    """The prompt, in a thread where it is large.

    Raises:
        RequestError: the family or its template refuses the messages.
    """
    work = partial(render_pending, renderer, pending)
    tools = len(str(pending.request.tools)) if pending.parent is None else 0
    limit = LARGE_CHARACTERS_FAST if renderer.tokenizer.is_fast else LARGE_CHARACTERS
    if tools + count_characters(pending.appended) < limit:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_POOL, work)


def render_pending(renderer: Renderer, pending: PendingTurn) -> Prompt:
    """The prompt of a root is rendered whole, that of any other turn by what it adds."""
    request, parent = pending.request, pending.parent
    if parent is None:
        return renderer.render(pending.appended, request.tools, request.template_kwargs)
    context = ParentContext(
        messages=pending.parent_messages,
        completion_ids=parent.completion.ids,
        prompt_ids=parent.prompt.ids,
        template_kwargs=parent.prompt.template_kwargs,
    )
    return renderer.extend(context, pending.appended, request.tools, request.template_kwargs)


def join_prompt(pending: PendingTurn, prompt: Prompt) -> TokenIds:
    """Shape [P]: the whole prompt: the parent's path less the trim, then what the turn adds."""
    parent_ids = pending.parent_path_ids
    return join_ids([parent_ids[: len(parent_ids) - prompt.trim], prompt.ids])


def count_characters(messages: Iterable[Message]) -> int:
    """About how much text the messages hold."""
    return sum(_count(value) for message in messages for value in message.values())


def _count(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(str(value)) if value else 0
