"""Matchers: whether a replayed message is the stored one.

A built-in matcher is the set of the kinds of difference that it accepts, so each accepts all that the one before it
accepts. On a match the stored spelling stays authoritative. Knows one message at a time, and of the path only which
call id stands for which (``IdPairs``).
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from turnkeeper.errors import ConfigError, MatcherError
from turnkeeper.jsontypes import Message
from turnkeeper.matching.difference import Difference, DifferenceKind, find_differences
from turnkeeper.matching.normal import NormalMessage


class IdPairs:
    """Which replayed call id stands for which stored one along a path: one name for one name, or a conflict.

    A search that walks a tree takes a ``mark`` on its way down and goes back to it with ``undo``.
    """

    def __init__(self) -> None:
        self._replayed_of: dict[str, str] = {}
        self._stored_of: dict[str, str] = {}
        self._trail: list[str] = []
        self._renamed = 0

    @property
    def has_renames(self) -> bool:
        """Whether any id on the path goes by another name."""
        return self._renamed > 0

    @property
    def stored_of(self) -> Mapping[str, str]:
        """Replayed id to stored id."""
        return self._stored_of

    def bind(self, stored: str, replayed: str) -> bool:
        """Note that the two are one id; False where either already stands for another, or only one is given."""
        known = self._replayed_of.get(stored)
        if known is not None:
            return known == replayed
        if not stored or not replayed:
            return stored == replayed
        if replayed in self._stored_of:
            return False
        self._replayed_of[stored] = replayed
        self._stored_of[replayed] = stored
        self._trail.append(stored)
        self._renamed += stored != replayed
        return True

    def mark(self) -> int:
        """A point to which ``undo`` can return."""
        return len(self._trail)

    def undo(self, mark: int) -> None:
        """Forget what was bound since the mark."""
        while len(self._trail) > mark:
            stored = self._trail.pop()
            replayed = self._replayed_of.pop(stored)
            del self._stored_of[replayed]
            self._renamed -= stored != replayed


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A matcher's verdict on one message."""

    is_match: bool
    differences: tuple[Difference, ...] = ()
    """On a match those accepted, otherwise those refused (at least one)."""


EQUAL = Match(is_match=True)


class Matcher(Protocol):
    """Decides whether a replayed message is the stored one."""

    @property
    def name(self) -> str:
        """What ``--session-message-matcher`` calls it."""
        ...

    def match(self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs) -> Match:
        """Compare one message; what it binds in ``pairs`` is for the caller to undo.

        Raises:
            MatcherError: a function given by import path raised, or returned something that is not a bool.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMatcher:
    """A built-in matcher."""

    name: str
    accepted: frozenset[DifferenceKind]
    """The kinds of difference that do not keep two messages apart."""
    checks_links: bool = field(init=False)
    """Whether ids may be renamed, but consistently: elsewhere they are equal, or do not matter."""

    def __post_init__(self) -> None:
        """Work out once what every message asks."""
        links = DifferenceKind.CALL_ID in self.accepted and DifferenceKind.CALL_LINK not in self.accepted
        object.__setattr__(self, "checks_links", links)

    def match(self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs) -> Match:
        """Equal as a whole; else field by field."""
        differences = () if replayed.equals(stored) else tuple(find_differences(stored, replayed))
        if differences:
            refused = tuple(each for each in differences if each.kind not in self.accepted)
            if refused:
                return Match(is_match=False, differences=refused)
        if self.checks_links and (stored.calls or stored.result_of):
            conflict = _bind_ids(stored, replayed, pairs)
            if conflict is not None:
                return Match(is_match=False, differences=(conflict,))
        return Match(is_match=True, differences=differences) if differences else EQUAL


def _bind_ids(stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs) -> Difference | None:
    """Bind the ids of two messages with equally many calls; the first conflict, where there is one."""
    for old, new in zip(stored.calls, replayed.calls, strict=True):
        if not pairs.bind(old.id, new.id):
            return Difference(kind=DifferenceKind.CALL_LINK, field="tool_calls", stored=old.id, replayed=new.id)
    if pairs.bind(stored.result_of, replayed.result_of):
        return None
    return Difference(
        kind=DifferenceKind.CALL_LINK, field="tool_call_id", stored=stored.result_of, replayed=replayed.result_of
    )


_SPELLING = frozenset({DifferenceKind.ARGUMENTS_SPELLING})
_TOLERABLE = _SPELLING | {DifferenceKind.REASONING_TRIMMED, DifferenceKind.CALL_ID}
_ALL_BUT_TEXT = frozenset(DifferenceKind) - {DifferenceKind.ROLE, DifferenceKind.CONTENT, DifferenceKind.OTHER}

STRICT = FieldMatcher(name="strict", accepted=frozenset())
LOOSE_TOOL_CALL = FieldMatcher(name="loose_tool_call", accepted=_SPELLING)
TOLERANT = FieldMatcher(name="tolerant", accepted=_TOLERABLE)
ROLE_CONTENT_ONLY = FieldMatcher(name="role_content_only", accepted=_ALL_BUT_TEXT)

MATCHERS: Mapping[str, FieldMatcher] = {
    matcher.name: matcher for matcher in (STRICT, LOOSE_TOOL_CALL, TOLERANT, ROLE_CONTENT_ONLY)
}
"""The built-in matchers, each accepting all that the one before accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedMatcher:
    """A function of the user's: ``(stored, replayed) -> bool`` over chat-completions messages."""

    name: str
    """Its import path."""
    function: Callable[[Message, Message], Any]

    def match(self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs) -> Match:
        """Ask the function, and hold it to its contract."""
        try:
            verdict = self.function(stored.message, replayed.message)
        except Exception as error:
            raise MatcherError(
                f"the message matcher {self.name} raised {type(error).__name__}: {error}",
                hint="it must return True or False for any two messages",
                matcher=self.name,
            ) from error
        if type(verdict) is not bool:
            raise MatcherError(
                f"the message matcher {self.name} must return a bool, it returned {type(verdict).__name__}",
                matcher=self.name,
            )
        differences = tuple(find_differences(stored, replayed))
        if verdict:
            return Match(is_match=True, differences=differences) if differences else EQUAL
        return Match(is_match=False, differences=differences or (_UNEXPLAINED,))


_UNEXPLAINED = Difference(kind=DifferenceKind.OTHER, field="message", stored="", replayed="")


def load_matcher(selector: str) -> Matcher:
    """The matcher of that name, or the function at that import path (``package.module.function``).

    Raises:
        ConfigError: neither a built-in name nor the path of a plain function.
    """
    if selector in MATCHERS:
        return MATCHERS[selector]
    module_name, _, function_name = selector.replace(":", ".").rpartition(".")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise _unusable(selector, f"it cannot be imported ({error})") from error
    if not callable(function):
        raise _unusable(selector, "it is not a function")
    if inspect.iscoroutinefunction(function):
        raise _unusable(selector, "it is a coroutine function, and matching does not wait")
    return ImportedMatcher(name=selector, function=function)


def _unusable(selector: str, why: str) -> ConfigError:
    return ConfigError(
        f"--session-message-matcher {selector!r} is no matcher: {why}",
        hint=f"use one of {', '.join(MATCHERS)}, or package.module.function",
    )
