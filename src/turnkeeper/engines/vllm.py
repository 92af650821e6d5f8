"""vLLM's token-in wires: ``/inference/v1/generate`` and, where that is not served, ``/v1/completions``.

Owns the layout of both requests and vLLM's own names; replies are read by `vllmreply`. Its chat route is not used: it
ignores prompt ids without a word. What differs from SGLang: the routing payload describes itself (a ``.npy`` file), a
logprob of minus infinity comes as -9999, reasoning is called ``reasoning``, and rows are switched on for the server,
not the request.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import orjson

from turnkeeper.engines.engine import (
    EngineReport,
    EngineState,
    GenerateRequest,
    Generation,
    IdsSink,
    RelayReply,
    RelayRequest,
)
from turnkeeper.engines.generate import stream_events
from turnkeeper.engines.http import EngineClient, HttpReply
from turnkeeper.engines.joining import ParseMessage
from turnkeeper.engines.offload import offload
from turnkeeper.engines.refusal import build_status_error
from turnkeeper.engines.sglang import CONTROL_TIMEOUT_S, merge_stop_ids, relay_call, render_headers
from turnkeeper.engines.vllmreply import StreamedChoice, parse_vllm_reply, read_vllm_reply
from turnkeeper.errors import EngineError
from turnkeeper.jsontypes import JsonObject, encode_json

GENERATE_ROUTE = "/inference/v1/generate"
COMPLETIONS_ROUTE = "/v1/completions"

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "stop",
    "ignore_eos",
    "min_tokens",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "seed",
    "structured_outputs",
)


def render_sampling(request: GenerateRequest) -> JsonObject:
    """The sampling parameters under vLLM's names; one logprob a token, that of the token itself."""
    asked: Mapping[str, Any] = {**request.forwarded, **request.sampling}
    params: JsonObject = {name: asked[name] for name in _SAMPLING if asked.get(name) is not None}
    limits = [asked[name] for name in ("max_tokens", "max_completion_tokens") if isinstance(asked.get(name), int)]
    if limits:
        params["max_tokens"] = min(limits)
    stop_ids = merge_stop_ids(asked.get("stop_token_ids"), request.stop_token_ids)
    if stop_ids:
        params["stop_token_ids"] = stop_ids
    if request.rows is not None and request.rows.start_len is not None:
        params["routed_experts_prompt_start"] = request.rows.start_len
    return params | {"logprobs": 0, "skip_special_tokens": False}


def render_generate_body(request: GenerateRequest, *, is_stream: bool = False) -> bytes:
    """The body of ``/inference/v1/generate``, which parses its own reply where it can; a stream is ids alone."""
    body: JsonObject = {
        "request_id": request.rid,
        "sampling_params": render_sampling(request) | _render_format(request),
        "stream": is_stream,
        **(
            {"output_mode": "tokens", "stream_options": {"include_usage": True}}
            if is_stream
            else _ask_to_parse(request)
        ),
    }
    if request.cache_salt is not None:
        body["cache_salt"] = request.cache_salt
    return b'{"token_ids":' + request.encode_prompt() + b"," + encode_json(body)[1:]


def _ask_to_parse(request: GenerateRequest) -> JsonObject:
    return {
        "output_mode": "derender",
        "parse_context": {
            "tools": list(request.tools) or None,
            "tool_choice": request.forwarded.get("tool_choice", "auto" if request.tools else "none"),
            "chat_template_kwargs": dict(request.template_kwargs),
        },
    }


def _render_format(request: GenerateRequest) -> JsonObject:
    """``response_format`` as this route spells it; the completions route takes it as it is."""
    asked: object = {**request.forwarded, **request.sampling}.get("response_format")
    kind = cast(JsonObject, asked).get("type") if isinstance(asked, dict) else None
    if kind == "json_object":
        return {"structured_outputs": {"json_object": True}}
    if kind == "json_schema":
        return {"structured_outputs": {"json": cast(JsonObject, asked).get("json_schema", {}).get("schema")}}
    return {}


def render_completions_body(request: GenerateRequest, model: str) -> bytes:
    """The body of ``/v1/completions`` with ids as the prompt."""
    asked: Mapping[str, Any] = {**request.forwarded, **request.sampling}
    body: JsonObject = {
        **render_sampling(request),
        "model": model,
        "stream": False,
        "n": 1,
        "return_token_ids": True,
        "request_id": request.rid,
    }
    if asked.get("response_format") is not None:
        body["response_format"] = asked["response_format"]
    if request.cache_salt is not None:
        body["cache_salt"] = request.cache_salt
    return b'{"prompt":' + request.encode_prompt() + b"," + encode_json(body)[1:]


