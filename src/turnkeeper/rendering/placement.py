r"""The places of system and developer messages in a chat format.

Sessions store, match and show messages as clients sent them. Many chat templates take one system message at the very
beginning and refuse or drop any other, so such a message is *placed* before it is written::

    sent                  system A, developer B, user, assistant, system C, user
    written in place      system A, system B,    user, assistant, system C, user
    written at the head   system A\n\nB,         user, assistant, user <system-reminder>C</system-reminder>, user

The *head* is the run of system and developer messages before the first message of another role. First prompts,
appended messages, the canonical comparison, ``turnkeeper verify`` and the messages that go to the engine all use
``Placement.place``. A message is placed by its role and by whether it belongs to the head, so nothing that comes later
can move what a stored prompt already holds. What a given template takes is tried out in
`turnkeeper.rendering.templates.roles`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.jsontypes import Message
from turnkeeper.rendering.message import get_role, get_text


class Role(StrEnum):
    """The roles of a chat-completions conversation."""

    TOOL = "tool"
    """A tool, with the result of a call."""
    USER = "user"
    """The user."""
    SYSTEM = "system"
    """The operator, with instructions."""
    DEVELOPER = "developer"
    """The operator, with instructions under the newer name of the role."""
    ASSISTANT = "assistant"
    """The model, whether the message was sampled here or brought along by the client."""


_INSTRUCTIONS = (Role.SYSTEM.value, Role.DEVELOPER.value)

REMINDER = "<system-reminder>\n{text}\n</system-reminder>"
"""The text of a system or developer message that is rendered as a user message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The places of system and developer messages in one chat format."""

    is_head_joined: bool = False
    """True when the messages of the head become one message, their texts separated by an empty line."""
    head_developer: Role = Role.SYSTEM
    """The role under which a developer message of the head is rendered."""
    later_system: Role = Role.SYSTEM
    """The role of a system message behind the head; USER makes it a user message of its own, in reminder tags."""
    later_developer: Role = Role.SYSTEM
    """The role of a developer message behind the head; USER makes it a user message of its own, in reminder tags."""

    def place(self, messages: Sequence[Message], *, is_behind: bool = False) -> Sequence[Message]:
        """Return the messages as the format has them; messages of other roles stay as they are.

        Args:
            messages: a whole conversation, or the messages that are appended to one.
            is_behind: True when other messages stand before these, so that none of them belongs to the head.
        """
        head = 0 if is_behind else count_head(messages)
        if not head and not any(is_instruction(message) for message in messages):
            return messages
        return [*self._place_head(messages[:head]), *(self._place_later(message) for message in messages[head:])]

    def _place_head(self, head: Sequence[Message]) -> Sequence[Message]:
        named = [_rename(message, self._find_head_role(message)) for message in head]
        if not self.is_head_joined or len(named) < 2:
            return named
        texts = (get_text(message) for message in named)
        return [{"role": get_role(named[0]), "content": "\n\n".join(text for text in texts if text)}]

    def _find_head_role(self, message: Message) -> Role:
        return self.head_developer if get_role(message) == Role.DEVELOPER else Role.SYSTEM

    def _place_later(self, message: Message) -> Message:
        if not is_instruction(message):
            return message
        role = self.later_developer if get_role(message) == Role.DEVELOPER else self.later_system
        if role is not Role.USER:
            return _rename(message, role)
        return {"role": Role.USER.value, "content": REMINDER.format(text=get_text(message))}


IN_PLACE = Placement()
"""Every system message stays where it is; a developer message is rendered as a system message."""
AT_THE_HEAD = Placement(is_head_joined=True, later_system=Role.USER, later_developer=Role.USER)
"""There is one system message at the very beginning, and none behind it."""


def is_instruction(message: Message) -> bool:
    """Return True for a system or developer message."""
    return message.get("role") in _INSTRUCTIONS


def count_head(messages: Sequence[Message]) -> int:
    """Count the system and developer messages before the first message of another role."""
    others = (index for index, message in enumerate(messages) if not is_instruction(message))
    return next(others, len(messages))


def _rename(message: Message, role: Role) -> Message:
    return message if get_role(message) == role else {**message, "role": role.value}
