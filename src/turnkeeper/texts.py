"""Plain texts: how far two agree, how a long one is quoted, what one hides from a reader, which name one means."""

import difflib
import re
from collections.abc import Iterable

_PARTS = re.compile(r"[a-z0-9]+")

USERINFO = re.compile(r"(?<=//)[^/?#\s]*@")
"""User and password of a URL in a text, with the at sign behind them."""


def count_common_prefix(left: str, right: str) -> int:
    """Count the leading characters that two texts share, by bisection: slices compare at memory speed."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shorten(text: str, limit: int = 60) -> str:
    """Cut a text to so many characters; one that was cut ends with three dots."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def escape_controls(text: str) -> str:
    """Spell out the characters with which a text could steer a terminal, or turn the order of what it shows.

    Line feeds and tabs stay; ``\\x1b`` stands for the escape character.
    """
    return _CONTROLS.sub(_spell, text)


def _spell(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def guess_name(word: str, names: Iterable[str]) -> str | None:
    """Guess which name a misspelt word stands for.

    Args:
        word: as it was written.
        names: those that there are.

    Returns:
        The name with the most in common, or the only one that has all of the word's parts; None where neither is near.
    """
    names = list(names)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.7)
    if near:
        return near[0]
    parts = set(_PARTS.findall(word))
    longer = [name for name in names if parts and parts <= set(_PARTS.findall(name))]
    return longer[0] if len(longer) == 1 else None
