"""Replies of this server that come back in another form: known by their call ids, or with reasoning in the content.

Call ids are unique along a session, so a replayed message at the place of a stored reply that has exactly its ids is
that reply, whatever a client made of the arguments. Looks at one reply; knows no path and no forest.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b

from turnkeeper.choices import OnRewrittenCalls
from turnkeeper.matching.arguments import RewriteKind, find_argument_rewrites, spell_arguments
from turnkeeper.matching.normal import NormalMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRules:
    """The rules by which matchers compare a message with a stored reply."""

    thinking_tags: tuple[str, str] | None = None
    """The family's markers before and behind reasoning; None where the family has none."""
    on_rewritten_calls: OnRewrittenCalls = OnRewrittenCalls.FIRST
    """The option that says when a reply with other tool arguments is the stored one by its call ids."""


DEFAULT_RULES = ReplyRules()
"""No thinking tags; the first request decides about rewritten calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """The changes of a replayed reply that is the stored one by its call ids."""

    kinds: tuple[RewriteKind, ...]
    """The kinds of changes, each once, in the order of ``RewriteKind``."""
    form: str
    """32 hex digits over text and arguments by value; empty where both are the stored ones but for white space."""


def find_rewrite(stored: NormalMessage, replayed: NormalMessage) -> Rewrite:
    """Describe the changes of a reply that has the calls of the stored one by id and name, and equal or cut text."""
    kinds: set[RewriteKind] = set()
    if stored.content != replayed.content:
        is_trimmed = stored.content.strip() == replayed.content.strip()
        kinds.add(RewriteKind.TEXT_TRIMMED if is_trimmed else RewriteKind.TEXT_LEFT_OUT)
    for old, new in zip(stored.calls, replayed.calls, strict=True):
        kinds |= find_argument_rewrites(old.arguments, new.arguments)
    is_stored_form = kinds <= {RewriteKind.TEXT_TRIMMED}
    return Rewrite(
        kinds=tuple(kind for kind in RewriteKind if kind in kinds),
        form="" if is_stored_form else _digest_form(replayed.content, (call.arguments for call in replayed.calls)),
    )


def undress(stored: NormalMessage, replayed: NormalMessage, tags: tuple[str, str]) -> NormalMessage | None:
    """Return the replayed reply with the reasoning taken out of its content; None unless that is the stored reasoning.

    ::

        stored      reasoning "why"    content "answer"
        replayed    content "<think>\nwhy\n</think>\n\nanswer"
    """
    opening, closing = tags
    text = replayed.content.lstrip()
    if replayed.content == stored.content or replayed.media or not text.startswith(opening):
        return None
    inside, found, answer = text.removeprefix(opening).partition(closing)
    is_stored = inside.strip() == stored.reasoning.strip()
    if not found or not is_stored or replayed.reasoning.strip() not in ("", inside.strip()):
        return None
    answer = answer.lstrip()
    is_same = answer == stored.content.lstrip()
    return replace(replayed, content=stored.content if is_same else answer, reasoning=inside)


def _digest_form(content: str, arguments: Iterable[str]) -> str:
    """Digest what a reply says, whatever its spelling; each part stands behind its length."""
    parts = (content.strip(), *map(spell_arguments, arguments))
    text = "".join(f"{len(part)} {part}" for part in parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
