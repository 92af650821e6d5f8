"""The check of appends: an appended prompt must equal the prompt of the whole conversation.

Each case takes a path as it is sampled, appends messages to it, and compares the result with the whole conversation as
the family renders it. A result that differs is kept with the text around the first difference.
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


class CheckOutcome(StrEnum):
    """The outcome of a case."""

    HOLDS = "holds"
    """The append gives the ids of the whole conversation."""
    REFUSED = "refused"
    """The family ``default`` cannot append this, and such a request gets status 400."""
    DIFFERS = "differs"
    """The append gives another text than the whole conversation has."""
    FAILS = "fails"
    """The template refuses messages that the family takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The outcome of one case."""

    case: str
    outcome: CheckOutcome
    expected_text: str = ""
    """The text of the whole conversation around the first difference."""
    actual_text: str = ""
    """The text that the append gives there."""
    detail: str = ""
    fixes: tuple[str, ...] = ()
    """The options under which the case holds."""

    @property
    def is_failing(self) -> bool:
        """True when the family takes the append, and the append does not hold."""
        return self.outcome in (CheckOutcome.DIFFERS, CheckOutcome.FAILS)

    def to_json(self) -> JsonObject:
        """Return the result as JSON; ``cures`` is the published name of the fixes."""
        return {
            "case": self.case,
            "outcome": self.outcome.value,
            "expected_text": self.expected_text,
            "actual_text": self.actual_text,
            "detail": self.detail,
            "cures": list(self.fixes),
        }


def check_appends(renderer: Renderer) -> tuple[CheckResult, ...]:
    """Run every case on one renderer, without looking for fixes."""
    results = [_check_generation_prompt(renderer), _compare_with_template(renderer)]
    results += [_run(renderer, case) for case in list_cases(renderer)]
    return tuple(result for result in results if result is not None)


def list_cases(renderer: Renderer) -> Sequence[AppendCase]:
    """List the cases that apply to the format; a format without thinking has no case that is cut inside thinking."""
    style = choose_style(renderer)
    cut_call = _build_cut_case(renderer, style)
    cases = [*build_tool_cases(style), *CASES_WITHOUT_TOOLS, *([cut_call] if cut_call else [])]
    return [case for case in cases if case.id != "cut inside thinking" or _has_thinking(renderer)]


def choose_style(renderer: Renderer) -> IdStyle:
    """Return the first form of call ids that the template takes."""
    for style in IdStyle:
        if _find_text(renderer, build_tool_cases(style)[0].history) is not None:
            return style
    return IdStyle.NAMED


def _find_text(renderer: Renderer, messages: Sequence[Message]) -> str | None:
    """Render a conversation; None where the template refuses it."""
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
    """Build the case that is cut inside a tool call; None where the family's format of calls is not known."""
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
            if result.outcome is not CheckOutcome.HOLDS:
                return result
            if joined.tolist() != whole.tolist() and case.cut is None:
                return replace(result, outcome=CheckOutcome.DIFFERS, detail="the texts are equal, their ids are not")
    except TurnkeeperError as error:
        is_refusal_expected = renderer.family.placement is None
        return CheckResult(
            case=case.id,
            outcome=CheckOutcome.REFUSED if is_refusal_expected else CheckOutcome.FAILS,
            detail=error.message,
        )
    return CheckResult(case=case.id, outcome=CheckOutcome.HOLDS)


def _judge(case: str, wanted: str, found: str) -> CheckResult:
    if wanted == found:
        return CheckResult(case=case, outcome=CheckOutcome.HOLDS)
    place = count_common_prefix(wanted, found)
    return CheckResult(
        case=case,
        outcome=CheckOutcome.DIFFERS,
        expected_text=clip(wanted, place),
        actual_text=clip(found, place),
        detail=f"the texts differ from character {place} on: {wanted[place : place + 40]!r} is in place, "
        f"{found[place : place + 40]!r} comes of the append",
    )


def list_sampled_paths(renderer: Renderer, case: AppendCase) -> Sequence[str]:
    """List the texts of a case's path, one for every way in which its last message may have ended."""
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
    """Check that the checkpoint's template begins a reply with the family's marker."""
    case, marker = "the reply's opening", renderer.family.reply_marker
    if marker is None:
        return None
    try:
        generation_prompt = renderer.text_renderer.render_generation_prompt(_chat_template_kwargs(renderer))
    except TurnkeeperError as error:
        return CheckResult(case=case, outcome=CheckOutcome.FAILS, detail=error.message)
    if marker in generation_prompt:
        return CheckResult(case=case, outcome=CheckOutcome.HOLDS)
    detail = f"the template opens a reply with {generation_prompt!r}, the family with {marker!r}"
    return CheckResult(
        case=case, outcome=CheckOutcome.DIFFERS, expected_text=marker, actual_text=generation_prompt, detail=detail
    )


def _compare_with_template(renderer: Renderer) -> CheckResult | None:
    """Check that, within one tool cycle, a history format gives the text of the checkpoint's template."""
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
        return CheckResult(case=case, outcome=CheckOutcome.FAILS, detail=error.message)