class VllmEngine:
    """One vLLM server."""

    def __init__(self, url: str, client: EngineClient, parse: ParseMessage) -> None:
        """Talk to the server at ``url``; ``parse`` reads ids into messages where vLLM does not."""
        self.url = url.rstrip("/")
        self._client = client
        self._parse = parse
        self._has_generate_route: bool | None = None
        self._model = ""

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        """Generate one reply; streamed where ``on_ids`` is given and the generate route is known to be served."""
        if on_ids is not None and self._has_generate_route:
            return await self._stream(request, on_ids)
        if self._has_generate_route is not False:
            reply = await self._post(GENERATE_ROUTE, render_generate_body(request), request)
            self._has_generate_route = reply.status not in (404, 405)
            if self._has_generate_route:
                return await self._read(reply, request)
        model = await self._find_model()
        reply = await self._post(COMPLETIONS_ROUTE, render_completions_body(request, model), request)
        return await self._read(reply, request)

    async def _post(self, route: str, body: bytes, request: GenerateRequest) -> HttpReply:
        return await self._client.call("POST", f"{self.url}{route}", body=body, headers=render_headers(request))

    async def _read(self, reply: HttpReply, request: GenerateRequest) -> Generation:
        if reply.status != 200:
            raise build_status_error(reply, len(request.prompt_ids))
        work = partial(parse_vllm_reply, reply.body, request, self.url, self._parse)
        return await offload(work, len(reply.body))

    async def _stream(self, request: GenerateRequest, on_ids: IdsSink) -> Generation:
        grown = StreamedChoice(self.url)
        body, headers = render_generate_body(request, is_stream=True), render_headers(request)
        async for data in stream_events(self._client, f"{self.url}{GENERATE_ROUTE}", body, headers, request):
            if len(ids := grown.feed(data)):
                on_ids(ids)
        return read_vllm_reply(grown.finish(), request, self.url, self._parse)

    async def _find_model(self) -> str:
        """The name of the served model, which the completions route wants."""
        if not self._model:
            reply = await self._client.call("GET", f"{self.url}/v1/models", timeout_s=CONTROL_TIMEOUT_S)
            self._model = str(read_models(reply).get("id") or "")
        return self._model

    async def relay(self, call: RelayRequest) -> RelayReply:
        """Pass a call through with the session's routing key."""
        return await relay_call(self.url, self._client, call)

    async def abort(self, rid: str) -> None:
        """Ask the server to give up one attempt; a server without the route is told by the closed connection."""
        try:
            body = orjson.dumps({"request_ids": [rid]})
            await self._client.post_json(f"{self.url}/abort_requests", body, timeout_s=CONTROL_TIMEOUT_S)
        except EngineError:
            return

    async def probe(self) -> tuple[EngineReport, ...]:
        """Ask for ``/is_paused``, which only a server in development mode has, and for the model."""
        try:
            paused = await self._client.call("GET", f"{self.url}/is_paused", timeout_s=CONTROL_TIMEOUT_S)
            models = await self._client.call("GET", f"{self.url}/v1/models", timeout_s=CONTROL_TIMEOUT_S)
        except EngineError as error:
            return (EngineReport(url=self.url, state=EngineState.UNREACHABLE, kind="vllm", error=str(error)),)
        return (read_vllm_report(self.url, paused, models),)

    async def close(self) -> None:
        """Nothing to release: the client is the caller's."""


def read_models(reply: HttpReply) -> Mapping[str, Any]:
    """The first entry of ``/v1/models``; empty for any other answer."""
    try:
        value: Any = orjson.loads(reply.body)
        return cast(JsonObject, value["data"][0])
    except (orjson.JSONDecodeError, TypeError, KeyError, IndexError):
        return {}


def read_vllm_report(url: str, paused: HttpReply, models: HttpReply) -> EngineReport:
    """The report behind the two answers."""
    try:
        value: object = orjson.loads(paused.body) if paused.status == 200 else {}
    except orjson.JSONDecodeError:
        value = {}
    is_paused = isinstance(value, dict) and cast(JsonObject, value).get("is_paused") is True
    model = read_models(models)
    length = model.get("max_model_len")
    return EngineReport(
        url=url,
        state=EngineState.PAUSED if is_paused else EngineState.SERVING,
        kind="vllm",
        model=str(model.get("id") or ""),
        context_length=length if isinstance(length, int) and not isinstance(length, bool) else None,
    )
