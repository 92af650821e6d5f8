"""The checks of ``turnkeeper verify``: does a checkpoint hold every append under a family, and which options would fix
the cases that fail?

A failing case is tried again under every template argument that keeps thinking in some family, and under every family
whose markers the tokenizer has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnkeeper.errors import ConfigError, TurnkeeperError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering.checkpoint import Checkpoint
from turnkeeper.rendering.checks.appends import CheckOutcome, CheckResult, check_appends, choose_style
from turnkeeper.rendering.checks.cases import CASES_WITHOUT_TOOLS, LOOK, THOUGHTS, build_two_tool_cycles
from turnkeeper.rendering.families import FAMILIES
from turnkeeper.rendering.renderer import Renderer, build_renderer
from turnkeeper.rendering.templates import FormatTime, HistoryTextRenderer


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of ``turnkeeper verify``."""

    family: str
    results: tuple[CheckResult, ...]
    notes: tuple[str, ...]
    """Remarks that are no faults."""

    @property
    def is_sound(self) -> bool:
        """True when no case fails."""
        return not any(result.is_failing for result in self.results)

    def to_json(self) -> JsonObject:
        """Return the report as JSON; ``findings`` is the published name of the results."""
        results = [result.to_json() for result in self.results]
        return {"family": self.family, "is_sound": self.is_sound, "findings": results, "notes": list(self.notes)}


def verify(
    checkpoint: Checkpoint,
    family_name: str,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    format_time: FormatTime | None = None,
) -> VerifyReport:
    """Run every case on a checkpoint under a family.

    Raises:
        ConfigError: see ``build_renderer``.
    """
    renderer = build_renderer(
        checkpoint, family_name, chat_template_kwargs=chat_template_kwargs, format_time=format_time
    )
    results = check_appends(renderer)
    if not VerifyReport(family=family_name, results=results, notes=()).is_sound:
        fix_finder = _FixFinder(checkpoint, renderer, dict(chat_template_kwargs or {}), format_time)
        results = tuple(fix_finder.add_fixes(result) for result in results)
    return VerifyReport(family=family_name, results=results, notes=tuple(_note(renderer)))


def _note(renderer: Renderer) -> Sequence[str]:
    """List remarks: what ``default`` cannot promise, and which thinking the checkpoint's template would drop."""
    text_renderer = renderer.text_renderer
    if renderer.family.name == "default":
        return ["the family default promises nothing: it renders with the checkpoint's template as well as it can"]
    if not isinstance(text_renderer, HistoryTextRenderer) or not renderer.family.is_template_followed:
        return ()
    try:
        messages = build_two_tool_cycles(choose_style(renderer))
        text = text_renderer.template.render(
            messages, [LOOK], renderer.validate(CASES_WITHOUT_TOOLS[0].history, (), {}), add_generation_prompt=True
        )
    except TurnkeeperError as error:
        return [f"the checkpoint's template refuses a second user message: {error.message}"]
    lost = sum(thought not in text for thought in THOUGHTS)
    if not lost:
        return ()
    return [
        f"at a new user message the checkpoint's template would drop the thinking of {lost} earlier turns; kept here"
    ]


_KWARGS: tuple[JsonObject, ...] = tuple(
    {name: value}
    for name, value in dict.fromkeys(
        [
            (name, value)
            for family in FAMILIES.values()
            for name, value in family.pinned.items()
            if value in (True, False)
        ]
        + [("thinking", True)]
    )
)
"""Every template argument that keeps earlier thinking in some family."""


class _FixFinder:
    """Finds the template arguments and families under which a failing case holds."""

    def __init__(
        self, checkpoint: Checkpoint, renderer: Renderer, given: JsonObject, format_time: FormatTime | None
    ) -> None:
        self._checkpoint = checkpoint
        self._renderer = renderer
        self._given = given
        self._format_time = format_time
        self._fixes: list[tuple[str, Mapping[str, CheckOutcome]]] | None = None

    def add_fixes(self, result: CheckResult) -> CheckResult:
        """Return a failing result with the options that fix it, and any other result as it is."""
        if not result.is_failing:
            return result
        fixes = [name for name, outcomes in self._list_fixes() if outcomes.get(result.case) is CheckOutcome.HOLDS]
        return replace(result, fixes=tuple(fixes))

    def _list_fixes(self) -> Sequence[tuple[str, Mapping[str, CheckOutcome]]]:
        """List the options under which fewer cases fail, with the outcome of each case under them."""
        if self._fixes is None:
            now = sum(result.is_failing for result in check_appends(self._renderer))
            tried = [*self._try_kwargs(), *self._try_families()]
            self._fixes = [
                (name, {result.case: result.outcome for result in results})
                for name, results in tried
                if sum(result.is_failing for result in results) < now
            ]
        return self._fixes

    def _try_kwargs(self) -> Sequence[tuple[str, tuple[CheckResult, ...]]]:
        found: list[tuple[str, tuple[CheckResult, ...]]] = []
        for kwargs in _KWARGS:
            spelled = ", ".join(f'"{name}": {str(value).lower()}' for name, value in kwargs.items())
            results = self._check(self._renderer.family.name, {**self._given, **kwargs})
            if results:
                found.append((f"--apply-chat-template-kwargs '{{{spelled}}}'", results))
        return found

    def _try_families(self) -> Sequence[tuple[str, tuple[CheckResult, ...]]]:
        found: list[tuple[str, tuple[CheckResult, ...]]] = []
        for name, family in FAMILIES.items():
            is_known = all(self._renderer.tokenizer.find_id(marker) is not None for marker in family.stop_markers[:1])
            if name in (self._renderer.family.name, "default") or not is_known or family.message_encoder is not None:
                continue
            results = self._check(name, self._given)
            if results and not any(result.is_failing for result in results):
                found.append((f"--tito-model {name}", results))
        return found

    def _check(self, family: str, chat_template_kwargs: JsonObject) -> tuple[CheckResult, ...]:
        try:
            renderer = build_renderer(
                self._checkpoint,
                family,
                chat_template_kwargs=chat_template_kwargs,
                format_time=self._format_time,
                tokenizer=self._renderer.tokenizer,
            )
        except ConfigError:
            return ()
        return check_appends(renderer)
