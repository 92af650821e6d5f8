"""SGLang's chat wire: ``/v1/chat/completions`` with ``input_ids``.

Owns the layout of that request and reply, and the worker routes beside it. SGLang never renders the prompt: it gets
ids, and parses only its own output into a message. `check` compares the numbers of a reply.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import orjson

from turnkeeper.channels import CHANNELS
from turnkeeper.choices import EngineWire
from turnkeeper.engines.engine import (
    EngineState,
    EngineStatus,
    GenerateRequest,
    Generation,
    IdsSink,
    RelayReply,
    RelayRequest,
)
from turnkeeper.engines.message import canonicalise_message
from turnkeeper.engines.meta import build_generation, read_version
from turnkeeper.engines.net.client import (
    ROUTING_KEY,
    EngineClient,
    HttpReply,
    select_reply_headers,
    select_request_headers,
)
from turnkeeper.engines.offload import offload
from turnkeeper.engines.refusal import build_status_error
from turnkeeper.engines.reply import Body, ReplyBody, expect_object, parse_reply
from turnkeeper.engines.wire_fields import find_dropped, select_fields
from turnkeeper.errors import EngineError, EngineProtocolError
from turnkeeper.fields import Wire
from turnkeeper.headers import JSON_HEADERS, TRACE_HEADERS
from turnkeeper.jsontypes import JsonObject
from turnkeeper.texts import USERINFO

SHORT_CALL_TIMEOUT_S = 10.0
"""The longest that a short call may take, such as an abort, a status or a list of workers."""

OWNED_FIELDS = frozenset(
    {
        "input_ids",
        "messages",
        "tools",
        "stream",
        "stream_options",
        "n",
        "logprobs",
        "return_meta_info",
        "no_stop_trim",
        "rid",
        "return_token_ids",
    }
)
"""Body fields that turnkeeper sets, beside those of side channels; a request cannot forward them."""


def render_chat_body(request: GenerateRequest) -> bytes:
    """Render the request body."""
    fields = select_fields(request, Wire.CHAT)
    body: JsonObject = select_forwarded(fields.forwarded)
    body |= fields.format | fields.sampling
    if request.tools:
        body["tools"] = list(request.tools)
    if request.chat_template_kwargs:
        body["chat_template_kwargs"] = dict(request.chat_template_kwargs)
    if request.stop_token_ids:
        body["stop_token_ids"] = merge_stop_ids(body.get("stop_token_ids"), request.stop_token_ids)
    if request.cache_salt is not None:
        body["cache_salt"] = request.cache_salt
    body |= {"stream": False, "logprobs": True, "return_meta_info": True, "no_stop_trim": False, "rid": request.rid}
    body |= request.render_asked(Wire.CHAT) | render_lora_field(request)
    return request.render_body("input_ids", body, has_messages=True)


def select_forwarded(fields: Mapping[str, Any]) -> JsonObject:
    """Return the forwarded fields without those that turnkeeper sets."""
    return {key: value for key, value in fields.items() if key not in OWNED_FIELDS and key not in CHANNELS.fields}


def render_lora_field(request: GenerateRequest) -> JsonObject:
    """Render the field that chooses the LoRA adapter; empty where the base weights are sampled."""
    return {} if request.lora_name is None else {"lora_path": request.lora_name}


def merge_stop_ids(given: object, added: tuple[int, ...]) -> list[int]:
    """Join the stop ids of the request with those of the model family, each once."""
    own: list[int] = []
    if isinstance(given, int) and not isinstance(given, bool):
        own = [given]
    elif isinstance(given, list):
        own = [item for item in cast(list[object], given) if isinstance(item, int)]
    return list(dict.fromkeys([*own, *added]))


def parse_chat_reply(body: Body, url: str, request: GenerateRequest | None = None) -> Generation:
    """Parse the body of a 200; payloads that the request did not ask for are ignored.

    Raises:
        EngineProtocolError: there is no choice or several, no message, no ``meta_info``, or the logprobs are malformed.
    """
    reply = parse_reply(body, url, cut_logprobs=True, list_keys=() if request is None else request.list_keys)
    choices = reply.value.get("choices")
    if not isinstance(choices, list) or len(cast(list[object], choices)) != 1:
        found = f"{len(cast(list[object], choices))} choices" if isinstance(choices, list) else "no choices"
        raise EngineProtocolError(f"the engine at {url} answered {found}, expected exactly 1", url=url)
    choice = expect_object(cast(list[object], choices)[0], "choices[0]", url)
    meta = expect_object(
        choice.get("meta_info"),
        "choices[0].meta_info",
        url,
        hint="the route drops return_meta_info and input_ids: sglang-router 0.3.2 does, smg does not",
    )
    return build_generation(
        reply,
        meta,
        url,
        request,
        Wire.CHAT,
        message=canonicalise_message(expect_object(choice.get("message"), "choices[0].message", url), url),
        finish_reason=choice.get("finish_reason"),
        matched_stop=choice.get("matched_stop"),
    )


def render_headers(request: GenerateRequest) -> list[tuple[str, str]]:
    """Render the headers of a call: routing key, the client's trace headers, and those of the operator's hook."""
    trace = [(name, value) for name, value in request.trace.items() if name in TRACE_HEADERS]
    own = [*JSON_HEADERS.items(), (ROUTING_KEY, request.session_id), *trace]
    return [*(pair for pair in own if pair[0].lower() not in request.headers), *request.headers.items()]


class SglangEngine:
    """The chat wire of one SGLang server, or of one router in front of several."""

    wire: EngineWire = EngineWire.CHAT
    """The route on which turns are generated."""

    def __init__(self, url: str, client: EngineClient) -> None:
        """Call the server at ``url`` through a shared client, which the caller closes."""
        self.url = url.rstrip("/")
        self._client = client

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        # The chat route streams text and no ids, so on_ids is never called.
        body = ReplyBody(holds_payloads=request.expects_payloads)
        reply = await self._client.call_into(
            body,
            f"{self.url}/v1/chat/completions",
            body=render_chat_body(request),
            headers=render_headers(request),
            is_large=request.expects_large_reply,
        )
        if reply.status != 200:
            raise build_status_error(reply, len(request.prompt_ids))
        found = await offload(lambda: parse_chat_reply(body, self.url, request), len(body.text))
        dropped = find_dropped(request, Wire.CHAT)
        return replace(found, dropped_fields=dropped) if dropped else found

    async def relay(self, call: RelayRequest) -> RelayReply:
        return await relay_call(self.url, self._client, call)

    async def abort(self, rid: str) -> None:
        # A router has no route for aborts, so each of its workers is asked.
        body = orjson.dumps({"rid": rid, "abort_all": False})
        try:
            reply = await self._client.post_json(f"{self.url}/abort_request", body, timeout_s=SHORT_CALL_TIMEOUT_S)
            if reply.status == 404:
                calls = [
                    self._client.post_json(f"{worker}/abort_request", body, timeout_s=SHORT_CALL_TIMEOUT_S)
                    for worker in await self.list_workers()
                ]
                await asyncio.gather(*calls, return_exceptions=True)
        except EngineError:
            return

    async def list_workers(self) -> tuple[str, ...]:
        """List the workers behind a router; empty where the server is no router."""
        reply = await self._client.call("GET", f"{self.url}/workers", timeout_s=SHORT_CALL_TIMEOUT_S)
        return read_workers(reply)

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        return (replace(await fetch_server_status(self.url, self._client), wire=self.wire),)

    async def close(self) -> None:
        """Do nothing: the client is the caller's."""


