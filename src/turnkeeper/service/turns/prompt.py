"""A pending turn's prompt. Rendering is CPU work: what is large runs in a thread, so that small sessions go on."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.tokens import TokenIds, join_ids
from turnkeeper.core.turn import Prompt
from turnkeeper.rendering import ParentContext, Renderer, TextTooLongError
from turnkeeper.service.render_pool import run_in_pool
from turnkeeper.service.turns.budget import build_length_error

LARGE_CHARACTERS = 4_000
"""Text from which on a thread renders: about a thousand tokens, 5 ms by `tokenizers`."""

LARGE_CHARACTERS_FAST = 40_000
"""Text from which on a thread renders with the fast tokenizer, in characters: about ten thousand tokens, 0.2 ms of
work. Handing a turn over to a thread costs half a millisecond of CPU."""


_MAPPINGS = (dict, Mapping)  # a dict first: asking whether a value is a Mapping takes ten times as long
_HOLDERS = (list, tuple, dict, Mapping)


async def render_prompt(
    renderer: Renderer,
    pending: PendingTurn,
    limit_tokens: int | None = None,
    note_wait: Callable[[float], None] | None = None,
) -> Prompt:
    """Render the prompt of a pending turn, in a thread where the prompt is large.

    Args:
        renderer: renders the prompt.
        pending: the turn.
        limit_tokens: the most tokens of prompt and completion together; None for no limit.
        note_wait: takes the seconds that a large prompt waited for a thread.

    Raises:
        ContextLengthError: the prompt cannot but be over the limit, so that it was not tokenized.
        RequestError: the family or its template refuses the messages.
    """
    work = partial(render_pending, renderer, pending, limit_tokens)
    tools = pending.request.tools if pending.parent is None else ()
    limit = LARGE_CHARACTERS_FAST if renderer.tokenizer.is_fast else LARGE_CHARACTERS
    if count_characters((pending.appended, tools), limit) < limit:
        return work()
    return await run_in_pool(work, note_wait)


def render_pending(renderer: Renderer, pending: PendingTurn, limit_tokens: int | None = None) -> Prompt:
    """Render the whole prompt of a root, or what any other turn adds to its parent.

    Raises:
        ContextLengthError: the prompt cannot but be over the limit.
    """
    request, parent = pending.request, pending.parent
    held = max(0, len(pending.parent_path_ids) - renderer.max_trim)
    room = None if limit_tokens is None else max(0, limit_tokens - 1 - held)
    try:
        if parent is None:
            return renderer.render(pending.appended, request.tools, request.chat_template_kwargs, room)
        context = ParentContext(
            messages=pending.parent_messages,
            completion_ids=parent.completion.ids,
            prompt_ids=parent.prompt.ids,
            chat_template_kwargs=parent.prompt.chat_template_kwargs,
        )
        return renderer.extend(context, pending.appended, request.tools, request.chat_template_kwargs, room)
    except TextTooLongError as error:
        least = held + error.least_tokens
        raise build_length_error(f"{least} tokens or more", least, limit_tokens or 0) from error


def join_prompt(pending: PendingTurn, prompt: Prompt) -> TokenIds:
    """Join the whole prompt, shape [P]: the parent's path less the trim, then what the turn adds."""
    parent_ids = pending.parent_path_ids
    return join_ids([parent_ids[: len(parent_ids) - prompt.trim], prompt.ids])


def count_characters(value: Any, enough: int) -> int:
    """About how much text messages or tools hold; what is beyond enough is not counted."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, _HOLDERS):
        return 4 if value else 0
    inner = cast("Iterable[Any]", value.values() if isinstance(value, _MAPPINGS) else value)
    counted = 0
    for item in inner:
        counted += 1 + count_characters(item, enough - counted)
        if counted >= enough:
            break
    return counted
