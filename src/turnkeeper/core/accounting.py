"""Every sampled token is accounted for exactly once: trained, masked or dropped, each for a reason of a closed list.

``Ledger`` is the sum. Whoever knows a term adds it on its own path (the session what was sampled and what abandoned
calls lost, the samples what trains and what does not); ``unaccounted`` says whether the terms meet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from turnkeeper.jsontypes import JsonObject

Reason = TypeVar("Reason", bound=StrEnum)


class MaskReason(StrEnum):
    """The reason why a sampled token of a sample carries no loss."""

    SHARED_ELSEWHERE = "shared_elsewhere"
    """The token trains in another sample that shares the turn."""
    BAD_ROWS = "bad_rows"
    """The routing rows of the token, or of an earlier token, are invalid."""
    NOT_REPLAYABLE = "not_replayable"
    """Penalties, biases or a grammar changed the weights of the token, which no sampling mask explains."""
    ROWS_RECOMPUTED = "rows_recomputed"
    """The engine computed the token's routing rows again after the token was sampled."""
    OFFPOLICY = "offpolicy"
    """The token was sampled by older weights, and the trainer leaves such tokens out."""
    HOOK = "hook"
    """A postprocessor of the user, or ``--train-models``, masked the token."""
    ACKNOWLEDGED = "acknowledged"
    """A trainer has the token's turn from an earlier collect, and asked for what came since."""


class DropReason(StrEnum):
    """The reason why sampled tokens are in no sample."""

    SUPERSEDED = "superseded"
    """A retry took the place of the turn."""
    UNDELIVERED = "undelivered"
    """The reply was never delivered to the agent in full."""
    ABORTED_PIECE = "aborted_piece"
    """A weight update cut the generation off, and the turn was generated again."""
    REFUSED_REPLY = "refused_reply"
    """The engine's reply failed its checks."""
    CLIENT_GONE = "client_gone"
    """The agent hung up and did not come back."""
    STREAM_FAILED = "stream_failed"
    """The engine's stream broke, or the turn could not be recorded."""
    DELETED = "deleted"
    """The session ended before the generation did."""
    JUNCTION_TRIM = "junction_trim"
    """The marker of the next turn replaced a sampled stop token."""
    OVER_MAX_SEQ_LEN = "over_max_seq_len"
    """The tokens stand behind the length limit of the sample."""
    AFTER_TRUNCATION = "after_truncation"
    """The tokens follow a turn that ended by length."""
    NOT_PICKED = "not_picked"
    """The picker left out the leaf that holds the tokens."""
    EVICTED = "evicted"
    """The session was evicted or expired before it was collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Sampled tokens and where they went. Counts that are 0 are left out of the mappings."""

    sampled: int = 0
    """Tokens that engines reported as sampled."""
    trainable: int = 0
    """Tokens with loss in exactly one sample."""
    masked: Mapping[MaskReason, int] = field(default_factory=dict[MaskReason, int])
    """Tokens in a sample, without loss."""
    dropped: Mapping[DropReason, int] = field(default_factory=dict[DropReason, int])
    """Tokens in no sample."""
    calls: Mapping[DropReason, int] = field(default_factory=dict[DropReason, int])
    """Abandoned calls whose tokens nobody reported: calls, not tokens, and no term of the sum."""

    @property
    def unaccounted(self) -> int:
        """The sampled tokens that no term counts; 0 when the sum holds, negative when a token is counted twice."""
        return self.sampled - self.trainable - sum(self.masked.values()) - sum(self.dropped.values())

    def __add__(self, other: "Ledger") -> "Ledger":
        """Add two ledgers term by term."""
        return Ledger(
            sampled=self.sampled + other.sampled,
            trainable=self.trainable + other.trainable,
            masked=_add_counts(self.masked, other.masked),
            dropped=_add_counts(self.dropped, other.dropped),
            calls=_add_counts(self.calls, other.calls),
        )

    def to_json(self) -> JsonObject:
        """Return the terms by name, ready for JSON."""
        return {
            "sampled": self.sampled,
            "trainable": self.trainable,
            "masked": {str(reason): count for reason, count in sorted(self.masked.items())},
            "dropped": {str(reason): count for reason, count in sorted(self.dropped.items())},
            "calls": {str(reason): count for reason, count in sorted(self.calls.items())},
            "unaccounted": self.unaccounted,
        }


def _add_counts(left: Mapping[Reason, int], right: Mapping[Reason, int]) -> Mapping[Reason, int]:
    if not left or not right:
        return left or right
    return {**left, **{reason: left.get(reason, 0) + count for reason, count in right.items()}}


def drop_tokens(reason: DropReason, sampled_tokens: int | None) -> Ledger:
    """Build the ledger entry of tokens that were sampled for nothing; None counts a call whose number of tokens is
    unknown."""
    if sampled_tokens is None:
        return Ledger(calls={reason: 1})
    return Ledger(sampled=sampled_tokens, dropped={reason: sampled_tokens} if sampled_tokens else {})
