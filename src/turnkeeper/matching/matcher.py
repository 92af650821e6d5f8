"""Matchers, which decide whether a replayed message is the stored one.

A built-in matcher is the set of the kinds of difference that it accepts, so each accepts all that the one before it
accepts. Of a reply that is known by its call ids some accept further kinds (``reply``). On a match the stored spelling
stays authoritative. Knows one message at a time, and of the path only which call id stands for which (``IdPairs``).
"""

import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from turnkeeper.choices import OnRewrittenCalls
from turnkeeper.errors import ConfigError, MatcherError
from turnkeeper.jsontypes import Message
from turnkeeper.matching.difference import Difference, DifferenceKind, differ, list_differences
from turnkeeper.matching.normal import NormalMessage
from turnkeeper.matching.reply import DEFAULT_RULES, ReplyRules, Rewrite, find_rewrite, undress


class IdPairs:
    """The pairs of a stored and a replayed call id along a path: one id stands for one id, and anything else is a
    conflict.

    A search that walks a tree takes a ``mark`` on its way down and goes back to it with ``undo``.
    """

    def __init__(self) -> None:
        self._replayed_of: dict[str, str] = {}
        self._stored_of: dict[str, str] = {}
        self._trail: list[str] = []
        self._renamed = 0

    @property
    def renamed(self) -> int:
        """The number of ids on the path that have another name in the request."""
        return self._renamed

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
        """Return a point to which ``undo`` can return."""
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
    """The result of comparing one message."""

    is_match: bool
    differences: tuple[Difference, ...] = ()
    """The differences that were accepted where the messages match; otherwise those that were refused, at least one."""
    rewrite: Rewrite | None = None
    """The changes of a reply that is the stored one by its call ids; None for every other match."""


EQUAL = Match(is_match=True)


class Matcher(Protocol):
    """Decides whether a replayed message is the stored one."""

    @property
    def name(self) -> str:
        """The name of the matcher in ``--session-message-matcher``."""
        ...

    @property
    def replies(self) -> ReplyRules:
        """The rules for comparing a message with a stored reply."""
        ...

    def match(self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs) -> Match:
        """Compare one message; what it binds in ``pairs`` is for the caller to undo.

        Raises:
            MatcherError: a function given by import path raised, or returned something that is not a bool.
        """
        ...

    def match_reply(
        self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs, forms: Collection[str]
    ) -> Match:
        """Compare the message at the place of a stored reply, on a path whose earlier messages all match.

        Args:
            stored: the reply.
            replayed: the message of the request.
            pairs: the ids that were bound on the path.
            forms: the forms (``Rewrite.form``) in which the turns that go on from the reply brought it; empty where
                no turn does.

        Raises:
            MatcherError: as ``match``.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMatcher:
    """A built-in matcher."""

    name: str
    accepted: frozenset[DifferenceKind]
    """The kinds of difference that do not keep two messages apart."""
    accepted_by_ids: frozenset[DifferenceKind] = frozenset()
    """The kinds that do not keep a reply apart that is known by its call ids; empty where ids prove nothing."""
    replies: ReplyRules = DEFAULT_RULES
    binds_ids: bool = field(init=False)
    """True when call ids may be renamed."""
    checks_links: bool = field(init=False)
    """True when renamed call ids must be renamed consistently along the path."""

    def __post_init__(self) -> None:
        """Work out the facts that the comparison of every message needs."""
        binds_ids = DifferenceKind.CALL_ID in self.accepted
        object.__setattr__(self, "binds_ids", binds_ids)
        object.__setattr__(self, "checks_links", binds_ids and DifferenceKind.CALL_LINK not in self.accepted)

    def match(self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs) -> Match:
        """Compare two messages as a whole, and field by field where they are not equal."""
        return self._judge(stored, replayed, list_differences(stored, replayed), pairs)

    def match_reply(
        self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs, forms: Collection[str]
    ) -> Match:
        """Compare a message with a stored reply: by its fields, then with the reasoning taken out of the content, then
        by its call ids."""
        tags = self.replies.thinking_tags if self.accepted_by_ids else None
        bare = None if tags is None else undress(stored, replayed, tags)
        said = replayed if bare is None else bare
        differences = list_differences(stored, said)
        match = self._judge(stored, said, differences, pairs)
        if not match.is_match and self.accepted_by_ids:
            match = self._judge_by_ids(stored, said, differences, pairs, forms, match)
        if bare is None or not match.is_match:
            return match
        dress = differ(DifferenceKind.REASONING_IN_CONTENT, "content", stored.content, replayed.content)
        return replace(match, differences=(dress, *match.differences))

    def _judge(
        self, stored: NormalMessage, replayed: NormalMessage, differences: tuple[Difference, ...], pairs: IdPairs
    ) -> Match:
        """Return True when each difference is accepted, and each call id stands for the id that it stood for before."""
        if differences:
            refused = tuple(each for each in differences if each.kind not in self.accepted)
            if refused:
                return Match(is_match=False, differences=refused)
        if self.binds_ids and (stored.calls or stored.result_of):
            conflict = _bind_ids(stored, replayed, pairs)
            if conflict is not None and self.checks_links:
                return Match(is_match=False, differences=(conflict,))
        return Match(is_match=True, differences=differences) if differences else EQUAL

    def _judge_by_ids(
        self,
        stored: NormalMessage,
        replayed: NormalMessage,
        differences: tuple[Difference, ...],
        pairs: IdPairs,
        forms: Collection[str],
        refusal: Match,
    ) -> Match:
        """Return True when a reply that differs is the stored one by its call ids, in a form that may still come."""
        choice = self.replies.on_rewritten_calls
        is_known = bool(stored.calls) and all(call.id for call in stored.calls) and not pairs.renamed
        is_known = is_known and all(each.kind in self.accepted_by_ids for each in differences)
        if choice is OnRewrittenCalls.FORK or not is_known:
            return refusal
        rewrite = stored.recall(find_rewrite, replayed)
        is_open = choice is OnRewrittenCalls.ALWAYS or not forms or not rewrite.form or rewrite.form in forms
        if not is_open:
            refused = tuple(replace(each, kind=DifferenceKind.OTHER_FORM) for each in refusal.differences)
            return Match(is_match=False, differences=refused)
        _bind_ids(stored, replayed, pairs)
        return Match(is_match=True, differences=differences, rewrite=rewrite)


def _bind_ids(stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs) -> Difference | None:
    """Bind the ids of two messages as far as both have calls; return the first conflict, where there is one."""
    for old, new in zip(stored.calls, replayed.calls, strict=False):
        if not pairs.bind(old.id, new.id):
            return differ(DifferenceKind.CALL_LINK, "tool_calls", old.id, new.id)
    if pairs.bind(stored.result_of, replayed.result_of):
        return None
    return differ(DifferenceKind.CALL_LINK, "tool_call_id", stored.result_of, replayed.result_of)


_SPELLING = frozenset({DifferenceKind.ARGUMENTS_SPELLING})
_TOLERABLE = _SPELLING | {
    DifferenceKind.REASONING_TRIMMED,
    DifferenceKind.REASONING_IN_CONTENT,
    DifferenceKind.CALL_ID,
}
_REWRITABLE = _TOLERABLE - {DifferenceKind.CALL_ID} | {DifferenceKind.ARGUMENTS, DifferenceKind.CONTENT_TRIMMED}
_NEVER = {DifferenceKind.OTHER, DifferenceKind.OTHER_FORM}
_ALL_BUT_TEXT = (
    frozenset(DifferenceKind) - _NEVER - {DifferenceKind.ROLE, DifferenceKind.CONTENT, DifferenceKind.CONTENT_TRIMMED}
)

STRICT = FieldMatcher(name="strict", accepted=frozenset())
LOOSE_TOOL_CALL = FieldMatcher(name="loose_tool_call", accepted=_SPELLING)
TOLERANT = FieldMatcher(name="tolerant", accepted=_TOLERABLE, accepted_by_ids=_REWRITABLE)
ROLE_CONTENT_ONLY = FieldMatcher(name="role_content_only", accepted=_ALL_BUT_TEXT, accepted_by_ids=_REWRITABLE)

MATCHERS: Mapping[str, FieldMatcher] = {
    matcher.name: matcher for matcher in (STRICT, LOOSE_TOOL_CALL, TOLERANT, ROLE_CONTENT_ONLY)
}
"""The built-in matchers, each accepting all that the one before accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedMatcher:
    """A function of the user's: ``(stored, replayed) -> bool`` over chat-completions messages."""

    name: str
    """The import path of the function."""
    function: Callable[[Message, Message], Any]
    replies: ReplyRules = DEFAULT_RULES
    """The rules for the built-in matchers with which the function is compared."""

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
        differences = list_differences(stored, replayed)
        if not verdict:
            return Match(is_match=False, differences=differences or (_UNEXPLAINED,))
        _bind_ids(stored, replayed, pairs)
        return Match(is_match=True, differences=differences) if differences else EQUAL

    def match_reply(
        self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs, forms: Collection[str]
    ) -> Match:
        """Ask the function, which alone decides."""
        return self.match(stored, replayed, pairs)


