"""The anthropic SDK in a plain loop, whole and through ``.stream()``."""

from typing import Any

from anthropic import Anthropic
from common import DESCRIPTION, SCHEMA, SYSTEM, TASK, main, run_command


def play(mode: str, url: str) -> str:
    messages: list[Any] = [{"role": "user", "content": TASK}]
    tools = [{"name": "bash", "description": DESCRIPTION, "input_schema": SCHEMA}]
    with Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        while True:
            asked: dict[str, Any] = {
                "model": "m",
                "max_tokens": 500,
                "system": SYSTEM,
                "messages": messages,
                "tools": tools,
                "thinking": {"type": "enabled", "budget_tokens": 100},
            }
            if mode == "stream":
                with client.messages.stream(**asked) as stream:
                    message: Any = stream.get_final_message()
            else:
                message = client.messages.create(**asked)
            messages.append({"role": "assistant", "content": message.content})
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in message.content if block.type == "text")
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": run_command(call.input["command"])}
                for call in calls
            ]
            messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    main(play)
