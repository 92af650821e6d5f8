"""Receipts: which turns of a session a trainer was given, and which of them it has said that it has.

::

    collect -> a receipt for the turns that there were -> acknowledged -> a later collect may leave their loss out

A receipt is the digest of a payload. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject

MAX_RECEIPTS = 64
"""How many receipts of a session are held in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One collect of a session."""

    digest: str
    """Of the payload's bytes."""
    turns: int
    """How many turns, from the first on, there were."""
    is_acknowledged: bool = False
    """True once a trainer has said that it has the payload."""

    @property
    def turn_ids(self) -> tuple[TurnId, ...]:
        """The turns that the receipt stands for, in or out of samples."""
        return tuple(map(TurnId, range(self.turns)))

    def to_json(self) -> JsonObject:
        """Return the receipt with its turns, ready for JSON."""
        return {"receipt": self.digest, "turns": list(self.turn_ids)}


class ReceiptBook:
    """The receipts of a session that is in no store: the newest ones, and the acknowledged one with the most turns."""

    def __init__(self) -> None:
        self._receipts: dict[str, Receipt] = {}

    def __len__(self) -> int:
        """The number of receipts that are held."""
        return len(self._receipts)

    def add(self, receipt: Receipt) -> None:
        """Add a receipt, unless it is there; the oldest goes where there are too many."""
        self._receipts.setdefault(receipt.digest, receipt)
        if len(self._receipts) > MAX_RECEIPTS:
            kept = find_furthest(self._receipts.values())
            oldest = next(each for each in self._receipts.values() if each is not kept)
            del self._receipts[oldest.digest]

    def find(self, digest: str) -> Receipt | None:
        """Find a receipt; None where there is none."""
        return self._receipts.get(digest)

    def acknowledge(self, digest: str) -> Receipt | None:
        """Note that a trainer has what a receipt stands for; None where there is no such receipt."""
        if digest not in self._receipts:
            return None
        receipt = self._receipts[digest] = replace(self._receipts[digest], is_acknowledged=True)
        return receipt


def find_furthest(receipts: Iterable[Receipt]) -> Receipt | None:
    """Find the acknowledged receipt that stands for the most turns, of equal ones the first; None where none is."""
    return max((each for each in receipts if each.is_acknowledged), key=lambda each: each.turns, default=None)
