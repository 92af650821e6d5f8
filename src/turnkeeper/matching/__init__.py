"""Matchers, which decide whether a replayed message is the stored one, and the differences between two messages."""

from turnkeeper.matching.arguments import RewriteKind
from turnkeeper.matching.difference import Difference, DifferenceKind, list_differences
from turnkeeper.matching.matcher import (
    MATCHERS,
    TOLERANT,
    FieldMatcher,
    IdPairs,
    Match,
    Matcher,
    list_looser,
    load_matcher,
)
from turnkeeper.matching.normal import NormalMessage, normalize
from turnkeeper.matching.reply import DEFAULT_RULES, ReplyRules, Rewrite

__all__ = [
    "DEFAULT_RULES",
    "MATCHERS",
    "TOLERANT",
    "Difference",
    "DifferenceKind",
    "FieldMatcher",
    "IdPairs",
    "Match",
    "Matcher",
    "NormalMessage",
    "ReplyRules",
    "Rewrite",
    "RewriteKind",
    "list_differences",
    "list_looser",
    "load_matcher",
    "normalize",
]
