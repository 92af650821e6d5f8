"""When the client asks a server again, and after which time. Pure.

::

    what became of the call                                               a request that
                                                                          may be repeated | may not
    no connection, or 429/503 with Retry-After: the server did nothing    again           | again
    connection lost, no answer in time, an answer of something between    again           | raised
    anything else: asking again changes nothing                           raised          | raised

A ``Retry-After`` is kept to; other waits double from one to the next. Each gets a random part, so that many clients of
one server do not come back in the same moment.
"""

from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.errors import ServerReplyError, ServerUnreachableError, TurnkeeperError


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often, and for how long, a call that failed is made again."""

    attempts: int = 6
    """The most calls that are made, the first one included; 1 makes no second one."""
    total_s: float = 60.0
    """No call begins later than so many seconds after the first one. Where the server asks for a longer wait, its
    error is raised at once."""
    first_wait_s: float = 0.5
    """The wait before the second call, where the server names none; it doubles from call to call."""
    longest_wait_s: float = 8.0
    """The longest wait that the client chooses itself."""

    def find_wait(self, calls: int, *, elapsed_s: float, asked_s: float | None, chance: float) -> float | None:
        """Find the seconds to wait before the next call; None where there is none.

        Args:
            calls: the calls that were made, at least one.
            elapsed_s: the seconds since the first one began.
            asked_s: the wait that the server asks for; None where it asks for none.
            chance: a random number from 0 to 1.
        """
        backoff_s = min(self.longest_wait_s, self.first_wait_s * 2 ** min(calls - 1, 32))
        wait_s = (0.5 * backoff_s if asked_s is None else asked_s) + 0.5 * backoff_s * chance
        return None if calls >= self.attempts or elapsed_s + wait_s > self.total_s else wait_s


NO_RETRY = Retry(attempts=1)
"""Makes every call once."""


class Fate(StrEnum):
    """What a failed call did to the server."""

    REFUSED = "refused"
    """Nothing; the server may do it later."""
    UNKNOWN = "unknown"
    """It may have been served, with the reply lost."""
    FINAL = "final"
    """Nothing, and asking again changes nothing."""


def judge(error: TurnkeeperError) -> Fate:
    """Tell what a call that failed with this error did to the server."""
    status = error.facts.get("status")
    if error.facts.get("is_final"):
        return Fate.FINAL
    if isinstance(error, ServerUnreachableError):
        return Fate.UNKNOWN if error.facts.get("is_sent") else Fate.REFUSED
    if status in (429, 503) and "retry_after_s" in error.facts:
        return Fate.REFUSED
    if status in (408, 429, 503) or (isinstance(error, ServerReplyError) and status in (502, 504)):
        return Fate.UNKNOWN
    return Fate.FINAL
