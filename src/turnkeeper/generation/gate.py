"""The gate that holds new turns back while the engines are paused.

Owns the open or closed state, the waits on it, and the signal that ends all turns in flight. Knows no engine: pauses
are requested by the trainer or observed by the fleet's monitor.

The gate is closed while the trainer requests a pause or any engine was observed paused. A turn that finds it closed
waits, up to a deadline. A pause near an abort tells an aborted turn that a weight update is the reason.
"""

import asyncio
from math import ceil

from turnkeeper.choices import PauseMode
from turnkeeper.clock import Clock, wait_for_any
from turnkeeper.errors import EnginePausedError, RequestError
from turnkeeper.telemetry import PauseChanged, Publish, ignore_report


class AbortSignal(asyncio.Event):
    """An event that ends the turns in flight: engine calls inside its scopes end when it is set."""

    def __init__(self) -> None:
        """Start unset, with no scope."""
        super().__init__()
        self._scopes: set[asyncio.Timeout] = set()

    def set(self) -> None:
        """End every call inside a scope, and wake everyone who waits for the signal."""
        super().set()
        for scope in self._scopes:
            scope.reschedule(asyncio.get_running_loop().time())

    def open_scope(self) -> asyncio.Timeout:
        """Open a scope for one engine call, which the signal ends with `TimeoutError`; close it with ``close_scope``.

        The call so runs in the turn's own task, without two further tasks for the call and for the signal.
        """
        scope = asyncio.timeout(None)
        self._scopes.add(scope)
        return scope

    def close_scope(self, scope: asyncio.Timeout) -> None:
        """Remove the scope of a call that is over."""
        self._scopes.discard(scope)


class Gate:
    """The gate in front of all engines, used within one event loop."""

    def __init__(self, clock: Clock, *, publish: Publish = ignore_report) -> None:
        """Start open; each closing and each opening is published."""
        self._clock = clock
        self._publish = publish
        self._closed_at = 0.0
        self._closed_mode: PauseMode | None = None
        self._requested: PauseMode | None = None
        self._observed: set[str] = set()
        self._opened = asyncio.Event()
        self._closed = asyncio.Event()
        self._opened.set()
        self._abort_signal = AbortSignal()
        self.closings = 0
        """The number of times that the gate has closed. If two readings are equal, no pause began between them."""
        self.requested_changes = 0
        """The number of requests of the trainer to pause or continue. A status that was asked for before is out of
        date."""
        self.last_mode: PauseMode | None = None
        """The mode of the newest pause that the trainer requested; None when it requested none."""

    @property
    def is_open(self) -> bool:
        """True if new turns may start."""
        return self._opened.is_set()

    @property
    def mode(self) -> PauseMode | None:
        """The mode of the pause that the trainer requested and has not ended; None otherwise."""
        return self._requested

    @property
    def abort_signal(self) -> AbortSignal:
        """The signal that ends the turns in flight now; later turns get another one."""
        return self._abort_signal

    def pause(self, mode: PauseMode) -> None:
        """Close the gate on request of the trainer. A repeated request changes nothing.

        Raises:
            RequestError: the engines are paused in another mode.
        """
        if self._requested not in (None, mode):
            raise RequestError(
                f"the engines are paused in mode {self._requested}, so they cannot be paused in mode {mode}",
                hint="continue first",
            )
        self._requested = self.last_mode = mode
        self.requested_changes += 1
        self._update()

    def resume(self) -> None:
        """Open the gate on request of the trainer, and forget which engines were observed paused."""
        self._requested = None
        self._observed.clear()
        self.requested_changes += 1
        self._update()

    def observe(self, url: str, *, is_paused: bool) -> None:
        """Note that an engine was observed paused, or not paused."""
        if is_paused:
            self._observed.add(url)
        else:
            self._observed.discard(url)
        self._update()

    def abort_turns(self) -> None:
        """End every turn in flight, those that wait at the gate included."""
        self._abort_signal.set()
        self._abort_signal = AbortSignal()

    def _update(self) -> None:
        is_open = self._requested is None and not self._observed
        if is_open == self.is_open:
            return
        now = self._clock.now()
        if is_open:
            self._closed.clear()
            self._opened.set()
        else:
            self._opened.clear()
            self._closed.set()
            self.closings += 1
            self._closed_at, self._closed_mode = now, self._requested
        self._publish(
            PauseChanged(
                at=self._clock.unix(),
                is_paused=not is_open,
                mode=None if self._closed_mode is None else str(self._closed_mode),
                seconds=now - self._closed_at if is_open else 0.0,
            )
        )

    async def wait_open(self, timeout_s: float, signal: asyncio.Event) -> None:
        """Wait until new turns may start, or until ``signal`` is set.

        Raises:
            EnginePausedError: the engines stayed paused for ``timeout_s``.
        """
        if self.is_open or await wait_for_any(self._clock, timeout_s, self._opened, signal):
            return
        raise EnginePausedError(
            f"the engines have been paused for longer than the {timeout_s:g} s that a turn waits",
            hint="the trainer has not continued them; --gate-timeout sets the wait",
            retry_after_s=max(1, min(30, ceil(timeout_s / 10))),
        )

    async def wait_until_closed(self) -> None:
        """Wait until the gate is closed, without a limit."""
        await self._closed.wait()

    async def wait_closed(self, timeout_s: float, signal: asyncio.Event) -> bool:
        """Wait for a pause; return False when none began in time, or when ``signal`` was set."""
        if not self.is_open:
            return True
        closings = self.closings
        await wait_for_any(self._clock, timeout_s, self._closed, signal)
        return self.closings != closings
