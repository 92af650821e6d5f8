"""vLLM's token-in wires: ``/inference/v1/generate`` and, where that is not served, ``/v1/completions``.

Owns the layout of both requests and replies, and vLLM's own names. Its chat route is not used: it ignores prompt ids
without a word. What differs from SGLang: the routing payload describes itself (a ``.npy`` file), a logprob of minus
infinity comes as -9999, reasoning is called ``reasoning``, and rows are switched on for the server, not the request.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
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
from turnkeeper.engines.generate import add_message, read_ids
from turnkeeper.engines.http import EngineClient, HttpReply
from turnkeeper.engines.joining import ParseMessage
from turnkeeper.engines.message import canonicalise_message
from turnkeeper.engines.meta import read_spans
from turnkeeper.engines.refusal import build_status_error
from turnkeeper.engines.reply import JsonReply, clean_numbers, expect_object, parse_reply
from turnkeeper.engines.sglang import CONTROL_TIMEOUT_S, merge_stop_ids, relay_call, render_headers
from turnkeeper.errors import EngineError, EngineProtocolError
from turnkeeper.jsontypes import JsonObject

CLAMPED_LOGPROB = -9999.0
"""What vLLM writes for minus infinity."""

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


def render_generate_body(request: GenerateRequest) -> bytes:
    """The body of ``/inference/v1/generate``, which parses its own reply where it can."""
    body: JsonObject = {
        "request_id": request.rid,
        "sampling_params": render_sampling(request) | _render_format(request),
        "stream": False,
        "output_mode": "derender",
        "parse_context": {
            "tools": list(request.tools) or None,
            "tool_choice": request.forwarded.get("tool_choice", "auto" if request.tools else "none"),
            "chat_template_kwargs": dict(request.template_kwargs),
        },
    }
    if request.cache_salt is not None:
        body["cache_salt"] = request.cache_salt
    return b'{"token_ids":' + request.encode_prompt() + b"," + orjson.dumps(body)[1:]


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
    return b'{"prompt":' + request.encode_prompt() + b"," + orjson.dumps(body)[1:]


def parse_vllm_reply(body: bytes, request: GenerateRequest, url: str, parse: ParseMessage) -> Generation:
    """Translate a 200 of either route; the message is vLLM's own where it parsed one, else read from the ids.

    Raises:
        EngineProtocolError: no choice, several, no ids or no logprobs.
    """
    reply = parse_reply(body, url)
    choices = reply.value.get("choices")
    if not isinstance(choices, list) or len(cast(list[object], choices)) != 1:
        found = f"{len(cast(list[object], choices))} choices" if isinstance(choices, list) else "no choices"
        raise EngineProtocolError(f"the engine at {url} answered {found}, expected exactly 1", url=url)
    choice = expect_object(cast(list[object], choices)[0], "choices[0]", url)
    bare = _build_bare(reply, choice, url)
    message = choice.get("message")
    if isinstance(message, dict) and not bare.is_aborted:
        return _with_message(bare, canonicalise_message(cast(JsonObject, message), url))
    return add_message(bare, request, parse)


def _with_message(bare: Generation, message: JsonObject) -> Generation:
    is_call = bool(message.get("tool_calls")) and bare.finish_reason == "stop"
    return replace(bare, message=message, finish_reason="tool_calls" if is_call else bare.finish_reason)


def _build_bare(reply: JsonReply, choice: JsonObject, url: str) -> Generation:
    ids = choice.get("token_ids")
    if not isinstance(ids, list):
        raise EngineProtocolError(
            f"the reply of {url} has no token_ids",
            hint="a vLLM of this age has no return_token_ids, or a router drops it",
            url=url,
        )
    usage = expect_object(reply.value.get("usage") or {}, "usage", url)
    details = usage.get("prompt_tokens_details")
    reason = choice.get("stop_reason")
    spans = read_spans(choice.get("weight_versions"), url)
    return Generation(
        message={},
        ids=read_ids(cast(list[object], ids), url),
        logprobs=np.asarray(read_logprobs(choice.get("logprobs"), url), dtype=np.float64),
        finish_reason=str(choice.get("finish_reason") or "stop"),
        matched_stop=reason if isinstance(reason, int | str) and not isinstance(reason, bool) else None,
        prompt_tokens=_read_count(usage, "prompt_tokens"),
        completion_tokens=_read_count(usage, "completion_tokens"),
        cached_tokens=_read_count(cast(JsonObject, details), "cached_tokens") or 0 if isinstance(details, dict) else 0,
        weight_version=spans[-1].version if spans else None,
        spans=spans,
        routed_experts=reply.take_payload(choice, "routed_experts"),
        meta=clean_numbers(
            reply, {name: reply.value[name] for name in ("kv_transfer_params", "metrics") if name in reply.value}
        ),
        response_id=str(reply.value.get("id") or reply.value.get("request_id") or ""),
        model=str(reply.value.get("model") or ""),
        url=url,
    )


def read_logprobs(value: object, url: str) -> list[float]:
    """The sampled tokens' logprobs in either of vLLM's shapes; NaN for null, minus infinity where it was clamped.

    Raises:
        EngineProtocolError: there are none.
    """
    fields = cast(JsonObject, value) if isinstance(value, dict) else {}
    entries: object = fields.get("content", fields.get("token_logprobs"))
    if not isinstance(entries, list):
        raise EngineProtocolError(f"the reply of {url} has no logprobs, without which no turn can be recorded", url=url)
    found: list[float] = []
    for entry in cast(list[object], entries):
        number = cast(JsonObject, entry).get("logprob") if isinstance(entry, dict) else entry
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        found.append(float(number) if is_number else float("nan"))  # pyright: ignore[reportArgumentType] - checked above
    return [float("-inf") if number <= CLAMPED_LOGPROB else number for number in found]


def _read_count(fields: JsonObject, key: str) -> int | None:
    value = fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


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
        """Generate one reply; not streamed, so ``on_ids`` is never called."""
        if self._has_generate_route is not False:
            reply = await self._post(GENERATE_ROUTE, render_generate_body(request), request)
            self._has_generate_route = reply.status not in (404, 405)
            if self._has_generate_route:
                return self._read(reply, request)
        model = await self._find_model()
        return self._read(
            await self._post(COMPLETIONS_ROUTE, render_completions_body(request, model), request), request
        )

    async def _post(self, route: str, body: bytes, request: GenerateRequest) -> HttpReply:
        return await self._client.call("POST", f"{self.url}{route}", body=body, headers=render_headers(request))

    def _read(self, reply: HttpReply, request: GenerateRequest) -> Generation:
        if reply.status != 200:
            raise build_status_error(reply, len(request.prompt_ids))
        return parse_vllm_reply(reply.body, request, self.url, self._parse)

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
