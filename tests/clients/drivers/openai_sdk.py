"""The openai SDK in a plain loop: chat completions and responses, whole and through ``.stream()``."""

import json
from typing import Any

from common import DESCRIPTION, SCHEMA, SYSTEM, TASK, main, run_command
from openai import OpenAI

FUNCTION = {"name": "bash", "description": DESCRIPTION, "parameters": SCHEMA}


def play_chat(client: OpenAI, streams: bool) -> str:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    while True:
        asked: dict[str, Any] = {
            "model": "m",
            "messages": messages,
            "tools": [{"type": "function", "function": FUNCTION}],
        }
        if streams:
            with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
                completion: Any = stream.get_final_completion()
            assert completion.usage.total_tokens > 0
        else:
            completion = client.chat.completions.create(**asked)
        message = completion.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            text = run_command(json.loads(call.function.arguments)["command"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


def play_responses(client: OpenAI, streams: bool) -> str:
    items: list[Any] = [{"role": "user", "content": TASK}]
    while True:
        asked: dict[str, Any] = {
            "model": "m",
            "instructions": SYSTEM,
            "input": items,
            "tools": [{"type": "function", **FUNCTION}],
            "store": False,
        }
        if streams:
            with client.responses.stream(**asked) as stream:
                response: Any = stream.get_final_response()
        else:
            response = client.responses.create(**asked)
        items += response.output
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        for call in calls:
            text = run_command(json.loads(call.arguments)["command"])
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": text})


def play(mode: str, url: str) -> str:
    dialect, _, form = mode.partition("-")
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return (play_chat if dialect == "chat" else play_responses)(client, form == "stream")


if __name__ == "__main__":
    main(play)
