"""The controller of engines: it makes the calls of a control action (pause, flush, load, continue, ...) on an engine.

Owns the kind of each engine and what counts as success. `turnkeeper.engines.control` has the calls of each kind; the
caller decides which engine is controlled first.
"""

from typing import cast

import orjson

from turnkeeper.choices import EngineKind
from turnkeeper.clock import Clock
from turnkeeper.engines.control import ControlAction, ControlCall, ControlWire, choose_control_wire
from turnkeeper.engines.net.client import EngineClient, HttpReply
from turnkeeper.engines.refusal import read_error_text
from turnkeeper.errors import EngineError
from turnkeeper.fleet.connect import detect_kind
from turnkeeper.jsontypes import JsonObject

_BUSY_WAIT_S = 0.1
"""The time between two calls to an engine that is not idle yet."""

_DEV_MODE = "vLLM has its control routes only with VLLM_SERVER_DEV_MODE=1"
_HINTS = {
    "/flush_cache": "turns are still in flight on the engine",
    "/reset_prefix_cache": "turns are still in flight on the engine",
    "/release_memory_occupation": "the engine must be idle: pause mode abort ends its turns",
    "/pause?mode=abort": _DEV_MODE,
    "/pause?mode=keep": _DEV_MODE,
}


class EngineController:
    """Controls engines, whose kinds it detects once."""

    def __init__(
        self,
        client: EngineClient,
        clock: Clock,
        *,
        kind: EngineKind = EngineKind.AUTO,
        timeout_s: float,
        idle_timeout_s: float = 0.0,
    ) -> None:
        """Control engines.

        Args:
            client: makes the calls; the caller closes it.
            clock: for the waits.
            kind: the kind of the engines; auto detects that of each engine once.
            timeout_s: the longest that one call may take.
            idle_timeout_s: the longest that an engine may take to become idle for a call that needs it.
        """
        self._client = client
        self._clock = clock
        self._kind = kind
        self._timeout_s = timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._wires: dict[str, ControlWire] = {}

    async def send(self, url: str, action: ControlAction) -> None:
        """Make the calls of an action on one engine, one after the other.

        Raises:
            EngineError: the engine was not reached, or refused a call; the message names the URL.
            ConfigError: the engine's kind has no such action.
        """
        for call in action(await self.find_wire(url)):
            await self.post(url, call)

    async def find_wire(self, url: str) -> ControlWire:
        """Find the control routes of one engine.

        Raises:
            EngineError: the engine was not reached.
        """
        if url not in self._wires:
            found = await detect_kind(url, self._client) if self._kind is EngineKind.AUTO else self._kind
            self._wires[url] = choose_control_wire(found)
        return self._wires[url]

    async def post(self, url: str, call: ControlCall) -> None:
        """Make one call; repeat it while the engine is not idle, where the call needs an idle engine.

        Raises:
            EngineError: the engine was not reached, or refused the call; the message names the URL.
        """
        deadline = self._clock.now() + self._idle_timeout_s
        while True:
            reply = await self._client.post_json(
                f"{url}{call.path}", orjson.dumps(call.body), timeout_s=self._timeout_s
            )
            if reply.status == 200 and is_success(reply):
                return
            is_busy = call.waits_for_idle and reply.status in (200, 400)
            if not is_busy or self._clock.now() >= deadline:
                raise EngineError(
                    f"{url}{call.path} answered {reply.status}: {read_error_text(reply)}",
                    hint=_HINTS.get(call.path, ""),
                    url=url,
                )
            await self._clock.sleep(_BUSY_WAIT_S)


def is_success(reply: HttpReply) -> bool:
    """Return False for a 200 that reports a failure inside: update and cache routes write ``"success": false``."""
    try:
        value: object = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return True
    return not (isinstance(value, dict) and cast(JsonObject, value).get("success") is False)
