"""What is compared: a pause mode, with the option that matters in it, and how its tokens are sampled."""

from dataclasses import dataclass

from turnkeeper.choices import OnAbort, PauseMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to run a session server through updates."""

    name: str
    mode: PauseMode
    on_abort: OnAbort = OnAbort.RESTART
    options: tuple[str, ...] = ()
    """More of the session server's command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the agents of a round ask for their tokens to be drawn."""

    temperature: float
    top_p: float = 0.9


COOL, HOT = Sampling(temperature=1.0), Sampling(temperature=1.6)
"""At the first the model is so sure of itself that top-p leaves one id for most tokens; at the second it is not."""

WIDE_SHARE = 0.1
"""The least share of a hot round's tokens whose masks hold more than one id, without which it shows little of masks."""


CASES = (
    Case(name="in_place", mode=PauseMode.IN_PLACE),
    Case(name="in_place, salted", mode=PauseMode.IN_PLACE, options=("--cache-salt-by-version",)),
    Case(name="retract", mode=PauseMode.RETRACT),
    *(
        Case(name=f"abort, {choice}", mode=PauseMode.ABORT, on_abort=choice, options=("--on-abort", choice.value))
        for choice in OnAbort
    ),
)
"""All pause modes; abort with each answer to an aborted turn, in_place with and without a prefix cache per version."""
