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
    CASES_WITHOUT_TOOLS,
    CUT,
    LOOK,
    THOUGHTS,
    AppendCase,
    IdStyle,
    build_cut_call,
    build_cut_case,
    build_one_tool_cycle,
    build_tool_cases,
)
from turnkeeper.rendering.comparison import clip
from turnkeeper.rendering.renderer import Renderer
from turnkeeper.rendering.templates import HistoryTextRenderer
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
class CheckResult:
    """One case and its outcome."""

    case: str
    outcome: Outcome
    expected_text: str = ""
    """The text in place, around the first difference."""
    actual_text: str = ""
    """What the append gives there."""
    detail: str = ""
    fixes: tuple[str, ...] = ()
    """Options under which the case holds."""

    @property
    def is_failing(self) -> bool:
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
            "cures": list(self.fixes),
        }


def check_appends(renderer: Renderer) -> tuple[CheckResult, ...]:
    """Every case on one renderer, without cures."""
    results = [_check_generation_prompt(renderer), _compare_with_template(renderer)]
    results += [_run(renderer, case) for case in list_cases(renderer)]
    return tuple(result for result in results if result is not None)


def list_cases(renderer: Renderer) -> Sequence[AppendCase]:
    """The cases that mean something to the format: without thinking in it, none is cut inside thinking."""
    style = choose_style(renderer)
    cut_call = _build_cut_case(renderer, style)
    cases = [*build_tool_cases(style), *CASES_WITHOUT_TOOLS, *([cut_call] if cut_call else [])]
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
        return renderer.text_renderer.render(
            messages, [LOOK], _chat_template_kwargs(renderer), add_generation_prompt=False
        )
    except TurnkeeperError:
        return None


def _has_thinking(renderer: Renderer) -> bool:
    text = _find_text(renderer, CASES_WITHOUT_TOOLS[0].history)
    return text is None or THOUGHTS[0] in text


def _build_cut_case(renderer: Renderer, style: IdStyle) -> AppendCase | None:
    """The case whose text depends on the family's spelling of calls; None where that is not known."""
    tools, thinking = renderer.family.tools, renderer.family.thinking
    whole = build_cut_call(style)
    text = _find_text(renderer, [*CASES_WITHOUT_TOOLS[0].history[:-1], whole]) or ""
    layout = thinking.closing + thinking.after_closing if thinking else ""
    start = text.rfind(layout) + len(layout) if layout and layout in text else text.rfind(tools.opening) if tools else 0
    if tools is None or CUT not in text[start:] or tools.opening not in text[start:]:
        return None
    return build_cut_case(whole, text[start : text.index(CUT) + len(CUT)])


def _chat_template_kwargs(renderer: Renderer) -> JsonObject:
    return renderer.validate(CASES_WITHOUT_TOOLS[0].history, (), {})


def _run(renderer: Renderer, case: AppendCase) -> CheckResult:
    try:
        for sampled in list_sampled_paths(renderer, case):
            ids = renderer.tokenizer.encode(sampled)
            parent = ParentContext(messages=case.history, completion_ids=ids)
            prompt = renderer.extend(parent, case.appended, [LOOK], {})
            joined = join_ids([ids[: len(ids) - prompt.trim], prompt.ids])
            whole = renderer.render([*case.history, *case.appended], [LOOK], {}).ids
            result = _judge(case.id, renderer.tokenizer.decode(whole), renderer.tokenizer.decode(joined))
            if result.outcome is not Outcome.HOLDS:
                return result
            if joined.tolist() != whole.tolist() and case.cut is None:
                return replace(result, outcome=Outcome.DIFFERS, detail="the texts are equal, their ids are not")
    except TurnkeeperError as error:
        is_refusal_expected = renderer.family.placement is None
        return CheckResult(
            case=case.id, outcome=Outcome.REFUSED if is_refusal_expected else Outcome.FAILS, detail=error.message
        )
    return CheckResult(case=case.id, outcome=Outcome.HOLDS)


def _judge(case: str, wanted: str, found: str) -> CheckResult:
    if wanted == found:
        return CheckResult(case=case, outcome=Outcome.HOLDS)
    place = count_common_prefix(wanted, found)
    return CheckResult(
        case=case,
        outcome=Outcome.DIFFERS,
        expected_text=clip(wanted, place),
        actual_text=clip(found, place),
        detail=f"the texts differ from character {place} on: {wanted[place : place + 40]!r} is in place, "
        f"{found[place : place + 40]!r} comes of the append",
    )


def list_sampled_paths(renderer: Renderer, case: AppendCase) -> Sequence[str]:
    """The path's text in every way in which its last message may have been sampled."""
    family, turn_end = renderer.family, renderer.turn_end
    if case.cut is not None:
        history = renderer.place([*case.history[:-1], case.cut])
        whole = renderer.text_renderer.render(
            history, [LOOK], _chat_template_kwargs(renderer), add_generation_prompt=False
        )
        if CUT not in whole:
            raise TemplateError("the template leaves out what the last message says")
        return [whole[: whole.rindex(CUT) + len(CUT)]]
    text = renderer.text_renderer.render(
        renderer.place(case.history), [LOOK], _chat_template_kwargs(renderer), add_generation_prompt=False
    )
    if any(text.endswith(marker) for marker in family.final_markers):
        return [text]
    said = text.removesuffix(turn_end)
    if not case.has_stop:
        return [said]
    sampled = text.removesuffix(renderer.unsampled_turn_end)
    is_replaced = turn_end and not turn_end.startswith(tuple(family.stop_markers))
    paths = [said + marker for marker in family.replaced_markers]
    return paths if paths and (is_replaced or not turn_end) else [sampled, *paths]


def _check_generation_prompt(renderer: Renderer) -> CheckResult | None:
    """The checkpoint's template must open a reply with the family's marker: else it is another model's."""
    case, marker = "the reply's opening", renderer.family.reply_marker
    if marker is None:
        return None
    try:
        generation_prompt = renderer.text_renderer.render_generation_prompt(_chat_template_kwargs(renderer))
    except TurnkeeperError as error:
        return CheckResult(case=case, outcome=Outcome.FAILS, detail=error.message)
    if marker in generation_prompt:
        return CheckResult(case=case, outcome=Outcome.HOLDS)
    detail = f"the template opens a reply with {generation_prompt!r}, the family with {marker!r}"
    return CheckResult(
        case=case, outcome=Outcome.DIFFERS, expected_text=marker, actual_text=generation_prompt, detail=detail
    )


def _compare_with_template(renderer: Renderer) -> CheckResult | None:
    """Within one tool cycle a rule must write what the checkpoint's template writes: else it is another model's."""
    text_renderer = renderer.text_renderer
    if not isinstance(text_renderer, HistoryTextRenderer) or not renderer.family.is_template_followed:
        return None
    case = "one tool cycle, as the template"
    try:
        messages = build_one_tool_cycle(choose_style(renderer))
        wanted = text_renderer.template.render(
            messages, [LOOK], _chat_template_kwargs(renderer), add_generation_prompt=True
        )
        return _judge(
            case,
            wanted,
            text_renderer.render(messages, [LOOK], _chat_template_kwargs(renderer), add_generation_prompt=True),
        )
    except TurnkeeperError as error:
        return CheckResult(case=case, outcome=Outcome.FAILS, detail=error.message)
