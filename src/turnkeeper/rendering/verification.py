"""A doctor for a checkpoint and a family: does every append give the text that the model would see in place?

Each case takes a path as it is sampled, appends to it, and lays the result beside the whole conversation as the
family writes it. What differs is shown from the first character on, together with what would heal it: a template
argument, or another family.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from turnkeeper.core.tokens import join_ids
from turnkeeper.errors import ConfigError, RoleNotAppendableError, TemplateError, TurnkeeperError
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering.cases import (
    CUT,
    LOOK,
    TALKS,
    THOUGHTS,
    Case,
    IdStyle,
    build_cut_call,
    build_cut_case,
    build_one_cycle,
    build_tool_cases,
    build_two_cycles,
)
from turnkeeper.rendering.checkpoint import Checkpoint
from turnkeeper.rendering.comparison import clip, count_equal
from turnkeeper.rendering.families import FAMILIES
from turnkeeper.rendering.junction import ParentContext
from turnkeeper.rendering.renderer import Renderer, build_renderer
from turnkeeper.rendering.template import FormatTime
from turnkeeper.rendering.writer import RuleWriter


class Outcome(StrEnum):
    """How a case ended."""

    HOLDS = "holds"
    """The append gives the text in place."""
    REFUSED = "refused"
    """The family does not promise it, and the request is a 400 that says so."""
    DIFFERS = "differs"
    """The append gives another text than the one in place."""
    FAILS = "fails"
    """The template refuses what the family promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One case and its outcome."""

    case: str
    outcome: Outcome
    expected_text: str = ""
    """The text in place, around the first difference."""
    actual_text: str = ""
    """What the append gives there."""
    detail: str = ""
    cures: tuple[str, ...] = ()
    """Options under which the case holds."""

    def to_json(self) -> JsonObject:
        """The finding for programs."""
        return {
            "case": self.case,
            "outcome": self.outcome.value,
            "expected_text": self.expected_text,
            "actual_text": self.actual_text,
            "detail": self.detail,
            "cures": list(self.cures),
        }


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
        return not _count_ill(self.findings)

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


def examine(renderer: Renderer) -> tuple[Finding, ...]:
    """Every case on one renderer, without cures."""
    findings = [_compare_opening(renderer), _compare_with_template(renderer)]
    findings += [_run(renderer, case) for case in list_cases(renderer)]
    return tuple(finding for finding in findings if finding is not None)


def list_cases(renderer: Renderer) -> Sequence[Case]:
    """The cases that mean something to the format: without thinking in it, none is cut inside thinking."""
    style = choose_style(renderer)
    cut_call = _build_cut_case(renderer, style)
    cases = [*build_tool_cases(style), *TALKS, *([cut_call] if cut_call else [])]
    return [case for case in cases if case.id != "cut inside thinking" or _has_thinking(renderer)]


def choose_style(renderer: Renderer) -> IdStyle:
    """The first numbering of calls that the template takes."""
    for style in IdStyle:
        if _find_text(renderer, build_tool_cases(style)[0].history) is not None:
            return style
    return IdStyle.NAMED


def _find_text(renderer: Renderer, messages: Sequence[Message]) -> str | None:
    """A conversation as the family writes it; None where the template refuses it."""
    try:
        return renderer.writer.write(messages, [LOOK], _arguments(renderer), is_open=False)
    except TurnkeeperError:
        return None


def _has_thinking(renderer: Renderer) -> bool:
    text = _find_text(renderer, TALKS[0].history)
    return text is None or THOUGHTS[0] in text


def _build_cut_case(renderer: Renderer, style: IdStyle) -> Case | None:
    """The case whose text depends on the family's spelling of calls; None where that is not known."""
    tools, thinking = renderer.family.tools, renderer.family.thinking
    whole = build_cut_call(style)
    text = _find_text(renderer, [*TALKS[0].history[:-1], whole]) or ""
    layout = thinking.closing + thinking.after_closing if thinking else ""
    start = text.rfind(layout) + len(layout) if layout and layout in text else text.rfind(tools.opening) if tools else 0
    if tools is None or CUT not in text[start:] or tools.opening not in text[start:]:
        return None
    return build_cut_case(whole, text[start : text.index(CUT) + len(CUT)])


def _arguments(renderer: Renderer) -> JsonObject:
    return renderer.validate(TALKS[0].history, (), {})


def _run(renderer: Renderer, case: Case) -> Finding:
    try:
        for sampled in list_endings(renderer, case):
            ids = renderer.tokenizer.encode(sampled)
            parent = ParentContext(messages=case.history, completion_ids=ids)
            prompt = renderer.extend(parent, case.appended, [LOOK], {})
            joined = join_ids([ids[: len(ids) - prompt.trim], prompt.ids])
            whole = renderer.render([*case.history, *case.appended], [LOOK], {}).ids
            finding = _judge(case.id, renderer.tokenizer.decode(whole), renderer.tokenizer.decode(joined))
            if finding.outcome is not Outcome.HOLDS:
                return finding
            if joined.tolist() != whole.tolist() and case.cut is None:
                return replace(finding, outcome=Outcome.DIFFERS, detail="the texts are equal, their ids are not")
    except TurnkeeperError as error:
        is_honest = isinstance(error, RoleNotAppendableError) or renderer.family.roles is None
        return Finding(case=case.id, outcome=Outcome.REFUSED if is_honest else Outcome.FAILS, detail=error.message)
    return Finding(case=case.id, outcome=Outcome.HOLDS)


