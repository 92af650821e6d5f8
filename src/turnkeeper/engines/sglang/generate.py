"""SGLang's generate wire: ``/generate``, ids in and ids out.

Owns the layout of that request and reply, streamed or not. The message is read from the ids by our own parsers, so
what is recorded does not depend on the engine's text. This is the wire that streams ids, and the one to use under
prefill/decode disaggregation, where the chat route returns routing rows of the prompt that no forward produced.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast

import orjson

from turnkeeper.choices import EngineWire
from turnkeeper.core.tokens import TokenIds, join_ids
from turnkeeper.core.turn import FinishReason
from turnkeeper.engines.engine import GenerateRequest, Generation, IdsSink, ParseMessage
from turnkeeper.engines.message import trim_stop
from turnkeeper.engines.meta import build_generation, read_ids
from turnkeeper.engines.net.client import EngineClient, HttpReply
from turnkeeper.engines.net.large_reply import iter_body
from turnkeeper.engines.net.sse import DONE, DataLines
from turnkeeper.engines.offload import offload
from turnkeeper.engines.refusal import build_status_error
from turnkeeper.engines.reply import Body, JsonReply, ReplyBody, expect_object, parse_reply
from turnkeeper.engines.sglang.chat import (
    SglangEngine,
    merge_stop_ids,
    render_headers,
    render_lora_field,
    select_forwarded,
)
from turnkeeper.engines.wire_fields import WireFields, find_dropped, select_fields
from turnkeeper.errors import EngineError, EngineProtocolError, EngineRefusedError, TurnkeeperError
from turnkeeper.fields import Wire
from turnkeeper.jsontypes import JsonObject, is_array

GENERATE_ROUTE = "/generate"


def render_sampling(request: GenerateRequest, fields: WireFields) -> JsonObject:
    """Render the sampling parameters under the names of the generate route.

    Raises:
        EngineRefusedError: a tool choice that only the chat route can enforce.
    """
    requested: Mapping[str, Any] = {**request.forwarded, **request.sampling}
    refuse_forced_tools(requested.get("tool_choice"), hint="tool_choice auto, or --engine-wire chat")
    stop_ids = merge_stop_ids(requested.get("stop_token_ids"), request.stop_token_ids)
    return fields.sampling | ({"stop_token_ids": stop_ids} if stop_ids else {}) | {"n": 1, "no_stop_trim": False}


def refuse_forced_tools(choice: object, *, hint: str) -> None:
    """Refuse a tool choice that only a chat route can enforce.

    Raises:
        EngineRefusedError: the tool choice forces a call.
    """
    if choice == "required" or isinstance(choice, dict):
        raise EngineRefusedError(
            "tool_choice forces a call, which a wire of ids cannot enforce", hint=hint, engine_status=400
        )


def render_generate_body(request: GenerateRequest, *, is_stream: bool) -> bytes:
    """Render the request body."""
    fields = select_fields(request, Wire.GENERATE)
    body: JsonObject = {
        **select_forwarded(fields.forwarded),
        **fields.format,
        "sampling_params": render_sampling(request, fields),
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": is_stream,
        "rid": request.rid,
        **request.render_asked(Wire.GENERATE),
        **render_lora_field(request),
    }
    if request.cache_salt is not None:
        body["cache_salt"] = request.cache_salt
    return request.render_body("input_ids", body)


def parse_generate_reply(reply: JsonReply, request: GenerateRequest, url: str, parse: ParseMessage) -> Generation:
    """Translate a whole reply.

    Raises:
        EngineProtocolError: ``meta_info`` is missing, or its ids are not those of ``output_ids``.
    """
    meta = expect_object(reply.value.get("meta_info"), "meta_info", url)
    bare = build_generation(reply, meta, url, request, Wire.GENERATE, message={}, finish_reason=None, matched_stop=None)
    outer = reply.value.get("output_ids")
    if isinstance(outer, list):
        _check_same_ids(read_ids(cast(list[object], outer), url), bare.ids, url)
    return add_message(bare, request, parse)


def add_message(bare: Generation, request: GenerateRequest, parse: ParseMessage) -> Generation:
    """Add the message that is parsed from the ids of a generation."""
    if bare.is_aborted:
        return replace(bare, message={"role": "assistant", "content": ""})
    message = parse(request, bare.ids)
    if isinstance(bare.matched_stop, str):
        message = trim_stop(message, bare.matched_stop)
    is_call = bool(message.get("tool_calls")) and bare.finish_reason == FinishReason.STOP
    finish = str(FinishReason.TOOL_CALLS) if is_call else bare.finish_reason
    return replace(bare, message=message, finish_reason=finish)


def _check_same_ids(outer: TokenIds, inner: TokenIds, url: str) -> None:
    if len(outer) != len(inner) or (outer != inner).any():
        raise EngineProtocolError(
            f"the reply of {url} has {len(outer)} output_ids but {len(inner)} token logprobs, or other ids in them",
            hint="stop trimming or speculative decoding cut one list and not the other",
            url=url,
            sampled_tokens=len(inner),
        )


class StreamedReply:
    """A streamed reply, put together from its events: the new ids of each event, and the whole reply at the end.

    An event holds everything so far, or only what is new where the server streams increments; the counts tell which.
    No event costs more than what it holds itself.
    """

    def __init__(self, url: str, prompt_tokens: int) -> None:
        """Expect the first event; an error about the length names ``prompt_tokens``."""
        self._url = url
        self._prompt_tokens = prompt_tokens
        self._ids: list[TokenIds] = []
        self._token_logprobs: list[Sequence[object]] = []
        self._count = 0
        self._last: JsonReply | None = None

    def feed(self, data: Body) -> TokenIds:
        """Return the ids that this event adds.

        Raises:
            EngineError: the event is an error, or ids do not follow those sent before.
        """
        reply = parse_reply(data, self._url)
        if "error" in reply.value:
            raise build_stream_error(reply.value["error"], self._url, self._prompt_tokens)
        meta = expect_object(reply.value.get("meta_info"), "meta_info", self._url)
        outer = reply.value.get("output_ids")
        listed = cast(list[object], outer) if isinstance(outer, list) else []
        total = meta.get("completion_tokens")
        is_cumulative = total is None or len(listed) == total
        new = read_ids(listed[self._count :] if is_cumulative else listed, self._url)
        entries = meta.get("output_token_logprobs")
        if is_array(entries):
            if is_cumulative or len(entries) != len(listed):
                self._token_logprobs.clear()
            self._token_logprobs.append(entries)
        self._count += len(new)
        self._ids.append(new)
        self._last = reply
        return new

    def finish(self) -> JsonReply:
        """Return the reply as an unstreamed call would have given it.

        Raises:
            EngineError: the stream ended before its reply was complete.
        """
        last = self._last
        meta = cast(JsonObject, last.value["meta_info"]) if last is not None else {}
        if last is None or not meta.get("finish_reason"):
            raise EngineError(f"the stream of {self._url} ended before its reply was complete", url=self._url)
        entries = list(chain.from_iterable(self._token_logprobs))
        value = {
            **last.value,
            "output_ids": join_ids(self._ids).tolist(),
            "meta_info": {**meta, "output_token_logprobs": entries},
        }
        return JsonReply(value=value, payloads=last.payloads, is_strict=last.is_strict)


def build_stream_error(error: object, url: str, prompt_tokens: int) -> TurnkeeperError:
    """Build the error of an error event; an error about the length names ``prompt_tokens``."""
    fields = cast(JsonObject, error) if isinstance(error, dict) else {"message": str(error)}
    code = fields.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    reply = HttpReply(url=url, status=status, headers=(), body=orjson.dumps({"error": fields}))
    return build_status_error(reply, prompt_tokens)


async def stream_events(
    client: EngineClient, url: str, body: bytes, headers: Sequence[tuple[str, str]], request: GenerateRequest
) -> AsyncGenerator[ReplyBody]:
    """Yield the data of each event of a streamed call, without the ``[DONE]`` at its end.

    Raises:
        EngineError: the status is not 200, or the stream breaks off.
    """
    async with client.stream("POST", url, body=body, headers=headers) as response:
        if response.status != 200:
            pairs = tuple((str(name), str(value)) for name, value in response.headers.items())
            raw = HttpReply(url=url, status=response.status, headers=pairs, body=await response.read())
            raise build_status_error(raw, len(request.prompt_ids))
        lines = DataLines()
        async for chunk in iter_body(response):
            for data in lines.feed(chunk):
                if not data.text.startswith(DONE):
                    yield data
        for data in lines.finish():
            if not data.text.startswith(DONE):
                yield data


class SglangGenerateEngine(SglangEngine):
    """The generate wire of one SGLang server, or of one router in front of several."""

    wire: EngineWire = EngineWire.GENERATE

    def __init__(self, url: str, client: EngineClient, parse: ParseMessage) -> None:
        """Call the server at ``url``; ``parse`` makes messages of ids."""
        super().__init__(url, client)
        self._parse = parse

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        if on_ids is not None and not request.is_lost_in_streams(GENERATE_ROUTE):
            found = parse_generate_reply(await self._stream(request, on_ids), request, self.url, self._parse)
        else:
            body = ReplyBody(holds_payloads=request.expects_payloads)
            raw = await self._client.call_into(
                body,
                f"{self.url}{GENERATE_ROUTE}",
                body=render_generate_body(request, is_stream=False),
                headers=render_headers(request),
                is_large=request.expects_large_reply,
            )
            if raw.status != 200:
                raise build_status_error(raw, len(request.prompt_ids))

            def read() -> Generation:
                return parse_generate_reply(
                    parse_reply(body, self.url, cut_logprobs=True, list_keys=request.list_keys),
                    request,
                    self.url,
                    self._parse,
                )

            found = await offload(read, len(body.text))
        dropped = find_dropped(request, Wire.GENERATE)
        return replace(found, dropped_fields=dropped) if dropped else found

    async def _stream(self, request: GenerateRequest, on_ids: IdsSink) -> JsonReply:
        body, headers = render_generate_body(request, is_stream=True), render_headers(request)
        grown = StreamedReply(self.url, len(request.prompt_ids))
        async for data in stream_events(self._client, f"{self.url}{GENERATE_ROUTE}", body, headers, request):
            if len(ids := grown.feed(data)):
                on_ids(ids)
        return grown.finish()
