"""pydantic-ai, over chat completions, responses and Anthropic's messages, whole and streamed."""

import asyncio
from collections.abc import AsyncIterable

from common import DESCRIPTION, SYSTEM, TASK, main, run_command
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def bash(command: str) -> str:
    return run_command(command)


bash.__doc__ = DESCRIPTION


def play(mode: str, url: str) -> str:
    dialect, _, form = mode.partition("-")
    if dialect == "chat":
        model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    elif dialect == "responses":
        model = OpenAIResponsesModel("m", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    else:
        model = AnthropicModel("m", provider=AnthropicProvider(base_url=url, api_key="none"))
    return asyncio.run(run(Agent(model, instructions=SYSTEM, tools=[bash]), form == "stream"))


async def run(agent: "Agent[None, str]", streams: bool) -> str:
    return (await agent.run(TASK, event_stream_handler=read_events if streams else None)).output


async def read_events(_: object, events: AsyncIterable[object]) -> None:
    async for _event in events:
        pass


if __name__ == "__main__":
    main(play)