_UNEXPLAINED = differ(DifferenceKind.OTHER, "message", "", "")


def list_looser(matcher: Matcher) -> Iterator[tuple[str, Matcher]]:
    """Yield the settings that accept more than this matcher does, nearest first, each with the matcher that it
    makes."""
    names, rules = list(MATCHERS), matcher.replies
    if isinstance(matcher, FieldMatcher) and matcher.accepted_by_ids:
        choices = list(OnRewrittenCalls)
        for choice in choices[choices.index(rules.on_rewritten_calls) + 1 :]:
            looser = replace(rules, on_rewritten_calls=choice)
            yield f"--on-rewritten-calls {choice}", replace(matcher, replies=looser)
    for name in names[names.index(matcher.name) + 1 :] if matcher.name in names else names:
        yield f"--session-message-matcher {name}", replace(MATCHERS[name], replies=rules)


def load_matcher(selector: str, replies: ReplyRules = DEFAULT_RULES) -> Matcher:
    """Load the matcher of this name, or the function at this import path (``package.module.function``).

    Args:
        selector: what ``--session-message-matcher`` says.
        replies: what the matcher goes by where a stored reply stands.

    Raises:
        ConfigError: neither a built-in name nor the path of a plain function.
    """
    if selector in MATCHERS:
        return replace(MATCHERS[selector], replies=replies)
    module_name, _, function_name = selector.replace(":", ".").rpartition(".")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise _unusable(selector, f"it cannot be imported ({error})") from error
    if not callable(function):
        raise _unusable(selector, "it is not a function")
    if inspect.iscoroutinefunction(function):
        raise _unusable(selector, "it is a coroutine function, and matching does not wait")
    return ImportedMatcher(name=selector, function=function, replies=replies)


def _unusable(selector: str, why: str) -> ConfigError:
    return ConfigError(
        f"--session-message-matcher {selector!r} is not a matcher: {why}",
        hint=f"use one of {', '.join(MATCHERS)}, or package.module.function",
    )
