"""The family ``default`` on every chat template that PyPI trl and llama-cpp-python carry.

1. Whatever a template does, the outcome is one of ours: it holds, it is refused by name, or it is shown to differ.
2. Where nothing is dropped, the append gives the ids in place: so for most, and for these in every case.
3. The parent's ids are kept, whatever the template makes of the conversation.
"""

import re
from contextlib import suppress
from functools import cache

import pytest

from assets import get_asset
from rendering.addedtokens import add_markers
from rendering.standins import tokenizer_json
from rendering.talk import assistant, user
from turnkeeper.errors import ConfigError, RoleNotAppendableError, TemplateError
from turnkeeper.rendering import Checkpoint, ParentContext, Renderer, Tokenizer, build_renderer
from turnkeeper.rendering.checks import CheckOutcome, CheckResult, check_appends

MARKER = re.compile(r"<\|?[A-Za-z_:/]+\|?>|<[｜▁A-Za-z]+>|\[/?[A-Z_]+\]|<SPECIAL_\d+>|</?s>")


@cache
def sources() -> dict[str, str]:
    """Every template by its name, but for trl's own variants."""
    return {
        f"{asset}/{path.stem}": path.read_text(encoding="utf-8")
        for asset in ("trl", "llama")
        for path in sorted(get_asset(asset).glob("*.jinja"))
        if not path.stem.endswith("_training")
    }


@cache
def tokenizer() -> Tokenizer:
    """The stand-in with everything that looks like a marker in any template."""
    markers = {marker for source in sources().values() for marker in MARKER.findall(source)}
    markers |= {"<s>", "<|begin_of_text|>"}
    return Tokenizer(add_markers(tokenizer_json(), dict.fromkeys(sorted(markers), True)))


def build(source: str) -> Renderer | None:
    """The renderer; None where the template is no text template, which is said at start."""
    checkpoint = Checkpoint(
        tokenizer_json=b"", template=source, tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"}
    )
    try:
        return build_renderer(checkpoint, "default", format_time=lambda pattern: "2026-11-30", tokenizer=tokenizer())
    except ConfigError:
        return None


@cache
def check(name: str) -> tuple[CheckResult, ...] | None:
    """What the appends of a template come to; None where it is no text template."""
    renderer = build(sources()[name])
    return None if renderer is None else check_appends(renderer)


def test_every_template_ends_in_an_outcome_of_ours_and_keeps_the_parent() -> None:
    sound = 0
    for name, source in sources().items():
        renderer, findings = build(source), check(name)
        if renderer is None or findings is None:
            continue
        sound += all(finding.outcome in (CheckOutcome.HOLDS, CheckOutcome.REFUSED) for finding in findings)
        sampled = renderer.tokenizer.encode("something")
        parent = ParentContext(messages=[user("a"), assistant("something")], completion_ids=sampled)
        with suppress(RoleNotAppendableError, TemplateError):
            assert renderer.extend(parent, [user("b")], [], {}).trim == 0
    assert sound >= 45


HOLDING = (
    "llama/Apertus-8B-Instruct",
    "llama/GigaChat3-10B-A1.8B",
    "llama/Kimi-K2-Instruct",
    "llama/LFM2-8B-A1B",
    "llama/Qwen3-Coder",
    "llama/Qwen-QwQ-32B",
    "llama/ibm-granite-granite-4.1",
    "llama/unsloth-mistral-Devstral-Small-2507",
    "trl/gemma4_v2",
    "trl/qwen2_5",
    "trl/qwen3_instruct_2507",
)


@pytest.mark.parametrize("name", HOLDING)
def test_a_template_that_drops_nothing_holds_in_every_case(name: str) -> None:
    findings = check(name)
    assert findings is not None
    outcomes = {finding.case: finding.outcome for finding in findings}
    assert {case for case, outcome in outcomes.items() if outcome is not CheckOutcome.HOLDS} <= {"system", "developer"}


@pytest.mark.parametrize(
    ("name", "bos"),
    [("trl/llama3", "<|begin_of_text|>"), ("trl/gemma3", "<s>"), ("trl/qwen2_5", None)],
)
def test_the_templates_bos_stands_once(name: str, bos: str | None) -> None:
    """Encoding adds nothing: one BOS where the template writes one, none where it writes none."""
    checkpoint = Checkpoint(
        tokenizer_json=b"", template=sources()[name], tokenizer_config={"bos_token": bos or "<|begin_of_text|>"}
    )
    renderer = build_renderer(checkpoint, "default", tokenizer=tokenizer())
    ids = renderer.render([user("Hi")], [], {}).ids.tolist()
    known = [renderer.tokenizer.get_id(marker) for marker in ("<|begin_of_text|>", "<s>")]
    assert [token for token in ids if token in known] == ([renderer.tokenizer.get_id(bos)] if bos else [])
