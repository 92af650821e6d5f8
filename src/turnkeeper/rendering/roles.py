"""Which roles a family takes in the middle of a session, and under which name.

A declared family says so in its row. For any other template each role is tried once on a small conversation: a role is
appendable when the template takes it, leaves the messages before it alone, and really writes its text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turnkeeper.errors import RoleNotAppendableError, TemplateError
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering.family import Family, Role
from turnkeeper.rendering.message import get_role
from turnkeeper.rendering.writer import Writer, build_anchor

_TRIED = "\u2063turnkeeper-tried\u2063"
_CALL: JsonObject = {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": {}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    is_taken: bool
    why: str = ""


class RolePolicy:
    """The roles of one family on one template."""

    def __init__(self, family: Family, writer: Writer) -> None:
        """Keep both; roles are tried when they first come up."""
        self._family = family
        self._writer = writer
        self._verdicts: dict[str, _Verdict] = {}

    def rename(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages under the names that the family knows: ``developer`` is ``system`` to most."""
        if not any(get_role(message) == Role.DEVELOPER for message in messages) or self._knows_developer():
            return messages
        return [
            {**message, "role": "system"} if get_role(message) == Role.DEVELOPER else message for message in messages
        ]

    def check(self, appended: Sequence[Message]) -> None:
        """Refuse roles that cannot be appended.

        Raises:
            RoleNotAppendableError: names the role, the family and what it takes.
        """
        for role in dict.fromkeys(get_role(message) for message in appended):
            verdict = self._judge(self._find_name(role))
            if not verdict.is_taken:
                raise RoleNotAppendableError(
                    f"the model family {self._family.name} cannot append a {role} message in the middle of a "
                    f"session{verdict.why}",
                    hint="put it into the first request, or send it as a user message",
                    role=role,
                    family=self._family.name,
                )

    def _find_name(self, role: str) -> str:
        """The role under which a role is tried; a row of the table speaks for each by its own name."""
        is_renamed = self._family.roles is None and role == Role.DEVELOPER and not self._knows_developer()
        return Role.SYSTEM if is_renamed else role

    def _knows_developer(self) -> bool:
        if self._family.roles is not None:
            return self._family.has_developer
        return self._judge(Role.DEVELOPER).is_taken

    def _judge(self, role: str) -> _Verdict:
        verdict = self._verdicts.get(role)
        if verdict is None:
            if self._family.roles is not None:
                verdict = _Verdict(is_taken=role in self._family.roles)
            else:
                verdict = self._try(role)
            self._verdicts[role] = verdict
        return verdict

    def _try(self, role: str) -> _Verdict:
        tried: dict[str, str] = {"role": role, "content": _TRIED}
        if role == Role.TOOL:
            tried |= {"tool_call_id": str(_CALL["id"]), "name": "look"}
        question: Message = {"role": "user", "content": "?"}
        earlier = [question, build_anchor([_CALL] if role == Role.TOOL else None)]
        appended: list[Message] = [tried, question] if role == Role.ASSISTANT else [tried]
        try:
            text = self._writer.write_suffix(earlier, appended, (), self._family.pinned)
        except TemplateError as error:
            return _Verdict(is_taken=False, why=f": {error.message}")
        if _TRIED not in text:
            return _Verdict(is_taken=False, why=": its template leaves such a message out")
        return _Verdict(is_taken=True)
