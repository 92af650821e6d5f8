"""The operator's hook on engine calls, as trainers know it: it adds to each call, and says when one is sent again.

::

    hook(args, context, request)                 once a call, before it is sent; may be a coroutine function

    args      the object of --custom-rollout-request-hook-args
    context   context.session_id
    request   {"payload": {...}, "headers": {...}, "max_attempts": 1, "retry_interval": 1.0}

The hook changes the request in place, or returns an object whose members replace the request's. It may add headers, and
fields that stand on no list to the payload; the payload's own fields are the turn's, and stay as they are. A call is
sent again where nothing was sampled for it: the engine answered 409 or 429, or no connection was made.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import orjson

from turnkeeper.engines.engine import Engine, GenerateRequest, Generation, IdsSink
from turnkeeper.engines.sglang.chat import OWNED_FIELDS
from turnkeeper.engines.wrapper import EngineWrapper
from turnkeeper.errors import ConfigError, EngineError, RequestHookError
from turnkeeper.fields import find_field
from turnkeeper.jsontypes import JsonObject, encode_json, is_number, is_object
from turnkeeper.logs import LogEvent

logger = logging.getLogger("turnkeeper.engines")

OPTION = "--custom-rollout-request-hook-path"

_BUSY = (409, 429)
"""The statuses by which an engine, or a gate before it, turns a call away before anything is sampled."""
_OWNED_HEADERS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection"})
"""Headers that belong to the body and the connection, which a hook does not make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The facts of a call that a hook gets beside the request."""

    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHook:
    """A hook with its arguments."""

    path: str
    """The import path, for messages."""
    function: Callable[[JsonObject, RequestContext, JsonObject], Any]
    args: JsonObject

    async def prepare(self, request: GenerateRequest) -> "PreparedCall":
        """Call the hook with a request, and apply what it returns.

        Raises:
            RequestHookError: the hook raised, or changed what belongs to the turn.
        """
        payload = render_payload(request)
        given: JsonObject = {
            "payload": orjson.loads(payload),
            "headers": dict(request.trace),
            "max_attempts": 1,
            "retry_interval": 1.0,
        }
        try:
            result = self.function(self.args, RequestContext(session_id=request.session_id), given)
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:
            raise self._refuse(f"failed: {type(error).__name__}: {error}") from error
        if result is not None and not is_object(result):
            raise self._refuse(f"must return None or an object, got {type(result).__name__}")
        return self._read({**given, **(result or {})}, orjson.loads(payload), request)

    def _read(self, prepared: JsonObject, payload: JsonObject, request: GenerateRequest) -> "PreparedCall":
        asked, headers = prepared["payload"], prepared["headers"]
        attempts, interval_s = prepared["max_attempts"], prepared["retry_interval"]
        if not is_object(asked) or not is_object(headers) or not all(map(_is_header, headers.items())):
            raise self._refuse("must leave payload an object, and headers an object of strings")
        if not is_number(attempts) or attempts < 1 or not is_number(interval_s) or not 0 <= interval_s < float("inf"):
            raise self._refuse(
                "must leave max_attempts at 1 or more and retry_interval at 0 or more, "
                f"got {attempts!r} and {interval_s!r}"
            )
        changed = [name for name in payload if name not in asked or asked[name] != payload[name]]
        added = {name: value for name, value in asked.items() if name not in payload}
        changed += [name for name in added if name in OWNED_FIELDS or find_field(name) is not None]
        if changed:
            raise self._refuse(f"changed {', '.join(sorted(changed))}: it may add fields that stand on no list")
        own = {name.lower(): value for name, value in headers.items() if name.lower() not in _OWNED_HEADERS}
        logger.debug(LogEvent("hook_called", rid=request.rid, hook=self.path, fields=len(added), headers=len(own)))
        hooked = replace(request, forwarded={**request.forwarded, **added}, headers=own)
        return PreparedCall(request=hooked, attempts=int(attempts), interval_s=float(interval_s))

    def _refuse(self, problem: str) -> RequestHookError:
        return RequestHookError(f"the hook {self.path} {problem}", hint=f"{OPTION} names it", hook=self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A call as the hook changed it."""

    request: GenerateRequest
    attempts: int
    """The number of times that the call is made at most."""
    interval_s: float
    """The seconds between two attempts."""


def render_payload(request: GenerateRequest) -> bytes:
    """Render the payload that a hook sees: the turn's fields under the names of chat completions, without its ids."""
    fields = {**request.forwarded, **request.sampling}
    return encode_json({**fields, "messages": list(request.messages), "tools": list(request.tools), "rid": request.rid})


def _is_header(pair: tuple[str, Any]) -> bool:
    """Return True for a name and a value that HTTP can carry."""
    name, value = pair
    is_name = name.isascii() and bool(name) and name.replace("-", "").replace("_", "").isalnum()
    return is_name and isinstance(value, str) and not any(character in value for character in "\r\n\0")


def load_request_hook(path: str | None, args: Mapping[str, Any]) -> RequestHook | None:
    """Find the hook; None without a path.

    Raises:
        ConfigError: nothing is there, or it is not callable.
    """
    if path is None:
        return None
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        function: Any = getattr(import_module(module), name)
    except Exception as error:  # a module of the user's may raise anything while it is imported
        raise ConfigError(
            f"{OPTION} {path} cannot be imported: {type(error).__name__}: {error}",
            hint="give package.module.function",
        ) from error
    if not callable(function):
        raise ConfigError(f"{OPTION} must name a function, {path} is {function!r}")
    return RequestHook(path=path, function=function, args=dict(args))


class HookedEngine(EngineWrapper):
    """An engine whose turns pass through a request hook first; other calls do not."""

    def __init__(
        self, engine: Engine, hook: RequestHook, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        """Ask the hook before each call of the engine; ``sleep`` waits between attempts."""
        super().__init__(engine)
        self._hook = hook
        self._sleep = sleep

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        """Generate one reply; repeat the call as often as the hook allows while the engine refuses it as busy.

        Raises:
            RequestHookError: the hook raised, or broke its contract.
        """
        call = await self._hook.prepare(request)
        for _ in range(call.attempts - 1):
            try:
                return await self._engine.generate(call.request, on_ids=on_ids)
            except EngineError as error:
                if error.facts.get("engine_status") not in _BUSY and error.facts.get("accepted") is not False:
                    raise
            await self._sleep(call.interval_s)
        return await self._engine.generate(call.request, on_ids=on_ids)
