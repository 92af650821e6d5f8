"""A scripted engine that speaks vLLM's token-in wires; everything else is `ScriptedEngine`'s."""

import io

import numpy as np
import orjson
import pybase64

from turnkeeper.jsontypes import JsonObject
from turnkeeper.testing.engine import Answer, RecordedRequest, ScriptedEngine
from turnkeeper.testing.script import Sampled, ScriptedReply, dump_reply, scripted_rows


class ScriptedVllm(ScriptedEngine):
    """vLLM with ``--enable-scale-out``, or without it where ``has_generate_route`` is unset."""

    has_generate_route = True
    """Whether ``/inference/v1/generate`` is served."""
    parses = True
    """Whether that route answers a parsed message; older servers answer ids alone."""

    def is_generation(self, path: str) -> bool:
        """Whether a route takes an entry of the script."""
        return path == "/v1/completions" or (path == "/inference/v1/generate" and self.has_generate_route)

    def answer_control(self, request: RecordedRequest) -> Answer:
        """vLLM's own control routes, as a server in development mode has them."""
        if request.path == "/is_paused":
            return Answer(body=orjson.dumps({"is_paused": self.is_paused}))
        if request.path == "/version":
            return Answer(body=b'{"version":"0.33.0"}')
        if request.path == "/abort_requests":
            for rid in request.json.get("request_ids", []):
                self.abort(rid)
            return Answer()
        if request.path in ("/model_info", "/get_model_info", "/ready"):
            return Answer(status=404, body=b'{"detail":"Not Found"}')
        return super().answer_control(request)

    def read_asked(self, request: RecordedRequest) -> JsonObject:
        """The call under SGLang's names."""
        params = request.json.get("sampling_params", request.json)
        return {
            "input_ids": request.json.get("token_ids", request.json.get("prompt")),
            "rid": request.json.get("request_id"),
            "return_routed_experts": False,
            "routed_experts_start_len": params.get("routed_experts_prompt_start", 0),
        }

    def stream(self, request: RecordedRequest, value: JsonObject, chunk_ids: int) -> bytes | None:
        """A streamed reply of the generate route: each event holds what is new, the last ones the rest."""
        if request.path != "/inference/v1/generate" or not request.json.get("stream"):
            return None
        choice = value["choices"][0]
        ids: list[int] = choice["token_ids"]
        events: list[JsonObject] = []
        for start in range(0, len(ids), chunk_ids):
            stop = min(start + chunk_ids, len(ids))
            content = choice["logprobs"]["content"][start:stop]
            events.append({"index": 0, "token_ids": ids[start:stop], "logprobs": {"content": content}})
        ending = {name: item for name, item in choice.items() if name not in ("token_ids", "logprobs", "message")}
        chunks: list[JsonObject] = [
            {"request_id": value["request_id"], "choices": [event]} for event in [*events, ending]
        ]
        chunks.append({"request_id": value["request_id"], "choices": [], "usage": value["usage"]})
        lines = [b"data: " + dump_reply(chunk) + b"\n\n" for chunk in chunks]
        return b"".join([*lines, b"data: [DONE]\n\n"])

    def render(
        self, request: RecordedRequest, asked: JsonObject, reply: ScriptedReply, sampled: Sampled, meta: JsonObject
    ) -> JsonObject:
        """The reply's body on the route that was called."""
        prompt: list[int] = asked["input_ids"]
        logprobs = [-9999.0 if lp == float("-inf") else lp for lp in sampled.logprobs]
        choice: JsonObject = {
            "index": 0,
            "finish_reason": "stop" if sampled.finish_reason == "tool_calls" else sampled.finish_reason,
            "stop_reason": None,
            "token_ids": list(sampled.ids),
            "weight_versions": meta.get("weight_versions"),
        }
        if request.path == "/v1/completions":
            choice |= {"text": reply.text, "logprobs": {"token_logprobs": logprobs}, "prompt_token_ids": prompt}
        else:
            content = [{"token_id": i, "logprob": lp} for i, lp in zip(sampled.ids, logprobs, strict=False)]
            choice["logprobs"] = {"content": content}
            if self.parses:
                calls = list(reply.tool_calls)
                choice["message"] = {"role": "assistant", "content": reply.text, "reasoning": reply.reasoning}
                choice["message"] |= {"tool_calls": calls} if calls else {}
        if self.moe is not None and not sampled.is_waiting_abort:
            choice["routed_experts"] = self._encode_rows([*prompt, *sampled.ids], asked, reply)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled.ids)}
        return {"request_id": asked["rid"], "model": "scripted", "choices": [choice], "usage": usage}

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
