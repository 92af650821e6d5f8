"""openai-agents, over chat completions and over responses."""

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from common import DESCRIPTION, SYSTEM, TASK, main, run_command
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool(description_override=DESCRIPTION)
def bash(command: str) -> str:
    return run_command(command)


def play(mode: str, url: str) -> str:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    kind = OpenAIChatCompletionsModel if mode == "chat" else OpenAIResponsesModel
    agent = Agent(name="agent", instructions=SYSTEM, tools=[bash], model=kind(model="m", openai_client=client))
    return Runner.run_sync(agent, TASK).final_output


if __name__ == "__main__":
    main(play)
