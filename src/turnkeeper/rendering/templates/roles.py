"""Which roles a template can append, and where it has system and developer messages.

A declared family says where its format has system and developer messages, and takes all other roles anywhere. For the
family ``default`` both are found out by rendering small conversations, once for each renderer. A role can be appended
when the template takes it, leaves the messages before it alone, and renders its text. A place is right when every text
of the conversation is found in the rendering once and in order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from turnkeeper.errors import RoleNotAppendableError, TemplateError
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering.family import Family
from turnkeeper.rendering.message import get_role, get_text
from turnkeeper.rendering.placement import Placement, Role, count_head, is_instruction
from turnkeeper.rendering.templates.text_renderer import CALL, TOOL, TextRenderer, build_anchor

_TRIED = "\u2063turnkeeper-tried\u2063"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoleTrial:
    is_appendable: bool
    reason: str = ""


class RolePolicy:
    """The roles that one family takes on one template."""

    def __init__(self, family: Family, text_renderer: TextRenderer) -> None:
        """Keep family and renderer; roles and places are tried when they are first asked for."""
        self._family = family
        self._text_renderer = text_renderer
        self._trials: dict[str, _RoleTrial] = {}

    def place(self, messages: Sequence[Message], *, is_behind: bool = False) -> Sequence[Message]:
        """Return the messages with system and developer messages where the format has them; see ``Placement.place``."""
        head = 0 if is_behind else count_head(messages)
        is_common = head == 0 or (head == 1 and get_role(messages[0]) == Role.SYSTEM)
        if is_common and not any(is_instruction(message) for message in messages[head:]):
            return messages
        return self._placement.place(messages, is_behind=is_behind)

    @cached_property
    def _placement(self) -> Placement:
        return self._family.placement or find_placement(self._text_renderer, self._family.pinned)

    def check(self, appended: Sequence[Message]) -> None:
        """Refuse roles that cannot be appended; system and developer messages are left to ``place``.

        Raises:
            RoleNotAppendableError: the template cannot append a message of one of the roles.
        """
        if self._family.placement is not None:
            return
        for role in dict.fromkeys(get_role(message) for message in appended if not is_instruction(message)):
            trial = self._find_trial(role)
            if not trial.is_appendable:
                raise RoleNotAppendableError(
                    f"the model family {self._family.name} cannot append a {role} message in the middle of a "
                    f"session{trial.reason}",
                    hint="put it into the first request, or send it as a user message",
                    role=role,
                    family=self._family.name,
                )

    def _find_trial(self, role: str) -> _RoleTrial:
        trial = self._trials.get(role)
        if trial is None:
            trial = self._trials[role] = self._try(role)
        return trial

    def _try(self, role: str) -> _RoleTrial:
        tried: dict[str, str] = {"role": role, "content": _TRIED}
        if role == Role.TOOL:
            tried |= {"tool_call_id": str(CALL["id"]), "name": "look"}
        question: Message = {"role": "user", "content": "?"}
        earlier = [question, build_anchor([CALL] if role == Role.TOOL else None)]
        appended: list[Message] = [tried, question] if role == Role.ASSISTANT else [tried]
        try:
            text = self._text_renderer.render_suffix(earlier, appended, (), self._family.pinned)
        except TemplateError as error:
            return _RoleTrial(is_appendable=False, reason=f": {error.message}")
        if _TRIED not in text:
            return _RoleTrial(is_appendable=False, reason=": its template leaves such a message out")
        return _RoleTrial(is_appendable=True)


def find_placement(text_renderer: TextRenderer, chat_template_kwargs: Mapping[str, Any]) -> Placement:
    """Find out where a template has system and developer messages, by trying them at each place.

    Args:
        text_renderer: renders with the template.
        chat_template_kwargs: the arguments that the family pins.
    """
    trials = _Trials(text_renderer, chat_template_kwargs)
    has_developer = trials.has_head(Role.DEVELOPER)
    later_system = Role.SYSTEM if trials.takes_later(Role.SYSTEM) else Role.USER
    return Placement(
        is_head_joined=not trials.takes_heads(*([Role.SYSTEM, Role.DEVELOPER] if has_developer else [Role.SYSTEM])),
        head_developer=Role.DEVELOPER if has_developer else Role.SYSTEM,
        later_system=later_system,
        later_developer=Role.DEVELOPER if trials.takes_later(Role.DEVELOPER) else later_system,
    )


class _Trials:
    """Renders small conversations in which every message has another text."""

    def __init__(self, text_renderer: TextRenderer, chat_template_kwargs: Mapping[str, Any]) -> None:
        self._text_renderer = text_renderer
        self._chat_template_kwargs = chat_template_kwargs
        question = self._say(Role.USER, Role.ASSISTANT, Role.USER)
        tools: Sequence[Sequence[JsonObject]] = ((), (TOOL,))
        self._tools = [given for given in tools if self._is_written(question, given)]
        called = self._say(Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER)
        self._has_tools = all(self._is_written(called, given) for given in self._tools)

    def has_head(self, role: Role) -> bool:
        """Return True when one message of the role may lead a conversation."""
        return self._holds(role, Role.USER)

    def takes_heads(self, *roles: Role) -> bool:
        """Return True when two or three messages of these roles, in any combination, may lead a conversation."""
        heads = [*product(roles, repeat=2), roles[:1] * 3]
        return all(self._holds(*head, Role.USER, Role.ASSISTANT, Role.USER) for head in heads)

    def takes_later(self, role: Role) -> bool:
        """Return True when a message of the role may stand anywhere behind the head."""
        return all(self._holds(*talk) for talk in self._list_places(role))

    def _list_places(self, role: Role) -> Iterator[Sequence[Role]]:
        user, assistant, tool = Role.USER, Role.ASSISTANT, Role.TOOL
        yield user, role
        yield user, role, user
        yield user, role, assistant, user
        yield Role.SYSTEM, user, role
        yield user, assistant, role
        yield user, assistant, role, user
        yield user, assistant, role, role, user
        yield user, assistant, user, role
        if self._has_tools:
            yield user, assistant, tool, role
            yield user, assistant, tool, role, user

    def _holds(self, *roles: Role) -> bool:
        return bool(self._tools) and all(self._is_written(self._say(*roles), given) for given in self._tools)

    def _say(self, *roles: Role) -> list[Message]:
        """Build a message of each role; an assistant message before a tool result calls the tool."""
        messages: list[Message] = []
        for index, role in enumerate(roles):
            message: JsonObject = {"role": role.value, "content": f"\u2063turnkeeper-{index}\u2063"}
            if role is Role.TOOL:
                messages[-1] = {**messages[-1], "content": "", "tool_calls": [CALL]}
                message |= {"tool_call_id": CALL["id"], "name": "look"}
            messages.append(message)
        return messages

    def _is_written(self, messages: Sequence[Message], tools: Sequence[JsonObject]) -> bool:
        add_generation_prompt = messages[-1]["role"] != Role.ASSISTANT
        try:
            text = self._text_renderer.render(
                messages, tools, self._chat_template_kwargs, add_generation_prompt=add_generation_prompt
            )
        except TemplateError:
            return False
        said = [get_text(message) for message in messages if get_text(message)]
        places = [text.find(each) for each in said]
        return all(text.count(each) == 1 for each in said) and places == sorted(places)
