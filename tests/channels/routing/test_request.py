"""What to ask the engine for.

1. With the addition capability, rows from `len(parent) - 1` on; without it the field is not sent.
2. The rows held are those before the parent's last token, for a root none.
3. Stored rows must be a causal prefix of the new prompt.
"""

import pytest

from turnkeeper.channels.routing import RowsRequest, plan_rows
from turnkeeper.errors import TokenIntegrityError

CASES = [
    pytest.param(0, 0, 0, id="root"),
    pytest.param(1, 1, 0, id="parent-of-one-token"),
    pytest.param(20, 20, 19, id="extension"),
    pytest.param(20, 19, 19, id="last-token-trimmed"),
]


@pytest.mark.parametrize(("parent", "common", "held"), CASES)
def test_an_increment_starts_where_the_stored_rows_end(parent: int, common: int, held: int) -> None:
    plan = plan_rows(parent_tokens=parent, common_prefix=common, use_addition_r3=True)
    assert plan == RowsRequest(start_len=held, held_rows=held)
    assert plan.start_len == max(0, min(parent - 1, common))
    assert plan.payload_start == held


@pytest.mark.parametrize(("parent", "common", "held"), CASES)
def test_a_whole_payload_is_asked_for_by_leaving_the_field_out(parent: int, common: int, held: int) -> None:
    plan = plan_rows(parent_tokens=parent, common_prefix=common, use_addition_r3=False)
    assert plan == RowsRequest(start_len=None, held_rows=held)
    assert plan.payload_start == 0


def test_a_prompt_that_leaves_the_stored_path_is_refused() -> None:
    with pytest.raises(TokenIntegrityError, match="shares 18 ids with its parent's path of 20") as caught:
        plan_rows(parent_tokens=20, common_prefix=18, use_addition_r3=True)
    assert caught.value.facts == {"index": 18, "expected": 19, "found": 18}
