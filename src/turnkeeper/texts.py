"""Plain texts: how far two agree, how a long one is quoted, where URLs hold secrets, what a terminal may show."""

import re

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
