"""A table in one test: every case is checked, and each that fails is named."""

import pytest

from tablekit import checking_table


def check(number: int) -> None:
    assert number != 1
    if number == 2:
        raise ValueError("broken")
    with pytest.raises(KeyError):
        {}[number] if number == 0 else None


def check_all(checked: list[int]) -> None:
    with checking_table() as table:
        for number in range(4):
            with table.case("case", number):
                checked.append(number)
                check(number)


def test_each_failing_case_is_named_and_the_others_are_checked() -> None:
    checked: list[int] = []
    with pytest.raises(pytest.fail.Exception) as caught:
        check_all(checked)
    assert checked == [0, 1, 2, 3]
    said = str(caught.value)
    assert said.startswith("3 cases of the table fail:\n")
    assert [line.partition(":")[0] for line in said.splitlines() if line.startswith("case ")] == [
        "case 1",
        "case 2",
        "case 3",
    ]
    assert "case 2: ValueError: broken" in said


def test_a_table_that_holds_is_silent() -> None:
    with checking_table() as table, table.case("a case"):
        pass
    assert table.failures == []
