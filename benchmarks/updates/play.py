"""The load: agents that play task after task in one conversation, so that paths grow long.

They use a plain OpenAI client and know nothing of updates, except that a 503 with Retry-After is sent again.
"""

from collections.abc import Callable
from dataclasses import dataclass

from openai import APIStatusError, AsyncOpenAI
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageFunctionToolCall

from benchmarks.updates.case import Sampling
from turnkeeper.demo.agent import run_tool
from turnkeeper.demo.tasks import CALCULATOR_TOOL, SYSTEM_PROMPT, Task
from turnkeeper.jsontypes import JsonObject

MAX_TURNS = 4
"""Of one task; a task of two steps takes three."""

MAX_TOKENS = 64
MAX_REFUSALS = 20
"""An agent that is refused more often fails the run."""


@dataclass(slots=True, kw_only=True)
class Rollout:
    """One agent's rollout as the agent saw it."""

    session_id: str
    sampling: Sampling
    on_reply: Callable[[], None]
    """Called for every reply received."""
    turns: int = 0
    """Replies received."""
    refusals: int = 0
    """503s with Retry-After, each of which was sent again."""


async def play_tasks(client: AsyncOpenAI, tasks: tuple[Task, ...], rollout: Rollout) -> None:
    """Play the tasks one after the other in one conversation."""
    messages: list[JsonObject] = [{"role": "system", "content": SYSTEM_PROMPT}]
    for task in tasks:
        messages.append({"role": "user", "content": task.question})
        for _ in range(MAX_TURNS):
            reply = await _ask(client, messages, rollout)
            messages.append(reply.model_dump(exclude_none=True))
            calls = [call for call in reply.tool_calls or () if isinstance(call, ChatCompletionMessageFunctionToolCall)]
            if not calls:
                break
            messages += [{"role": "tool", "tool_call_id": call.id, "content": run_tool(call)} for call in calls]


async def _ask(client: AsyncOpenAI, messages: list[JsonObject], rollout: Rollout) -> ChatCompletionMessage:
    while True:
        try:
            completion = await client.chat.completions.create(
                model="policy",
                messages=messages,  # pyright: ignore[reportArgumentType] - plain dicts, as most agents send them
                tools=[CALCULATOR_TOOL],  # pyright: ignore[reportArgumentType] - the same
                temperature=rollout.sampling.temperature,
                top_p=rollout.sampling.top_p,
                max_tokens=MAX_TOKENS,
            )
        except APIStatusError as error:
            is_asked_back = error.status_code == 503 and "retry-after" in error.response.headers
            if not is_asked_back or rollout.refusals >= MAX_REFUSALS:
                raise
            rollout.refusals += 1  # sent again at once: while the engines are paused the server holds it back
            continue
        rollout.turns += 1
        rollout.on_reply()
        return completion.choices[0].message
