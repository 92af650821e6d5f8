"""An agent of LangChain (a graph of langgraph), over chat completions, responses and Anthropic's messages."""

import os

os.environ["LANGSMITH_TRACING"] = "false"

from common import DESCRIPTION, SYSTEM, TASK, main, run_command
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool(description=DESCRIPTION)
def bash(command: str) -> str:
    return run_command(command)


def play(mode: str, url: str) -> str:
    if mode == "messages":
        model = ChatAnthropic(model="m", base_url=url, api_key="none", max_retries=0)
    else:
        responses = mode == "responses"
        model = ChatOpenAI(model="m", base_url=f"{url}/v1", api_key="none", max_retries=0, use_responses_api=responses)
    agent = create_agent(model, tools=[bash], system_prompt=SYSTEM)
    last = agent.invoke({"messages": [{"role": "user", "content": TASK}]})["messages"][-1]
    return last.text if isinstance(last.text, str) else last.text()


if __name__ == "__main__":
    main(play)
