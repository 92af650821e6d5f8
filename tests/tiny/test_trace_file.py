"""The KV trace as a file.

1. Each finished request is a line, with the routing key of its header; both generating routes keep it.
"""

import json
from pathlib import Path

from tiny.conftest import Serve


async def test_a_line_says_whom_its_request_was_for(serve: Serve, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    generate = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 2}}
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    async with serve(kv_trace=trace) as served:
        await served.client.post("/generate", json=generate, headers={"X-SMG-Routing-Key": "one"})
        await served.client.post("/v1/chat/completions", json=chat, headers={"X-SMG-Routing-Key": "two"})
        await served.client.post("/generate", json=generate)
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [line["routing_key"] for line in lines] == ["one", "two", ""]