async def relay_call(url: str, client: EngineClient, call: RelayRequest) -> RelayReply:
    """Pass a call through to the server at ``url``, headers selected in both directions.

    Raises:
        EngineError: no connection, or a broken reply.
        EngineProtocolError: its status is none that a response can have.
    """
    target = f"{url}{call.path}" + (f"?{call.query}" if call.query else "")
    headers = [*select_request_headers(call.headers), (ROUTING_KEY, call.session_id)]
    reply = await client.call(call.method, target, body=call.body or None, headers=headers)
    if not 200 <= reply.status < 600:
        raise EngineProtocolError(f"the engine at {url} answered with the status {reply.status}", url=url)
    return RelayReply(status=reply.status, headers=select_reply_headers(reply.headers), body=bytes(reply.body))


def read_workers(reply: HttpReply) -> tuple[str, ...]:
    """Read the worker URLs of a router's ``GET /workers``; empty for any other answer.

    User and password are left out of what is shown: workers are called with the engines' key.
    """
    try:
        value: Any = orjson.loads(reply.body)
        workers = cast(list[JsonObject], value["workers"] if isinstance(value, dict) else value)
        return tuple(USERINFO.sub("", str(worker["url"])).rstrip("/") for worker in workers)
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return ()


def is_role_split(role: object) -> bool:
    """Return True if a role of ``/model_info`` or of a router's workers is that of a prefill or decode server."""
    return role in ("prefill", "decode")


