"""Orders of a trainer, given to engines: to each the calls that its kind has for the order, one after the other.

Owns which kind an engine is and what counts as success. What an order means for a kind stands in
`turnkeeper.engines.control`; in which order engines are told is the caller's.
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
"""Between two calls to an engine that is not idle yet."""

_DEV_MODE = "vLLM has its control routes only with VLLM_SERVER_DEV_MODE=1"
_HINTS = {
    "/flush_cache": "turns are still in flight on the engine",
    "/reset_prefix_cache": "turns are still in flight on the engine",
    "/release_memory_occupation": "the engine must be idle: pause mode abort ends its turns",
    "/pause?mode=abort": _DEV_MODE,
    "/pause?mode=keep": _DEV_MODE,
}


class EngineController:
    """Gives orders to engines, and finds out once of which kind each engine is."""

    def __init__(
        self,
        client: EngineClient,
        clock: Clock,
        *,
        kind: EngineKind = EngineKind.AUTO,
        timeout_s: float,
        idle_timeout_s: float = 0.0,
    ) -> None:
        """Give orders.

        Args:
            client: makes the calls; the caller closes it.
            clock: for the waits.
            kind: what the engines are; auto asks each of them once.
            timeout_s: the longest one call may take.
            idle_timeout_s: how long an engine may take to become idle for a call that needs that.
        """
        self._client = client
        self._clock = clock
        self._kind = kind
        self._timeout_s = timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._wires: dict[str, ControlWire] = {}

    async def send(self, url: str, action: ControlAction) -> None:
        """Give one engine an order.

        Raises:
            EngineError: the engine was not reached, or refused a call; names the URL.
            ConfigError: the engine's kind cannot do this.
        """
        for call in action(await self.find_wire(url)):
            await self.post(url, call)

    async def find_wire(self, url: str) -> ControlWire:
        """The control routes of one engine.

        Raises:
            EngineError: the engine was not reached.
        """
        if url not in self._wires:
            found = await detect_kind(url, self._client) if self._kind is EngineKind.AUTO else self._kind
            self._wires[url] = choose_control_wire(found)
        return self._wires[url]

    async def post(self, url: str, call: ControlCall) -> None:
        """Make one call, again and again while the engine is not idle yet and the call waits for that.

        Raises:
            EngineError: the engine was not reached, or refused; names the URL.
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
    """Whether a 200 is one: update and cache routes say ``"success": false`` inside."""
    try:
        value: object = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return True
    return not (isinstance(value, dict) and cast(JsonObject, value).get("success") is False)
