"""What a failed engine call sampled in vain, told from its error. Pure."""

from dataclasses import dataclass

from turnkeeper.core.accounting import DropReason
from turnkeeper.errors import EngineError, EnginePausedError, EngineRefusedError, TurnAbortedError, TurnkeeperError


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Tokens that were sampled in vain, or a call of which nobody knows."""

    reason: DropReason
    sampled_tokens: int | None
    """None when nobody knows."""


def list_losses(error: Exception) -> tuple[Loss, ...]:
    """Account for a failed call by its error.

    The error says how many tokens the reply held, and how many those that were cut short. An engine that was not
    reached, or that refused or was paused, sampled nothing. After any other failure of an engine nobody knows.
    """
    facts = error.facts if isinstance(error, TurnkeeperError) else {}
    aborted, sampled = facts.get("aborted_tokens") or 0, facts.get("sampled_tokens") or 0
    losses = [Loss(reason=DropReason.ABORTED_PIECE, sampled_tokens=aborted)] if aborted else []
    if sampled:
        losses.append(Loss(reason=DropReason.REFUSED_REPLY, sampled_tokens=sampled))
    elif is_unknown(error):
        losses.append(Loss(reason=DropReason.REFUSED_REPLY, sampled_tokens=None))
    return tuple(losses)


def is_unknown(error: Exception) -> bool:
    """Whether the engine may have sampled tokens of which it did not tell."""
    told = EngineRefusedError | EnginePausedError | TurnAbortedError
    return isinstance(error, EngineError) and not isinstance(error, told) and error.facts.get("accepted") is not False
