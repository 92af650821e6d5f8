"""How far a turn has come at the engines, for whoever gives it up while it runs."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class CallStatus:
    """Kept up to date by the runner."""

    has_open_call: bool = False
    """Whether an engine was called and has not told what it sampled: false at the gate, before and between calls."""
    aborted_tokens: int = 0
    """Sampled tokens of the calls that were cut short, whether their pieces are held or not."""
