"""A doctor for a checkpoint and a family: does it hold what it promises, and what would heal it?

What does not hold is tried again under every template argument that keeps thinking in some family, and under every
family whose markers the tokenizer has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnkeeper.errors import ConfigError, TurnkeeperError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering.checkpoint import Checkpoint
from turnkeeper.rendering.checks.appends import Finding, Outcome, choose_style, examine
from turnkeeper.rendering.checks.cases import LOOK, TALKS, THOUGHTS, build_two_cycles
from turnkeeper.rendering.families import FAMILIES
from turnkeeper.rendering.renderer import Renderer, build_renderer
from turnkeeper.rendering.templates import FormatTime, RuleWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What ``verify`` found."""

    family: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """What is worth knowing and no fault."""

    @property
    def is_sound(self) -> bool:
        """Whether the family holds what it promises."""
        return not any(finding.is_ill for finding in self.findings)

    def to_json(self) -> JsonObject:
        """The report for programs."""
        findings = [finding.to_json() for finding in self.findings]
        return {"family": self.family, "is_sound": self.is_sound, "findings": findings, "notes": list(self.notes)}


def verify(
    checkpoint: Checkpoint,
    family_name: str,
    *,
    template_kwargs: Mapping[str, Any] | None = None,
    format_time: FormatTime | None = None,
) -> Report:
    """Run every case on a checkpoint under a family.

    Raises:
        ConfigError: as ``build_renderer``.
    """
    renderer = build_renderer(checkpoint, family_name, template_kwargs=template_kwargs, format_time=format_time)
    findings = examine(renderer)
    if not Report(family=family_name, findings=findings, notes=()).is_sound:
        pharmacy = _Pharmacy(checkpoint, renderer, dict(template_kwargs or {}), format_time)
        findings = tuple(pharmacy.prescribe(finding) for finding in findings)
    return Report(family=family_name, findings=findings, notes=tuple(_note(renderer)))


def _note(renderer: Renderer) -> Sequence[str]:
    """What the checkpoint's template would drop where the family's rule keeps it."""
    writer = renderer.writer
    if renderer.family.name == "default":
        return ["the family default promises nothing: it renders with the checkpoint's template as well as it can"]
    if not isinstance(writer, RuleWriter) or not renderer.family.is_template_followed:
        return ()
    try:
        messages = build_two_cycles(choose_style(renderer))
        text = writer.template.render(messages, [LOOK], renderer.validate(TALKS[0].history, (), {}), is_open=True)
    except TurnkeeperError as error:
        return [f"the checkpoint's template refuses a second user message: {error.message}"]
    lost = sum(thought not in text for thought in THOUGHTS)
    if not lost:
        return ()
    return [
        f"at a new user message the checkpoint's template would drop the thinking of {lost} earlier turns; kept here"
    ]


_ARGUMENTS: tuple[JsonObject, ...] = tuple(
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
"""Every argument that keeps earlier thinking in some family's template."""


class _Pharmacy:
    """Looks for the arguments and families under which a case holds."""

    def __init__(
        self, checkpoint: Checkpoint, renderer: Renderer, given: JsonObject, format_time: FormatTime | None
    ) -> None:
        self._checkpoint = checkpoint
        self._renderer = renderer
        self._given = given
        self._format_time = format_time
        self._remedies: list[tuple[str, Mapping[str, Outcome]]] | None = None

    def prescribe(self, finding: Finding) -> Finding:
        """The finding with what heals it."""
        if not finding.is_ill:
            return finding
        cures = [name for name, outcomes in self._list_remedies() if outcomes.get(finding.case) is Outcome.HOLDS]
        return replace(finding, cures=tuple(cures))

    def _list_remedies(self) -> Sequence[tuple[str, Mapping[str, Outcome]]]:
        """Every remedy under which fewer cases are ill, with the outcomes under it."""
        if self._remedies is None:
            now = sum(finding.is_ill for finding in examine(self._renderer))
            tried = [*self._try_arguments(), *self._try_families()]
            self._remedies = [
                (name, {finding.case: finding.outcome for finding in findings})
                for name, findings in tried
                if sum(finding.is_ill for finding in findings) < now
            ]
        return self._remedies

    def _try_arguments(self) -> Sequence[tuple[str, tuple[Finding, ...]]]:
        found: list[tuple[str, tuple[Finding, ...]]] = []
        for argument in _ARGUMENTS:
            spelled = ", ".join(f'"{name}": {str(value).lower()}' for name, value in argument.items())
            findings = self._examine(self._renderer.family.name, {**self._given, **argument})
            if findings:
                found.append((f"--apply-chat-template-kwargs '{{{spelled}}}'", findings))
        return found

    def _try_families(self) -> Sequence[tuple[str, tuple[Finding, ...]]]:
        found: list[tuple[str, tuple[Finding, ...]]] = []
        for name, family in FAMILIES.items():
            is_known = all(self._renderer.tokenizer.find_id(marker) is not None for marker in family.stop_markers[:1])
            if name in (self._renderer.family.name, "default") or not is_known or family.encoder is not None:
                continue
            findings = self._examine(name, self._given)
            if findings and not any(finding.is_ill for finding in findings):
                found.append((f"--tito-model {name}", findings))
        return found

    def _examine(self, family: str, arguments: JsonObject) -> tuple[Finding, ...]:
        try:
            renderer = build_renderer(
                self._checkpoint,
                family,
                template_kwargs=arguments,
                format_time=self._format_time,
                tokenizer=self._renderer.tokenizer,
            )
        except ConfigError:
            return ()
        return examine(renderer)
