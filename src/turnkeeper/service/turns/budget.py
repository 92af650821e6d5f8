"""Works out how many tokens a turn may sample. Pure."""

from dataclasses import dataclass

from turnkeeper.core import Query
from turnkeeper.errors import ContextLengthError


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The token limit of one engine call."""

    max_tokens: int | None
    """The token limit that the engine is given; None gives no limit."""
    asked_tokens: int | None = None
    """The token limit that the agent asked for, where it had to be lowered; None otherwise."""


def plan_budget(*, prompt_tokens: int, asked_tokens: int | None, limit_tokens: int | None) -> Budget:
    """Fit what was asked for into what the limit leaves.

    ::

        limit  |------------------------------|
        prompt |-----------------|
        asked                    |~~~~~~~~~~~~~~~~~~~|   lowered to what is left

    Args:
        prompt_tokens: length of the whole prompt.
        asked_tokens: the request's token limit; None asks for no limit, which becomes all that is left.
        limit_tokens: the most tokens of prompt and completion together; None for no limit.

    Raises:
        ContextLengthError: the prompt leaves no room for a single token.
    """
    if limit_tokens is None:
        return Budget(max_tokens=asked_tokens)
    left = limit_tokens - prompt_tokens
    if left < 1:
        raise build_length_error(f"{prompt_tokens} tokens", prompt_tokens, limit_tokens)
    if asked_tokens is None or asked_tokens <= left:
        return Budget(max_tokens=left if asked_tokens is None else asked_tokens)
    return Budget(max_tokens=left, asked_tokens=asked_tokens)


def check_messages(query: Query, limit_tokens: int | None) -> None:
    """Refuse a conversation with more messages than tokens: each message that says something takes one at least.

    Args:
        query: the request.
        limit_tokens: the most tokens of prompt and completion together; None for no limit.

    Raises:
        ContextLengthError: there are more.
    """
    if limit_tokens is None or len(query.messages) <= limit_tokens:
        return
    said = sum(1 for message in query.messages if message.content or message.calls)
    if said > limit_tokens:
        raise build_length_error(f"{said} tokens or more", said, limit_tokens)


def build_length_error(found: str, prompt_tokens: int, limit_tokens: int) -> ContextLengthError:
    """Build the refusal of a prompt, in the words by which agents recognize that they must compact.

    Args:
        found: how long the prompt is.
        prompt_tokens: the length of the prompt, or the least that it can be.
        limit_tokens: what prompt and completion may have together.
    """
    return ContextLengthError(
        f"This model's maximum context length is {limit_tokens} tokens. However, your messages resulted in {found}. "
        "Please reduce the length of the messages.",
        prompt_tokens=prompt_tokens,
        limit_tokens=limit_tokens,
        param="messages",
    )


def choose_limit(*limits: int | None) -> int | None:
    """Choose the smallest of the limits that are set; None where no limit is set."""
    return min((limit for limit in limits if limit is not None), default=None)
