"""Is this the stored message? Matchers, and in what two messages differ."""

from turnkeeper.matching.difference import Difference, DifferenceKind, find_differences
from turnkeeper.matching.matcher import MATCHERS, TOLERANT, IdPairs, Match, Matcher, load_matcher
from turnkeeper.matching.normal import NormalMessage, normalize

__all__ = [
    "MATCHERS",
    "TOLERANT",
    "Difference",
    "DifferenceKind",
    "IdPairs",
    "Match",
    "Matcher",
    "NormalMessage",
    "find_differences",
    "load_matcher",
    "normalize",
]
