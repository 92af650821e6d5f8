"""strands, over chat completions, streamed."""

from common import SYSTEM, TASK, main, run_command
from strands import Agent, tool
from strands.models.openai import OpenAIModel


@tool
def bash(command: str) -> str:
    """Run a shell command.

    Args:
        command: the command.
    """
    return run_command(command)


def play(mode: str, url: str) -> str:
    model = OpenAIModel(client_args={"base_url": f"{url}/v1", "api_key": "none"}, model_id="m")
    return str(Agent(model=model, tools=[bash], system_prompt=SYSTEM, callback_handler=None)(TASK))


if __name__ == "__main__":
    main(play)
