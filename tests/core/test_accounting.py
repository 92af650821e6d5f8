"""The ledger: sampled = trainable + masked + dropped.

1. Terms add up one by one; what no term names is unaccounted, and what is named twice is negative.
2. A call whose tokens nobody knows is counted as a call, outside the sum.
3. The reasons are a closed list.
"""

from turnkeeper.core import DropReason, Ledger, MaskReason
from turnkeeper.core.accounting import drop_tokens


def test_the_terms_of_two_ledgers_add_up() -> None:
    left = Ledger(sampled=10, trainable=4, masked={MaskReason.HOOK: 1}, dropped={DropReason.DELETED: 2})
    right = Ledger(sampled=5, trainable=1, masked={MaskReason.HOOK: 2, MaskReason.BAD_ROWS: 1})
    both = left + right
    assert both == Ledger(
        sampled=15,
        trainable=5,
        masked={MaskReason.HOOK: 3, MaskReason.BAD_ROWS: 1},
        dropped={DropReason.DELETED: 2},
    )
    assert both.unaccounted == 4
    assert Ledger(sampled=1, trainable=1, dropped={DropReason.SUPERSEDED: 1}).unaccounted == -1


def test_a_call_of_unknown_tokens_is_no_term_of_the_sum() -> None:
    ledger = drop_tokens(DropReason.CLIENT_GONE, None) + drop_tokens(DropReason.CLIENT_GONE, 3)
    assert ledger == Ledger(sampled=3, dropped={DropReason.CLIENT_GONE: 3}, calls={DropReason.CLIENT_GONE: 1})
    assert ledger.unaccounted == 0


def test_a_call_that_sampled_nothing_leaves_no_entry() -> None:
    assert drop_tokens(DropReason.REFUSED_REPLY, 0) == Ledger()


def test_a_ledger_is_written_as_json() -> None:
    ledger = Ledger(sampled=6, trainable=2, masked={MaskReason.HOOK: 1}, dropped={DropReason.EVICTED: 1})
    assert ledger.to_json() == {
        "sampled": 6,
        "trainable": 2,
        "masked": {"hook": 1},
        "dropped": {"evicted": 1},
        "calls": {},
        "unaccounted": 2,
    }


def test_the_reasons_are_those_that_the_documents_name() -> None:
    assert {str(reason) for reason in MaskReason} == {
        "shared_elsewhere",
        "bad_rows",
        "rows_recomputed",
        "not_replayable",
        "offpolicy",
        "hook",
        "acknowledged",
    }
    assert {str(reason) for reason in DropReason} == {
        "superseded",
        "undelivered",
        "aborted_piece",
        "refused_reply",
        "client_gone",
        "stream_failed",
        "deleted",
        "junction_trim",
        "over_max_seq_len",
        "after_truncation",
        "not_picked",
        "evicted",
    }
