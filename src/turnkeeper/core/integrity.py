"""The checks that a turn must pass before it is recorded: the prefix, the trim, the rows."""

from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.turn import Completion, Prompt
from turnkeeper.errors import TokenIntegrityError

MAX_TRIM = 1
"""The most ids that a prompt leaves out: one stop token, which the marker of the next turn replaces."""


def check_turn(pending: PendingTurn, prompt: Prompt, completion: Completion) -> None:
    """Check that a prompt continues its parent's path, and that the rows cover what the turn adds, or its whole path.

    Raises:
        TokenIntegrityError: it does not; nothing may be recorded.
    """
    parent_tokens = len(pending.parent_path_ids)
    largest = min(MAX_TRIM, parent_tokens)
    if not 0 <= prompt.trim <= largest:
        raise TokenIntegrityError(
            f"a prompt leaves out 0..{largest} ids of its parent's path, this one {prompt.trim}",
            index=parent_tokens,
            expected=largest,
            found=prompt.trim,
        )
    path_tokens = parent_tokens - prompt.trim + len(prompt.ids) + len(completion.ids)
    if pending.parent is None and not len(prompt.ids):
        raise TokenIntegrityError("the prompt of a root is empty", index=0, expected=1, found=0)
    _check_rows(completion, parent_tokens, path_tokens)
    holds_indexer = pending.parent is not None and pending.parent.completion.indexer_rows is not None
    _check_indexer(completion, parent_tokens if holds_indexer else 0, path_tokens)


def _check_rows(completion: Completion, parent_tokens: int, path_tokens: int) -> None:
    expected = path_tokens - 1 - max(0, parent_tokens - 1)
    whole = path_tokens - 1
    if completion.rows is not None and len(completion.rows) not in (expected, whole):
        raise TokenIntegrityError(
            f"a turn that grows a path of {parent_tokens} tokens to {path_tokens} adds {expected} rows "
            f"(all of its path: {whole}), not {len(completion.rows)}",
            index=max(0, parent_tokens - 1),
            expected=expected,
            found=len(completion.rows),
        )


def _check_indexer(completion: Completion, held_tokens: int, path_tokens: int) -> None:
    added = path_tokens - 1 - max(0, held_tokens - 1)
    whole = path_tokens - 1
    if completion.indexer_rows is not None and len(completion.indexer_rows) not in (added, whole):
        raise TokenIntegrityError(
            f"an indexer payload for {path_tokens} tokens has {whole} rows, not {len(completion.indexer_rows)}",
            index=0,
            expected=whole,
            found=len(completion.indexer_rows),
        )
