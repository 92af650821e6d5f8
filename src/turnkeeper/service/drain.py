"""How a server stops without losing what it holds: no new sessions and turns, the rest goes on until nothing is left.

::

    serving --begin--> draining --> nothing is left, or the time is up --> the process ends

While a server drains, turns in flight are finished, delivered and joined by their exact retries, and sessions can be
read, collected and deleted. Knows no signals and no sockets: `turnkeeper.server.serve` begins the drain and ends the
process.
"""

import logging
from collections.abc import Callable

from turnkeeper.clock import Clock
from turnkeeper.errors import ServerDrainingError

logger = logging.getLogger("turnkeeper")

POLL_INTERVAL_S = 0.1
"""How often a draining server looks whether anything is left."""

RETRY_AFTER_S = 5
"""When a refused client may ask again: another server may stand behind the address by then."""


class Drain:
    """The state of a drain: whether the server is stopping, and the wait for what is left."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_draining = False
        """True once the server was told to stop."""

    def check(self, what: str) -> None:
        """Refuse something new while the server drains.

        Args:
            what: what is refused, in the plural, for the message.

        Raises:
            ServerDrainingError: the server was told to stop.
        """
        if self.is_draining:
            raise ServerDrainingError(
                f"the server is stopping and takes no new {what}",
                hint="sessions that exist can be read, collected and deleted until it has stopped",
                retry_after_s=RETRY_AFTER_S,
            )

    async def run(self, *, timeout_s: float, is_over: Callable[[], bool], describe: Callable[[], str]) -> None:
        """Take nothing new from now on, and wait until nothing is left or the time is up.

        Args:
            timeout_s: the longest wait.
            is_over: whether nothing is left.
            describe: what is left, in words for the log.
        """
        self.is_draining = True
        deadline = self._clock.now() + timeout_s
        if not is_over():
            logger.warning(
                "something is left (%s): the server stops once sessions are deleted, after %g s, or at a second signal",
                describe(),
                timeout_s,
            )
        while not is_over() and self._clock.now() < deadline:
            await self._clock.sleep(min(POLL_INTERVAL_S, deadline - self._clock.now()))
        if not is_over():
            logger.warning("the drain timeout of %g s is over with something left (%s)", timeout_s, describe())
