"""The status of a turn's engine calls, which accounts for the tokens of a turn that is given up while it runs."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class CallStatus:
    """The status of the engine calls of one turn, kept up to date by the runner."""

    has_open_call: bool = False
    """True while an engine call runs whose sampled tokens are unknown; False at the gate, before and between calls."""
    aborted_tokens: int = 0
    """The number of sampled tokens of aborted calls, whether their parts are held or not."""
