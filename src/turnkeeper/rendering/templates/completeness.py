"""A rendering holds everything that its messages say, or it is refused.

Some chat templates drop a message without a word: a second system message, text beside tool calls, tool calls as a
whole. A prompt must not lose anything, so the text of each message is looked for in the rendering, and so is the name
of each function that is called. Reasoning is not: many templates leave earlier thinking out on purpose, and families
keep it where it matters.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from turnkeeper.errors import RoleNotAppendableError, TemplateError
from turnkeeper.jsontypes import Message
from turnkeeper.rendering.family import Family
from turnkeeper.rendering.message import get_role, get_text, get_tool_calls, render_json
from turnkeeper.rendering.placement import count_head, is_instruction

RenderMessages = Callable[[Sequence[Message]], str]
"""Writes messages as text, system and developer messages placed."""


def render_complete(
    render: RenderMessages, messages: Sequence[Message], family: Family, *, is_behind: bool = False
) -> str:
    """The text of messages, nothing left out.

    Args:
        render: renders any of the messages as text.
        messages: a first prompt's messages, or appended ones.
        family: what refusals name.
        is_behind: whether other messages stand before these.

    Raises:
        RoleNotAppendableError: a system or developer message behind others has no place in the format, or an appended
            message is left out.
        TemplateError: the messages are refused for another reason, or one of a first prompt is left out.
    """
    head = 0 if is_behind else count_head(messages)
    later = [index for index in range(head, len(messages)) if is_instruction(messages[index])]
    try:
        text = render(messages)
    except TemplateError as error:
        if later and _can_render(render, _leave_out(messages, later)):
            raise _build_place_error(messages[later[0]], family, error.message) from error
        if not is_behind:
            raise
        roles = ", ".join(get_role(message) for message in messages)
        raise TemplateError(
            f"the model family {family.name} cannot append {roles}: {error.message}", hint=error.hint
        ) from error
    missing = find_missing(messages, text, family.thinking.closing if family.thinking else "</think>")
    if missing is None:
        return text
    if missing in later:
        raise _build_place_error(messages[missing], family, "the chat template leaves such a message out")
    raise _build_loss_error(missing, get_role(messages[missing]), family, is_behind=is_behind)


def _leave_out(messages: Sequence[Message], later: Sequence[int]) -> Sequence[Message]:
    """The messages without these; two user messages that only one of these kept apart count as one."""
    kept: list[Message] = []
    for index, message in enumerate(messages):
        is_apart = index - 1 in later and kept and get_role(kept[-1]) == get_role(message) == "user"
        if index not in later and not is_apart:
            kept.append(message)
    return kept


def _can_render(render: RenderMessages, messages: Sequence[Message]) -> bool:
    """Whether messages can be written, none at all included."""
    try:
        return not messages or bool(render(messages))
    except TemplateError:
        return False


def _build_place_error(message: Message, family: Family, reason: str) -> RoleNotAppendableError:
    """The refusal of a system message by whose first words Claude Code knows to send its instructions otherwise."""
    role = get_role(message)
    return RoleNotAppendableError(
        f"role '{role}' is not supported after the first message by the model family {family.name}: {reason}",
        hint="put it into the first message, or send it as a user message",
        role=role,
        family=family.name,
    )


def _build_loss_error(
    index: int, role: str, family: Family, *, is_behind: bool
) -> RoleNotAppendableError | TemplateError:
    if is_behind:
        return RoleNotAppendableError(
            f"the model family {family.name} cannot append a {role} message in the middle of a session: its template "
            "leaves such a message out, or a part of it",
            hint="put it into the first request, or send it as a user message",
            role=role,
            family=family.name,
        )
    return TemplateError(
        f"the chat template leaves out what messages[{index}] ({role}) says, or a part of it",
        hint="`turnkeeper verify` shows what the template holds; --chat-template-path names another one",
    )


def find_missing(messages: Sequence[Message], text: str, closing: str = "</think>") -> int | None:
    """The index of the first message that a rendering leaves out, wholly or in part; None when it holds them all.

    Args:
        messages: the messages that were rendered.
        text: the rendering.
        closing: the marker that ends reasoning in an assistant's content: what stands before it is no answer.
    """
    pieces = [_list_pieces(message, closing) for message in messages]
    position = 0
    wanted: Counter[str] | None = None
    for index, said in enumerate(pieces):
        for piece in said:
            found = text.find(piece, position)
            if found >= 0:
                position = found + len(piece)
                continue
            wanted = wanted or Counter(each for held in pieces for each in held)
            if not _is_written(piece, text, wanted[piece]):
                return index
    return None


def _list_pieces(message: Message, closing: str) -> Sequence[str]:
    """What the rendering of a message must hold: its text without the white space around it, and its calls' names."""
    content = get_text(message)
    if get_role(message) != "assistant":
        said = (content.strip(),)
    else:
        said = (content.rpartition(closing)[2].strip(), *(call.name for call in get_tool_calls(message)))
    return [piece for piece in said if piece]


def _is_written(piece: str, text: str, times: int) -> bool:
    """Whether the rendering holds a piece anywhere as often as it was said, as it is or spelled as JSON."""
    if text.count(piece) >= times:
        return True
    return any(render_json(piece, ensure_ascii=is_ascii)[1:-1] in text for is_ascii in (False, True))
