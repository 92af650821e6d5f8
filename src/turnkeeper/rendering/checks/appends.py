"""One renderer held against what it promises: every append beside the whole conversation.

Each case takes a path as it is sampled, appends to it, and lays the result beside the whole conversation as the family
writes it. What differs is kept with the text around the first difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from turnkeeper.core.tokens import join_ids
from turnkeeper.errors import TemplateError, TurnkeeperError
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering.boundary import ParentContext
from turnkeeper.rendering.checks.cases import (
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
)
from turnkeeper.rendering.comparison import clip
from turnkeeper.rendering.renderer import Renderer
from turnkeeper.rendering.templates import RuleWriter
from turnkeeper.texts import count_common_prefix


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

    @property
    def is_ill(self) -> bool:
        """Whether something is promised here that does not hold."""
        return self.outcome in (Outcome.DIFFERS, Outcome.FAILS)

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
        is_honest = renderer.family.placement is None
        return Finding(case=case.id, outcome=Outcome.REFUSED if is_honest else Outcome.FAILS, detail=error.message)
    return Finding(case=case.id, outcome=Outcome.HOLDS)


def _judge(case: str, wanted: str, found: str) -> Finding:
    if wanted == found:
        return Finding(case=case, outcome=Outcome.HOLDS)
    place = count_common_prefix(wanted, found)
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
        history = renderer.place([*case.history[:-1], case.cut])
        whole = renderer.writer.write(history, [LOOK], _arguments(renderer), is_open=False)
        if CUT not in whole:
            raise TemplateError("the template leaves out what the last message says")
        return [whole[: whole.rindex(CUT) + len(CUT)]]
    text = renderer.writer.write(renderer.place(case.history), [LOOK], _arguments(renderer), is_open=False)
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
