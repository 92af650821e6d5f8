"""smolagents, over chat completions. It writes its calls into the text of its history."""

from common import DESCRIPTION, TASK, main, run_command
from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def bash(command: str) -> str:
    """Run a shell command.

    Args:
        command: the command.
    """
    return run_command(command)


def play(mode: str, url: str) -> str:
    assert bash.description.startswith(DESCRIPTION.rstrip("."))
    model = OpenAIServerModel(model_id="m", api_base=f"{url}/v1", api_key="none")
    return str(ToolCallingAgent(tools=[bash], model=model, max_steps=6).run(TASK))


if __name__ == "__main__":
    main(play)