def _judge(case: str, wanted: str, found: str) -> Finding:
    if wanted == found:
        return Finding(case=case, outcome=Outcome.HOLDS)
    place = count_equal(wanted, found)
    return Finding(
        case=case,
        outcome=Outcome.DIFFERS,
        expected_text=clip(wanted, place),
        actual_text=clip(found, place),
        detail=f"the texts differ from character {place} on: {wanted[place : place + 40]!r} is in place, "
        f"{found[place : place + 40]!r} comes of the append",
    )


def list_endings(renderer: Renderer, case: Case) -> Sequence[str]:
    """The path's text in every way in which its last message may have been sampled."""
    family, close = renderer.family, renderer.close
    if case.cut is not None:
        whole = renderer.writer.write([*case.history[:-1], case.cut], [LOOK], _arguments(renderer), is_open=False)
        if CUT not in whole:
            raise TemplateError("the template leaves out what the last message says")
        return [whole[: whole.rindex(CUT) + len(CUT)]]
    text = renderer.writer.write(case.history, [LOOK], _arguments(renderer), is_open=False)
    if any(text.endswith(marker) for marker in family.final_markers):
        return [text]
    said = text.removesuffix(close)
    if not case.has_stop:
        return [said]
    sampled = text.removesuffix(renderer.close_layout)
    is_replaced = close and not close.startswith(tuple(family.stop_markers))
    endings = [said + marker for marker in family.replaced_markers]
    return endings if endings and (is_replaced or not close) else [sampled, *endings]


def _compare_opening(renderer: Renderer) -> Finding | None:
    """The checkpoint's template must open a reply with the family's marker: else it is another model's."""
    case, marker = "the reply's opening", renderer.family.reply_marker
    if marker is None:
        return None
    try:
        opening = renderer.writer.write_opening(_arguments(renderer))
    except TurnkeeperError as error:
        return Finding(case=case, outcome=Outcome.FAILS, detail=error.message)
    if marker in opening:
        return Finding(case=case, outcome=Outcome.HOLDS)
    detail = f"the template opens a reply with {opening!r}, the family with {marker!r}"
    return Finding(case=case, outcome=Outcome.DIFFERS, expected_text=marker, actual_text=opening, detail=detail)


def _compare_with_template(renderer: Renderer) -> Finding | None:
    """Within one tool cycle a rule must write what the checkpoint's template writes: else it is another model's."""
    writer = renderer.writer
    if not isinstance(writer, RuleWriter) or not renderer.family.is_template_followed:
        return None
    case = "one tool cycle, as the template"
    try:
        messages = build_one_cycle(choose_style(renderer))
        wanted = writer.template.render(messages, [LOOK], _arguments(renderer), is_open=True)
        return _judge(case, wanted, writer.write(messages, [LOOK], _arguments(renderer), is_open=True))
    except TurnkeeperError as error:
        return Finding(case=case, outcome=Outcome.FAILS, detail=error.message)


def _note(renderer: Renderer) -> Sequence[str]:
    """What the checkpoint's template would drop where the family's rule keeps it."""
    writer = renderer.writer
    if renderer.family.name == "default":
        return ["the family default promises nothing: it renders with the checkpoint's template as well as it can"]
    if not isinstance(writer, RuleWriter) or not renderer.family.is_template_followed:
        return ()
    try:
        messages = build_two_cycles(choose_style(renderer))
        text = writer.template.render(messages, [LOOK], _arguments(renderer), is_open=True)
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
        if finding.outcome not in _ILL:
            return finding
        cures = [name for name, outcomes in self._list_remedies() if outcomes.get(finding.case) is Outcome.HOLDS]
        return replace(finding, cures=tuple(cures))

    def _list_remedies(self) -> Sequence[tuple[str, Mapping[str, Outcome]]]:
        """Every remedy under which fewer cases are ill, with the outcomes under it."""
        if self._remedies is None:
            now = _count_ill(examine(self._renderer))
            tried = [*self._try_arguments(), *self._try_families()]
            self._remedies = [
                (name, {finding.case: finding.outcome for finding in findings})
                for name, findings in tried
                if _count_ill(findings) < now
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
            if findings and not _count_ill(findings):
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


_ILL = (Outcome.DIFFERS, Outcome.FAILS)


def _count_ill(findings: Sequence[Finding]) -> int:
    return sum(finding.outcome in _ILL for finding in findings)
