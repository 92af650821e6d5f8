"""The checks that a turn must pass before it is recorded: the prefix, the trim, the side channels."""

from turnkeeper.channels import CHANNELS
from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.turn import Completion, Prompt
from turnkeeper.errors import TokenIntegrityError

MAX_TRIM = 1
"""The most ids that a prompt leaves out: one stop token, which the marker of the next turn replaces."""


def check_turn(pending: PendingTurn, prompt: Prompt, completion: Completion) -> None:
    """Check that a prompt continues its parent's path, and that the items of side channels fit what the turn adds.

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
    for name, items in completion.channels.items():
        CHANNELS[name].check_added(
            items,
            None if pending.parent is None else pending.parent.completion.channels.get(name),
            parent_tokens=parent_tokens,
            path_tokens=path_tokens,
        )
