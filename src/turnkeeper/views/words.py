"""Numbers as people read them: counts with their noun, and spans of time. Pure."""


def count(number: int, noun: str) -> str:
    """Name a number of things: ``1 turn``, ``2 turns``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_seconds(seconds: float) -> str:
    """Format a span of time: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
