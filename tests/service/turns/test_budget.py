"""How many tokens a turn may still sample.

1. Without a limit the request's own stands; with one, it is lowered to what the prompt leaves.
2. A prompt that leaves no room is refused with both numbers.
"""

import pytest

from turnkeeper.errors import ContextLengthError
from turnkeeper.service.turns.budget import Budget, choose_limit, plan_budget

CASES = {
    "no limit, nothing asked": (None, None, Budget(max_tokens=None)),
    "no limit": (7, None, Budget(max_tokens=7)),
    "nothing asked": (None, 100, Budget(max_tokens=90)),
    "fits": (90, 100, Budget(max_tokens=90)),
    "too much": (91, 100, Budget(max_tokens=90, asked_tokens=91)),
    "one token left": (5, 11, Budget(max_tokens=1, asked_tokens=5)),
}


@pytest.mark.parametrize(("asked", "limit", "budget"), CASES.values(), ids=CASES.keys())
def test_what_was_asked_is_fitted_into_what_is_left(asked: int | None, limit: int | None, budget: Budget) -> None:
    assert plan_budget(prompt_tokens=10, asked_tokens=asked, limit_tokens=limit) == budget


@pytest.mark.parametrize("limit", [1, 9, 10])
def test_a_prompt_without_room_is_refused(limit: int) -> None:
    with pytest.raises(ContextLengthError, match="maximum context length") as caught:
        plan_budget(prompt_tokens=10, asked_tokens=1, limit_tokens=limit)
    assert caught.value.facts == {"prompt_tokens": 10, "limit_tokens": limit, "param": "messages"}


def test_the_smallest_limit_counts() -> None:
    assert choose_limit(None, 5, 3) == 3
    assert choose_limit(None, None) is None
