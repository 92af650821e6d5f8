"""Record what a real vLLM server answers, for the tests that run without one.

``VLLM=/path/to/vllm VLLM_ROWS=1 python tests/record_vllm.py`` writes ``tests/data/vllm/recorded-VERSION.json``: by
name, what was sent, the status, and the body or the events. Times and random ids are left out.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import vllmkit
from turnkeeper.engines import EngineClient

PROMPT = [1, 304, 207, 417, 392, 229, 26, 33, 453, 229, 25, 25, 22, 2, 207, 1, 303, 207]
"""A user's question and the head of the answer, as the embedded model's chat format spells them."""
GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
SHORT = {"temperature": 0, "max_tokens": 4, "logprobs": 0, "skip_special_tokens": False}
ENDLESS = {"temperature": 0, "max_tokens": 900, "ignore_eos": True, "logprobs": 0, "skip_special_tokens": False}
DROPPED = {"created", "permission", "root"}

Recorded = dict[str, Any]


def clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: clean(item) for name, item in value.items() if name not in DROPPED}
    return [clean(item) for item in value] if isinstance(value, list) else value


class Recorder:
    """Calls a server and keeps the answers."""

    def __init__(self, url: str, client: EngineClient) -> None:
        self.url, self.client = url, client
        self.answers: dict[str, Recorded] = {}

    async def call(self, name: str, path: str, body: Recorded | None = None, *, method: str = "POST") -> Any:
        raw = None if body is None else json.dumps(body).encode()
        headers = (("content-type", "application/json"),)
        reply = await self.client.call(method, f"{self.url}{path}", body=raw, headers=headers)
        kept: Recorded = {"path": path, "request": body, "status": reply.status}
        if (reply.find_header("content-type") or "").startswith("text/event-stream"):
            data = [event.removeprefix("data: ") for event in bytes(reply.body).decode().split("\n\n") if event]
            kept["events"] = [clean(json.loads(each)) for each in data if each != "[DONE]"]
        else:
            kept["body"] = clean(json.loads(reply.body)) if reply.body else None
        self.answers[name] = kept
        return kept

    def generate(self, name: str, *, params: Recorded | None = None, **fields: Any) -> Awaitable[Any]:
        body = {"request_id": name, "token_ids": PROMPT, "sampling_params": {**SHORT, **(params or {})}, **fields}
        return self.call(name, GENERATE, body)

    def complete(self, name: str, **fields: Any) -> Awaitable[Any]:
        body = {"request_id": name, "prompt": PROMPT, "return_token_ids": True, **SHORT, **fields}
        return self.call(name, COMPLETIONS, {**body, "return_weight_versions": True})

    async def during(self, call: Awaitable[Any], act: Callable[[], Awaitable[Any]]) -> None:
        """Act while the call runs; vLLM tells nobody that it has begun."""
        running = asyncio.ensure_future(call)
        await asyncio.sleep(0.5)
        await act()
        await running


async def record_replies(it: Recorder) -> None:
    too_long = [5] * (vllmkit.CONTEXT_LENGTH + 9)
    await it.generate("generate_length")
    await it.generate("generate_stop", params={"max_tokens": 64})
    await it.generate("generate_stop_string", params={"max_tokens": 64, "stop": ["</think>"]})
    await it.generate("generate_stop_id", params={"max_tokens": 64, "stop_token_ids": [4]})
    await it.generate("generate_no_text", params={"detokenize": False})
    await it.generate("generate_rows_from", params={"routed_experts_prompt_start": len(PROMPT) - 2})
    await it.generate("generate_too_long", token_ids=too_long)
    await it.generate("generate_full", token_ids=too_long[: vllmkit.CONTEXT_LENGTH])
    await it.generate("generate_no_such_id", token_ids=[1, 99999])
    await it.generate("generate_bad_parameter", params={"temperature": -1})
    await it.generate("generate_bad_salt", cache_salt="a/b")
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    await it.generate("stream_length", **stream)
    await it.generate("stream_stop_string", params={"max_tokens": 64, "stop": ["</think>"]}, **stream)
    await it.generate("stream_too_long", token_ids=too_long, **stream)
    await it.complete("completions_length")
    await it.complete("completions_stop_string", max_tokens=64, stop=["</think>"])
    await it.complete("completions_rows_from", routed_experts_prompt_start=len(PROMPT) - 2)
    await it.complete("completions_too_long", prompt=too_long)
    await it.complete("completions_budget_too_long", max_tokens=vllmkit.CONTEXT_LENGTH + 1)
    await it.complete("completions_no_budget", max_tokens=None)
    await it.complete("completions_no_such_model", model="other")
    await it.complete("completions_stream", **stream)


async def record_control(it: Recorder) -> None:
    for name, path in (("version", "/version"), ("models", "/v1/models")):
        await it.call(name, path, method="GET")
    await it.call("weight_info", "/weight_info", method="GET")
    await it.call("is_paused_no", "/is_paused", method="GET")
    await it.call("pause_bad_mode", "/pause?mode=retract")
    await it.during(
        it.generate("generate_aborted", params=ENDLESS),
        lambda: it.call(
            "abort", f"{GENERATE[:13]}/abort_requests", {"request_ids": ["generate-tokens-generate_aborted"]}
        ),
    )
    await it.during(
        it.complete("completions_aborted", **ENDLESS),
        lambda: it.call("abort_dev", "/abort_requests", {"request_ids": ["cmpl-completions_aborted-0"]}),
    )

    async def pause_and_update(mode: str) -> None:
        await it.call(f"pause_{mode}", f"/pause?mode={mode}")
        await it.call("is_paused_yes", "/is_paused", method="GET")
        await it.call("update_weight_version", "/update_weight_version", {"new_version": f"after-{mode}"})
        await it.call("resume", "/resume")

    await it.during(it.generate("generate_paused_abort", params=ENDLESS), lambda: pause_and_update("abort"))
    await it.during(
        it.generate("generate_paused_keep", params=ENDLESS | {"max_tokens": 40}), lambda: pause_and_update("keep")
    )

    async def retract() -> None:
        await it.call("pause_retract", "/pause?mode=keep")
        await it.call("reset_running", "/reset_prefix_cache?reset_running_requests=true")
        await it.call("update_weight_version", "/update_weight_version", {"new_version": "after-retract"})
        await it.call("resume", "/resume")

    await it.during(it.generate("generate_retracted", params=ENDLESS | {"max_tokens": 40}), retract)
    await it.call("reset", "/reset_prefix_cache")
    await it.call("pause_abort", "/pause?mode=abort")
    waiting = it.generate("generate_paused_waiting", params=ENDLESS | {"max_tokens": 3})
    await it.during(waiting, lambda: it.call("pause_again", "/pause?mode=abort"))
    await it.call("resume", "/resume")


def shorten(answers: dict[str, Recorded]) -> None:
    """Say of a long prompt how long it was."""
    for kept in answers.values():
        for name in ("token_ids", "prompt"):
            ids = (kept["request"] or {}).get(name) or []
            if len(ids) > 64:
                kept["request"][name] = f"{len(ids)} ids"


async def main() -> None:
    client = EngineClient()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = vllmkit.write_mixtral(Path(folder) / "model")
        with vllmkit.serving_vllm(checkpoint) as url:
            it = Recorder(url, client)
            await record_replies(it)
            await record_control(it)
        with vllmkit.serving_vllm(checkpoint, scale_out=False, rows=False) as url:
            off = Recorder(url, client)
            await off.generate("generate_off")
            it.answers |= off.answers
    await client.close()
    shorten(it.answers)
    version = it.answers["version"]["body"]["version"]
    target = Path(__file__).parent / "data" / "vllm" / f"recorded-{version}.json"
    target.parent.mkdir(exist_ok=True)
    lines = [f"{json.dumps(name)}: {json.dumps(kept)}" for name, kept in it.answers.items()]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    sys.stdout.write(f"{target}: {len(lines)} answers of vLLM {version}, {target.stat().st_size} bytes\n")


if __name__ == "__main__":
    asyncio.run(main())
