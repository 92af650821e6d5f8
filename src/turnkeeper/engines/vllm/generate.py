"""The wires of vLLM that take token ids: ``/inference/v1/generate`` and, where that is not served, ``/v1/completions``.

Owns the layout of both requests, vLLM's own names, and the choice between the two routes; `reply` reads the replies.
The chat route is not used, since it ignores prompt ids silently. Messages that vLLM parsed are not used either: only
some versions parse, only with parsers that were chosen at the start, and a reply does not say whether they were.

What differs from SGLang: rows are switched on for the server, not the request, and their payload describes itself (a
``.npy`` file); ids of requests get a prefix; a cache salt may not hold every character.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import orjson

from turnkeeper.engines.engine import (
    EngineState,
    EngineStatus,
    GenerateRequest,
    Generation,
    IdsSink,
    ParseMessage,
    RelayReply,
    RelayRequest,
)
from turnkeeper.engines.meta import read_version
from turnkeeper.engines.net.client import EngineClient, HttpReply
from turnkeeper.engines.offload import offload
from turnkeeper.engines.refusal import build_status_error
from turnkeeper.engines.reply import ReplyBody
from turnkeeper.engines.sglang.chat import SHORT_CALL_TIMEOUT_S, merge_stop_ids, relay_call, render_headers
from turnkeeper.engines.sglang.generate import refuse_forced_tools, stream_events
from turnkeeper.engines.vllm.reply import StreamedChoice, parse_vllm_reply, read_vllm_reply
from turnkeeper.engines.wire_fields import WireFields, find_dropped, select_fields
from turnkeeper.errors import EngineError
from turnkeeper.fields import Wire
from turnkeeper.jsontypes import JsonObject

GENERATE_ROUTE = "/inference/v1/generate"
COMPLETIONS_ROUTE = "/v1/completions"

_NOT_SERVED = (403, 404, 405)
"""The statuses of a generate route that is off: 403 without ``--enable-scale-out``, the others from an older
version."""

_PLAIN_SALT = re.compile(r"[^@/\\\0]{1,128}")


_OWNED_FIELDS = frozenset(
    {"token_ids", "prompt", "model", "sampling_params", "request_id", "stream", "stream_options", "n", "max_tokens"}
    | {"messages", "tools", "features", "return_token_ids", "return_weight_versions", "logprobs"}
)
"""Body fields that turnkeeper sets; a request cannot forward them."""


def render_sampling(request: GenerateRequest, fields: WireFields) -> JsonObject:
    """Render the sampling parameters under vLLM's names, which both routes share.

    The logprob of each sampled token comes back, and those of further tokens where they are asked for.

    Raises:
        EngineRefusedError: a tool choice that only a chat route can enforce.
    """
    requested: Mapping[str, Any] = {**request.forwarded, **request.sampling}
    refuse_forced_tools(requested.get("tool_choice"), hint="tool_choice auto")
    params: JsonObject = {**fields.sampling, "logprobs": 0, **fields.format}
    stop_ids = merge_stop_ids(requested.get("stop_token_ids"), request.stop_token_ids)
    if stop_ids:
        params["stop_token_ids"] = stop_ids
    return params | request.render_asked(Wire.VLLM) | {"skip_special_tokens": False}


def _render_common(request: GenerateRequest, fields: WireFields, *, is_stream: bool) -> JsonObject:
    body: JsonObject = {name: value for name, value in fields.forwarded.items() if name not in _OWNED_FIELDS}
    body |= {"request_id": request.rid, "stream": is_stream}
    if is_stream:
        body["stream_options"] = {"include_usage": True}
    if request.cache_salt is not None:
        body["cache_salt"] = fit_salt(request.cache_salt)
    return body


def render_generate_body(request: GenerateRequest, *, is_stream: bool = False) -> bytes:
    """Render the body of ``/inference/v1/generate``; without a token budget the server takes what fits.

    The reply's text is not used, so it is detokenized only where the engine has to find stop strings in it.
    """
    fields = select_fields(request, Wire.VLLM)
    params = render_sampling(request, fields) | {"detokenize": bool(request.stop_strings)}
    body = _render_common(request, fields, is_stream=is_stream) | {"sampling_params": params}
    if request.lora_name is not None:
        body["model"] = request.lora_name
    return request.render_body("token_ids", body)


def render_completions_body(
    request: GenerateRequest, model: str, context_length: int | None, *, is_stream: bool = False
) -> bytes:
    """Render the body of ``/v1/completions`` with ids as the prompt.

    This route refuses a token budget that does not fit behind the prompt, and samples 16 tokens without one, so the
    budget that fits is always sent.
    """
    fields = select_fields(request, Wire.VLLM)
    body = _render_common(request, fields, is_stream=is_stream) | render_sampling(request, fields)
    body |= {"model": request.lora_name or model, "n": 1, "return_token_ids": True, "return_weight_versions": True}
    if fields.format:  # the likeliest tokens: by id, since several ids may spell one text
        body["return_tokens_as_token_ids"] = True
    room = None if context_length is None else max(1, context_length - len(request.prompt_ids))
    limits = [limit for limit in (request.token_budget, room) if limit is not None]
    if limits:
        body["max_tokens"] = min(limits)
    return request.render_body("prompt", body)


def fit_salt(salt: str) -> str:
    """Make a salt that vLLM accepts: the salt itself, or its digest where it is long or holds a refused character."""
    return salt if _PLAIN_SALT.fullmatch(salt) else hashlib.blake2b(salt.encode(), digest_size=32).hexdigest()


def name_attempts(rid: str) -> list[str]:
    """List the names that vLLM has for an attempt: its routes put a prefix before the id."""
    return [f"generate-tokens-{rid}", f"cmpl-{rid}-0"]


class VllmEngine:
    """The wires of one vLLM server that take token ids."""

    def __init__(self, url: str, client: EngineClient, parse: ParseMessage) -> None:
        """Call the server at ``url``; ``parse`` makes messages of ids."""
        self.url = url.rstrip("/")
        self._client = client
        self._parse = parse
        self._has_generate_route: bool | None = None
        self._model: Mapping[str, Any] = {}

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        found = await self._generate(request, on_ids)
        return replace(found, dropped_fields=find_dropped(request, Wire.VLLM))

    async def _generate(self, request: GenerateRequest, on_ids: IdsSink | None) -> Generation:
        """Generate on the generate route where it is served, else on the completions route."""
        if self._has_generate_route is not False:
            try:
                sink = None if request.is_lost_in_streams(GENERATE_ROUTE) else on_ids
                body = render_generate_body(request, is_stream=sink is not None)
                found = await self._call(GENERATE_ROUTE, body, request, sink)
            except EngineError as error:
                if self._has_generate_route or error.facts.get("engine_status") not in _NOT_SERVED:
                    raise
                self._has_generate_route = False
            else:
                self._has_generate_route = True
                return found
        return await self._complete(request, on_ids)

    async def _complete(self, request: GenerateRequest, on_ids: IdsSink | None) -> Generation:
        """Generate on the completions route."""
        sink = None if request.is_lost_in_streams(COMPLETIONS_ROUTE) else on_ids
        model = await self._find_model()
        name, length = str(model.get("id") or ""), _read_length(model)
        body = render_completions_body(request, name, length, is_stream=sink is not None)
        return await self._call(COMPLETIONS_ROUTE, body, request, sink)

    async def _call(self, route: str, body: bytes, request: GenerateRequest, on_ids: IdsSink | None) -> Generation:
        url, headers = f"{self.url}{route}", _render_headers(request)
        if on_ids is None:
            found = ReplyBody()
            reply = await self._client.call_into(
                found, url, body=body, headers=headers, is_large=request.expects_large_reply
            )
            if reply.status != 200:
                raise build_status_error(reply, len(request.prompt_ids))
            return await offload(partial(parse_vllm_reply, found, request, self.url, self._parse), len(found.text))
        grown = StreamedChoice(self.url, len(request.prompt_ids))
        async for data in stream_events(self._client, url, body, headers, request):
            if len(ids := grown.feed(data)):
                on_ids(ids)
        return read_vllm_reply(grown.finish(), request, self.url, self._parse)

    async def _find_model(self) -> Mapping[str, Any]:
        """Find the entry of the served model, with the name and the length that the completions route needs."""
        if not self._model:
            reply = await self._client.call("GET", f"{self.url}/v1/models", timeout_s=SHORT_CALL_TIMEOUT_S)
            self._model = read_models(reply)
        return self._model

    async def relay(self, call: RelayRequest) -> RelayReply:
        return await relay_call(self.url, self._client, call)

    async def abort(self, rid: str) -> None:
        # A server without the route ends the attempt when its connection closes.
        path = "/inference/v1/abort_requests" if self._has_generate_route else "/abort_requests"
        body = orjson.dumps({"request_ids": name_attempts(rid)})  # never an empty list: that would end them all
        try:
            await self._client.post_json(f"{self.url}{path}", body, timeout_s=SHORT_CALL_TIMEOUT_S)
        except EngineError:
            return

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        # Only a server in development mode tells whether it is paused and which version it holds.
        try:
            models = await self._client.call("GET", f"{self.url}/v1/models", timeout_s=SHORT_CALL_TIMEOUT_S)
            paused = await self._client.call("GET", f"{self.url}/is_paused", timeout_s=SHORT_CALL_TIMEOUT_S)
            weights = paused
            if paused.status == 200:
                weights = await self._client.call("GET", f"{self.url}/weight_info", timeout_s=SHORT_CALL_TIMEOUT_S)
        except EngineError as error:
            return (EngineStatus(url=self.url, state=EngineState.UNREACHABLE, kind="vllm", error=str(error)),)
        return (read_vllm_status(self.url, models, paused, weights),)

    async def close(self) -> None:
        """Do nothing: the client is the caller's."""


