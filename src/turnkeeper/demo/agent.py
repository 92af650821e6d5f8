"""An agent as its author would write it: a loop around a plain OpenAI client and one calculator tool.

It knows a base URL and nothing of sessions, tokens or weights.
"""

import json
from dataclasses import dataclass

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageFunctionToolCall

from turnkeeper.demo.tasks import CALCULATOR_TOOL, SYSTEM_PROMPT, Task, calculate, is_solved
from turnkeeper.jsontypes import JsonObject

MAX_TURNS = 6
"""A task of two steps takes three turns; the rest is room for a model that calls once more."""

MAX_TOKENS = 96
"""A right turn takes about 40 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOutcome:
    """The outcome of one rollout."""

    task_id: str
    rollout: int
    session_id: str
    turns: int
    """Replies the agent received."""
    final_text: str
    is_solved: bool


async def play_task(client: AsyncOpenAI, task: Task, *, rollout: int, session_id: str) -> RolloutOutcome:
    """Play a task to its final text, or to :data:`MAX_TURNS`."""
    messages: list[JsonObject] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": task.question},
    ]
    turns, text = 0, ""
    while turns < MAX_TURNS:
        reply = await _ask(client, messages)
        turns += 1
        messages.append(reply.model_dump(exclude_none=True))
        calls = [call for call in reply.tool_calls or () if isinstance(call, ChatCompletionMessageFunctionToolCall)]
        text = reply.content or ""
        if not calls:
            break
        messages += [{"role": "tool", "tool_call_id": call.id, "content": run_tool(call)} for call in calls]
    return RolloutOutcome(
        task_id=task.id,
        rollout=rollout,
        session_id=session_id,
        turns=turns,
        final_text=text,
        is_solved=is_solved(task, text),
    )


async def _ask(client: AsyncOpenAI, messages: list[JsonObject]) -> ChatCompletionMessage:
    completion = await client.chat.completions.create(
        model="policy",
        messages=messages,  # pyright: ignore[reportArgumentType] - plain dicts, as most agents send them
        tools=[CALCULATOR_TOOL],  # pyright: ignore[reportArgumentType] - the same
        temperature=1.0,
        max_tokens=MAX_TOKENS,
    )
    return completion.choices[0].message


def run_tool(call: ChatCompletionMessageFunctionToolCall) -> str:
    """Run the calculator on whatever the model wrote, and return its answer."""
    try:
        arguments = json.loads(call.function.arguments)
    except json.JSONDecodeError:
        return "error: the arguments are not JSON"
    expression = arguments.get("expression") if isinstance(arguments, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - what the model wrote
    if not isinstance(expression, str):
        return "error: the argument expression is missing"
    return calculate(expression)
