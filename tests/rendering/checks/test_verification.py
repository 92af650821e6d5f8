"""The doctor.

1. Every family holds what it promises on its own template: every case holds.
2. On another model's template or under the wrong arguments it does not, and the cure is among those proposed.
"""

from functools import cache

import pytest

from rendering.standins import STABLE, find_template, standin, tokenizer_json
from turnkeeper.rendering import FAMILIES, Checkpoint
from turnkeeper.rendering.checks import CheckOutcome, CheckResult, check_appends, verify


@cache
def check(family: str) -> tuple[CheckResult, ...]:
    return check_appends(standin(family))


@pytest.mark.parametrize("family", STABLE)
def test_a_family_holds_what_it_promises(family: str) -> None:
    results = check(family)
    assert {result.case: result.detail for result in results if result.outcome is not CheckOutcome.HOLDS} == {}


@pytest.mark.parametrize("family", [name for name in STABLE if FAMILIES[name].tools is not None])
def test_a_call_cut_in_its_middle_is_among_the_cases(family: str) -> None:
    assert "cut inside a tool call" in {result.case for result in check(family)}


@pytest.mark.parametrize(
    ("family", "template", "fix"),
    [
        ("default", "qwen36", "--apply-chat-template-kwargs '{\"preserve_thinking\": true}'"),
        ("default", "nemotron3", "--tito-model nemotron3"),
        ("qwen3", "qwen35", "--tito-model qwen35"),
        ("nemotron3", "qwen36", "--tito-model qwen36"),
    ],
)
def test_what_does_not_hold_comes_with_its_fixes(family: str, template: str, fix: str) -> None:
    checkpoint = Checkpoint(tokenizer_json=tokenizer_json(), template=find_template(template))
    report = verify(checkpoint, family)
    assert not report.is_sound
    failing = [result for result in report.results if result.outcome in (CheckOutcome.DIFFERS, CheckOutcome.FAILS)]
    assert all(result.detail for result in failing)
    assert any(fix in result.fixes for result in failing)