def _render_headers(request: GenerateRequest) -> list[tuple[str, str]]:
    """Render the headers of a call. vLLM takes ``X-Request-Id`` for the attempt's id, so that is what it gets."""
    kept = [pair for pair in render_headers(request) if pair[0].lower() != "x-request-id"]
    return [*kept, ("x-request-id", request.rid)]


def read_models(reply: HttpReply) -> Mapping[str, Any]:
    """Read the first entry of ``/v1/models``; empty for any other answer."""
    try:
        first: object = orjson.loads(reply.body)["data"][0]
        return cast(JsonObject, first) if isinstance(first, dict) else {}
    except (orjson.JSONDecodeError, TypeError, KeyError, IndexError):
        return {}


def _read_length(model: Mapping[str, Any]) -> int | None:
    length = model.get("max_model_len")
    return length if isinstance(length, int) and not isinstance(length, bool) else None


def read_vllm_status(url: str, models: HttpReply, paused: HttpReply, weights: HttpReply) -> EngineStatus:
    """Read the status of a server from its answers to ``/v1/models``, ``/is_paused`` and ``/weight_info``."""
    model = read_models(models)
    is_paused = paused.read_object().get("is_paused") is True
    return EngineStatus(
        url=url,
        state=EngineState.PAUSED if is_paused else EngineState.SERVING,
        kind="vllm",
        model=str(model.get("id") or ""),
        weight_version=read_version(weights.read_object().get("weight_version")),
        context_length=_read_length(model),
    )