def lists_split_roles(reply: HttpReply) -> bool:
    """Return True if a router's ``GET /workers`` lists prefill and decode workers; False for any other answer."""
    try:
        return any(is_role_split(worker.get("worker_type")) for worker in orjson.loads(reply.body)["workers"])
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
        return False


async def fetch_server_status(url: str, client: EngineClient) -> EngineStatus:
    """Ask a server for its status, by ``/ready`` and ``/model_info``.

    An older build has no ``/ready``: then ``/model_info`` alone decides. A router has neither, so its workers are
    asked: it is paused when any of them is, and has a version when all of them have the same.
    """
    try:
        ready = await client.call("GET", f"{url}/ready", timeout_s=SHORT_CALL_TIMEOUT_S)
        info = await client.call("GET", f"{url}/model_info", timeout_s=SHORT_CALL_TIMEOUT_S)
        if info.status == 404:
            listed = await client.call("GET", f"{url}/workers", timeout_s=SHORT_CALL_TIMEOUT_S)
            if workers := read_workers(listed):
                statuses = await asyncio.gather(*(fetch_server_status(worker, client) for worker in workers))
                status = join_statuses(url, statuses)
                return replace(status, is_disaggregated=status.is_disaggregated or lists_split_roles(listed))
            info = await client.call("GET", f"{url}/get_model_info", timeout_s=SHORT_CALL_TIMEOUT_S)
    except EngineError as error:
        return EngineStatus(url=url, state=EngineState.UNREACHABLE, error=str(error))
    # What answers neither way is a router whose workers are out of reach, and with them /abort_request.
    return replace(read_status(url, ready.status, info.read_object()), can_abort=info.status != 404)


def join_statuses(url: str, statuses: Sequence[EngineStatus]) -> EngineStatus:
    """Join the statuses of a router's workers into the router's. The router itself is up, even if no worker is."""
    found = [status for status in statuses if status.state is not EngineState.UNREACHABLE]
    versions = {status.weight_version for status in found}
    lengths = [status.context_length for status in found if status.context_length is not None]
    is_paused = any(status.state is EngineState.PAUSED for status in found)
    return EngineStatus(
        url=url,
        state=EngineState.PAUSED if is_paused else EngineState.SERVING,
        kind="sglang",
        model=next((status.model for status in found), ""),
        weight_version=versions.pop() if len(versions) == 1 else None,
        context_length=min(lengths, default=None),
        workers=tuple(sorted(status.url for status in statuses)),
        is_disaggregated=any(status.is_disaggregated for status in statuses),
    )


def read_status(url: str, ready_status: int, info: Mapping[str, Any]) -> EngineStatus:
    """Read the status of a server from its answers to ``/ready`` and ``/model_info``."""
    is_paused = ready_status == 503 or info.get("is_paused") is True or info.get("paused") is True
    length = info.get("context_length") or info.get("max_model_len")
    return EngineStatus(
        url=url,
        state=EngineState.PAUSED if is_paused else EngineState.SERVING,
        kind="sglang",
        model=str(info.get("model_path") or info.get("served_model_name") or ""),
        weight_version=read_version(info.get("weight_version")),
        context_length=length if isinstance(length, int) and not isinstance(length, bool) else None,
        is_disaggregated=is_role_split(info.get("disaggregation_mode")),
    )
