"""A rendering that lacks a part of its messages is refused.

Some chat templates silently drop a second system message, the text beside tool calls, or the tool calls themselves.
The text of each message and the name of each function that is called are therefore looked for in the rendering.
Reasoning is not looked for: many templates leave out earlier thinking on purpose.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from turnkeeper.errors import RoleNotAppendableError, TemplateError
from turnkeeper.jsontypes import Message
from turnkeeper.rendering.family import Family
from turnkeeper.rendering.message import get_role, get_text, get_tool_calls, render_json
from turnkeeper.rendering.placement import count_head, is_instruction

RenderMessages = Callable[[Sequence[Message]], str]
"""Renders messages as text, with system and developer messages where the format has them."""


def render_complete(
    render: RenderMessages, messages: Sequence[Message], family: Family, *, is_behind: bool = False
) -> str:
    """Render messages, and refuse a text that lacks a part of them.

    Args:
        render: renders any of the messages as text.
        messages: the messages of a first prompt, or the messages that are appended to a path.
        family: the family that errors name.
        is_behind: True for messages that are appended to a path.

    Raises:
        RoleNotAppendableError: the format has no place for a system or developer message behind other messages, or the
            template leaves out an appended message.
        TemplateError: the template refuses the messages for another reason, or leaves out a message of a first prompt.
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
    """Return the messages without those at ``later``; of two user messages that only these separated, the first."""
    kept: list[Message] = []
    for index, message in enumerate(messages):
        is_apart = index - 1 in later and kept and get_role(kept[-1]) == get_role(message) == "user"
        if index not in later and not is_apart:
            kept.append(message)
    return kept


def _can_render(render: RenderMessages, messages: Sequence[Message]) -> bool:
    """Return True when the messages can be rendered, or there are none."""
    try:
        return not messages or bool(render(messages))
    except TemplateError:
        return False


def _build_place_error(message: Message, family: Family, reason: str) -> RoleNotAppendableError:
    """Build the refusal of a system message. Claude Code recognises its first words, and sends its instructions in
    another form from then on."""
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
    """Find the first message that a rendering lacks, wholly or in part; None where it has all of them.

    Args:
        messages: the messages that were rendered.
        text: the rendering.
        closing: the marker that ends reasoning in the content of an assistant; the text before it is not looked for.
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
    """List the texts that a rendering must contain: the stripped text of a message, and the names of its calls."""
    content = get_text(message)
    if get_role(message) != "assistant":
        said = (content.strip(),)
    else:
        said = (content.rpartition(closing)[2].strip(), *(call.name for call in get_tool_calls(message)))
    return [piece for piece in said if piece]


def _is_written(piece: str, text: str, times: int) -> bool:
    """Return True when a text contains the piece ``times`` times, or contains it spelled as JSON."""
    if text.count(piece) >= times:
        return True
    return any(render_json(piece, ensure_ascii=is_ascii)[1:-1] in text for is_ascii in (False, True))
