"""A scripted engine that speaks vLLM's token-in wires, as vLLM 0.32.0 was seen to and 0.33.0 is written to.

Everything else is `ScriptedEngine`'s. Its model has routing rows (``moe``) or not, as vLLM's flag is the server's.
"""

import io

import numpy as np
import orjson
import pybase64

from turnkeeper.jsontypes import JsonObject
from turnkeeper.testing.engine import ScriptedEngine
from turnkeeper.testing.exchange import RecordedRequest, ScriptedAnswer
from turnkeeper.testing.script import ScriptedReply, ScriptedTokens, dump_reply, scripted_rows
from turnkeeper.tiny.wire import DONE_EVENT, frame_event

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
_EVENT_STREAM = (("content-type", "text/event-stream; charset=utf-8"),)
_MISSING = ScriptedAnswer(
    status=404, body=b'{"error":{"message":"Not Found","type":"Not Found","param":null,"code":404}}'
)


class ScriptedVllm(ScriptedEngine):
    """vLLM with ``--enable-scale-out`` in development mode; the attributes take either away."""

    version = "0.33.0"
    has_generate_route = True
    """Whether the server was started with ``--enable-scale-out``."""
    has_dev_routes = True
    """Whether it was started with ``VLLM_SERVER_DEV_MODE=1``."""
    refuses_while_paused = True
    """Whether a pause that aborts also refuses new requests (0.33), or holds them back like any other (0.32)."""
    _is_refusing = False

    def is_generation(self, path: str) -> bool:
        """Return True if a route takes an entry of the script."""
        return path == COMPLETIONS or (path == GENERATE and self.has_generate_route)

    def pause(self, mode: str) -> None:
        """Hold new requests back or refuse them; ``abort`` also ends those in flight."""
        self._is_refusing = mode == "abort" and self.refuses_while_paused
        super().pause(mode)

    def resume(self) -> None:
        """Let requests go on."""
        self._is_refusing = False
        super().resume()

    def answer_control(self, request: RecordedRequest) -> ScriptedAnswer:
        """Answer vLLM's own control routes."""
        if given := self.control_answers.get(request.path):
            return ScriptedAnswer(status=given[0], body=given[1])
        answer = self._answer_plain(request)
        if answer is None and self.has_dev_routes:
            answer = self._answer_dev(request)
        return _MISSING if answer is None else answer

    def _answer_plain(self, request: RecordedRequest) -> ScriptedAnswer | None:
        match request.path:
            case "/version":
                return _say({"version": self.version})
            case "/health":
                return ScriptedAnswer(body=b"")
            case "/v1/models":
                entry = {"id": "scripted", "object": "model", "max_model_len": self.context_length}
                return _say({"object": "list", "data": [entry]})
            case "/inference/v1/abort_requests" if self.has_generate_route:
                self._abort_named(request)
                return ScriptedAnswer(body=b"")
            case "/inference/v1/generate" | "/inference/v1/abort_requests":
                message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
                return _fail(403, message, "PermissionDeniedError")
            case _:
                return None

    def _answer_dev(self, request: RecordedRequest) -> ScriptedAnswer | None:
        match request.path:
            case "/is_paused":
                return _say({"is_paused": self.is_paused})
            case "/weight_info":
                return _say({"weight_version": self.weight_version})
            case "/abort_requests":
                return _say({"status": "aborted", "aborted": self._abort_named(request)})
            case "/pause":
                self.pause(request.query.removeprefix("mode=") or "abort")
                return _say({"status": "paused"})
            case "/resume":
                self.resume()
                return _say({"status": "resumed"})
            case "/reset_prefix_cache":
                is_free = not self.in_flight or "reset_running_requests=true" in request.query
                return _say({"success": is_free})
            case "/collective_rpc":
                return _say({"results": [None]})
            case "/update_weight_version":
                self.weight_version = str(request.json["new_version"])
                return _say({"success": True, "new_version": self.weight_version})
            case _:
                return None

    def _abort_named(self, request: RecordedRequest) -> int:
        """End the calls with these ids, which are the ones with their route's prefix; no ids mean all."""
        names: list[str] = request.json.get("request_ids") or [call.rid for call in self._in_flight]
        for call in self._in_flight:
            if call.rid in names:
                call.aborted.set()
        return len(names)

    def read_asked(self, request: RecordedRequest) -> JsonObject:
        """Read the call under SGLang's names; its id is the one that aborts must name."""
        params = request.json.get("sampling_params", request.json)
        rid = request.header("x-request-id") or request.json.get("request_id")
        return {
            "input_ids": request.json.get("token_ids", request.json.get("prompt")),
            "rid": f"generate-tokens-{rid}" if request.path == GENERATE else f"cmpl-{rid}-0",
            "return_routed_experts": False,
            "routed_experts_start_len": params.get("routed_experts_prompt_start", 0),
        }

    def refuse(self, request: RecordedRequest, asked: JsonObject) -> ScriptedAnswer | None:
        """Refuse a call as vLLM does; a stream is refused in its first event."""
        refusal = self._find_refusal(request, len(asked["input_ids"]), asked["routed_experts_start_len"])
        if refusal is None or not request.json.get("stream") or request.path != GENERATE:
            return refusal
        return ScriptedAnswer(body=frame_event(refusal.body) + DONE_EVENT, headers=_EVENT_STREAM)

    def _find_refusal(self, request: RecordedRequest, prompt: int, start: int) -> ScriptedAnswer | None:
        limit = self.context_length
        if self._is_refusing:
            message = "Generation is paused. Please retry after it resumes."
            return _fail(503, message, "ServiceUnavailableError")
        if not 0 <= start <= prompt:
            message = f"routed_experts_prompt_start must be between 0 and the prompt length ({prompt}), inclusive."
            return _fail(400, message, "BadRequestError")
        if request.path == COMPLETIONS:
            if prompt + (request.json.get("max_tokens") or 16) <= limit:
                return None
            message = f"This model's maximum context length is {limit} tokens. However, your prompt contains {prompt}"
            return _fail(400, f"{message} input tokens, which exceeds this limit.", "BadRequestError")
        if prompt < limit:
            return None
        message = f"The decoder prompt (length {prompt}) is longer than the maximum model length of {limit}."
        return _fail(400, message, "BadRequestError")

    def stream(self, request: RecordedRequest, value: JsonObject, chunk_ids: int) -> bytes | None:
        """Return a streamed reply: each event holds what is new, the last but one how it ended, the last the counts."""
        if not request.json.get("stream"):
            return None
        choice = value["choices"][0]
        ids: list[int] = choice["token_ids"]
        top = {name: item for name, item in value.items() if name not in ("choices", "usage")}
        no_usage: JsonObject = {"usage": None} if request.path == GENERATE else {}
        late = {"finish_reason", "stop_reason", "routed_experts", "weight_versions"} & choice.keys()
        chunks: list[JsonObject] = []
        for start in range(0, max(1, len(ids)), chunk_ids):
            stop = min(start + chunk_ids, len(ids))
            part = {**choice, "token_ids": ids[start:stop], "logprobs": _cut(choice["logprobs"], start, stop)}
            part.pop("prompt_token_ids", None)
            part |= {name: choice[name] if stop == len(ids) else None for name in late}
            if request.path == COMPLETIONS:
                part.pop("routed_experts", None)
            chunks.append({**top, **no_usage, "choices": [part]})
        if (request.json.get("stream_options") or {}).get("include_usage"):
            chunks.append({**top, "choices": [], "usage": value["usage"]})
        return b"".join([*(frame_event(dump_reply(chunk)) for chunk in chunks), DONE_EVENT])

    def render(
        self,
        request: RecordedRequest,
        asked: JsonObject,
        reply: ScriptedReply,
        sampled: ScriptedTokens,
        meta: JsonObject,
    ) -> JsonObject:
        """Render the reply's body on the route that was called."""
        prompt: list[int] = asked["input_ids"]
        params = request.json.get("sampling_params", request.json)
        choice: JsonObject = {
            "index": 0,
            "finish_reason": "stop" if sampled.finish_reason == "tool_calls" else sampled.finish_reason,
            "stop_reason": reply.matched_stop,
            "token_ids": list(sampled.ids),
            "routed_experts": None,
            "logprobs": None if params.get("logprobs") is None else _spell_logprobs(sampled, request.path),
        }
        if self.moe is not None and not sampled.is_waiting_abort:
            choice["routed_experts"] = self._encode_rows([*prompt, *sampled.ids], asked, reply)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled.ids)}
        usage["total_tokens"] = sum(usage.values())
        if request.path == COMPLETIONS:
            choice |= {"text": reply.text, "prompt_token_ids": prompt}
            if params.get("return_weight_versions") and self.refuses_while_paused:
                choice["weight_versions"] = self._list_versions(reply, sampled)
            name = str(asked["rid"]).removesuffix("-0")
            return {"id": name, "object": "text_completion", "model": "scripted", "choices": [choice], "usage": usage}
        choice["weight_versions"] = self._list_versions(reply, sampled)
        top: JsonObject = {"request_id": asked["rid"], "output_mode": "tokens", "model": "scripted"}
        return {**top, "choices": [choice], "usage": usage}

    def _list_versions(self, reply: ScriptedReply, sampled: ScriptedTokens) -> list[JsonObject]:
        version, count = reply.weight_version or self.weight_version, len(sampled.ids)
        spans = reply.spans or ([(version, 0, count)] if count else [])
        return [{"version": label, "start": start, "end": stop} for label, start, stop in spans]

    def _encode_rows(self, path: list[int], asked: JsonObject, reply: ScriptedReply) -> str:
        assert self.moe is not None
        rows = scripted_rows(
            path,
            layers=self.moe.layers,
            topk=self.moe.topk,
            experts=self.moe.experts,
            start=asked["routed_experts_start_len"],
            salt=reply.rows_salt,
        )
        file = io.BytesIO()
        np.save(file, rows.astype(np.uint8))
        return pybase64.b64encode_as_string(file.getvalue())


def _say(value: JsonObject) -> ScriptedAnswer:
    return ScriptedAnswer(body=orjson.dumps(value))


def _fail(status: int, message: str, kind: str) -> ScriptedAnswer:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return ScriptedAnswer(status=status, body=orjson.dumps({"error": error}))


def _clamp(logprob: float | None) -> float:
    return -9999.0 if logprob is None or not logprob >= -9999.0 else logprob


def _spell_logprobs(sampled: ScriptedTokens, path: str) -> JsonObject:
    values = [_clamp(logprob) for logprob in sampled.logprobs]
    if path == COMPLETIONS:
        return {"token_logprobs": values}
    pairs = zip(sampled.ids, values, strict=False)
    return {"content": [{"token_id": index, "logprob": value, "rank": 1} for index, value in pairs]}


def _cut(logprobs: JsonObject | None, start: int, stop: int) -> JsonObject | None:
    return None if logprobs is None else {name: entries[start:stop] for name, entries in logprobs.items()}
