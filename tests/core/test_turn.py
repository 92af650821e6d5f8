"""The values a turn is made of.

1. A completion's ids, logprobs and versions are parallel, and its logprobs are finite.
2. Two turns overlap when the later one began before the earlier one was committed.
"""

from typing import Any

import numpy as np
import pytest

from sessionkit import Talk, assistant, user
from turnkeeper.core import Completion, FinishReason, VersionSpan
from turnkeeper.core.tokens import freeze_ids


def version(start: int, stop: int) -> VersionSpan:
    return VersionSpan(version="v", start=start, stop=stop)


def completion(**changes: Any) -> Completion:
    return Completion(
        **{
            "ids": freeze_ids([1, 2, 3]),
            "logprobs": np.array([-0.5, 0.0, -0.0]),
            "message": assistant("a"),
            "finish_reason": FinishReason.STOP,
            "versions": (version(0, 2), version(2, 3)),
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param({"logprobs": np.zeros(2)}, "3 ids but 2 logprobs", id="a logprob short"),
        pytest.param({"logprobs": np.zeros(4)}, "3 ids but 4 logprobs", id="a logprob more"),
        pytest.param({"logprobs": np.array([0.0, np.nan, 0.0])}, "not finite", id="nan"),
        pytest.param({"logprobs": np.array([0.0, -np.inf, 0.0])}, "not finite", id="minus infinity"),
        pytest.param({"versions": (version(0, 2),)}, "cover 2 of 3", id="versions end early"),
        pytest.param({"versions": (version(0, 4),)}, "cover 4 of 3", id="versions end late"),
        pytest.param({"versions": (version(1, 3),)}, "gap at completion position 0", id="versions start late"),
        pytest.param(
            {"versions": (version(0, 2), version(1, 3))}, "gap at completion position 2", id="versions overlap"
        ),
        pytest.param({"versions": (version(0, 2), version(2, 1))}, "gap at completion position 2", id="backwards"),
        pytest.param({"versions": ()}, "cover 0 of 3", id="no versions"),
    ],
)
def test_a_completion_whose_lists_disagree_cannot_exist(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        completion(**changes)


def test_a_completion_keeps_signed_zeros_and_knows_whether_it_was_cut() -> None:
    kept = completion()
    assert np.signbit(kept.logprobs).tolist() == [True, False, True]
    assert not kept.is_truncated
    assert completion(finish_reason=FinishReason.LENGTH).is_truncated


def test_turns_overlap_when_the_later_began_before_the_earlier_was_committed() -> None:
    talk = Talk()
    slow, quick = talk.begin(user("slow")), talk.begin(user("quick"))
    first = talk.commit(quick, "a")
    after = talk.say(user("after"))
    last = talk.commit(slow, "b")
    assert first.overlaps(last)
    assert last.overlaps(first)
    assert after.overlaps(last)
    assert not after.overlaps(first)
    assert not first.overlaps(after)
