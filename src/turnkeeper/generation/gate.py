"""Whether engines take new turns: told by the trainer, or seen at the engines themselves.

Owns the open or closed state, the waits on it, and the signal that ends all turns in flight. Knows no engine: what
was seen comes from `watch`.

The gate is closed while the trainer says so or any engine was seen paused. A turn that finds it closed waits, up to
a deadline; a turn that was aborted looks here to learn whether a weight update explains it.
"""

import asyncio
from math import ceil

from turnkeeper.choices import PauseMode
from turnkeeper.clock import Clock, wait_for_any
from turnkeeper.errors import EnginePausedError, RequestError


class AbortSignal(asyncio.Event):
    """Set when the turns that are in flight now are ended; it ends the engine calls that run inside its scopes."""

    def __init__(self) -> None:
        """Not set, and no call runs."""
        super().__init__()
        self._scopes: set[asyncio.Timeout] = set()

    def set(self) -> None:
        """End every call, and whatever waits for the signal."""
        super().set()
        for scope in self._scopes:
            scope.reschedule(asyncio.get_running_loop().time())

    def open_scope(self) -> asyncio.Timeout:
        """A scope for one engine call, which the signal ends with `TimeoutError`; give it to ``close_scope`` behind it.

        It runs inside the turn's own task, and so takes the place of two more: one for the call and one for the signal.
        """
        scope = asyncio.timeout(None)
        self._scopes.add(scope)
        return scope

    def close_scope(self, scope: asyncio.Timeout) -> None:
        """Forget the scope of a call that is over."""
        self._scopes.discard(scope)


class Gate:
    """One gate in front of all engines; used within one event loop."""

    def __init__(self, clock: Clock) -> None:
        """An open gate."""
        self._clock = clock
        self._requested: PauseMode | None = None
        self._observed: set[str] = set()
        self._opened = asyncio.Event()
        self._closed = asyncio.Event()
        self._opened.set()
        self._abort_signal = AbortSignal()
        self.closings = 0
        """How often the gate has closed: unchanged over a stretch means that no pause began in it."""
        self.requested_changes = 0
        """How often the trainer has spoken; a look at an engine that began before is out of date."""
        self.last_mode: PauseMode | None = None
        """The mode of the newest pause that the trainer told; None when it never told one."""

    @property
    def is_open(self) -> bool:
        """Whether new turns may start."""
        return self._opened.is_set()

    @property
    def mode(self) -> PauseMode | None:
        """The mode of the pause that the trainer told and has not ended; None otherwise."""
        return self._requested

    @property
    def abort_signal(self) -> AbortSignal:
        """Set when the turns that are in flight now are ended; later turns get another one."""
        return self._abort_signal

    def pause(self, mode: PauseMode) -> None:
        """The trainer pauses the engines. Repeating it is harmless.

        Raises:
            RequestError: they are paused in another mode.
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
        """The trainer lets the engines go on, whatever was seen before. Repeating it is harmless."""
        self._requested = None
        self._observed.clear()
        self.requested_changes += 1
        self._update()

    def observe(self, url: str, *, is_paused: bool) -> None:
        """An engine was seen paused, or not."""
        if is_paused:
            self._observed.add(url)
        else:
            self._observed.discard(url)
        self._update()

    def abort_turns(self) -> None:
        """End every turn in flight, those that wait here included."""
        self._abort_signal.set()
        self._abort_signal = AbortSignal()

    def _update(self) -> None:
        is_open = self._requested is None and not self._observed
        if is_open == self.is_open:
            return
        if is_open:
            self._closed.clear()
            self._opened.set()
        else:
            self._opened.clear()
            self._closed.set()
            self.closings += 1

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
        """Return once the gate is closed, however long that takes."""
        await self._closed.wait()

    async def wait_closed(self, timeout_s: float, signal: asyncio.Event) -> bool:
        """Wait for a pause; False when none began in time, or when ``signal`` was set."""
        if not self.is_open:
            return True
        closings = self.closings
        await wait_for_any(self._clock, timeout_s, self._closed, signal)
        return self.closings != closings
