"""Agent clients against the server, unchanged: each plays a task of several turns with tools.

1. The task ends with the right words.
2. Every turn of it extends the one before, whatever the client does to its history, under both histories.
3. The samples are those of the same conversation through chat completions.
"""

import pytest

from clientkit import check_run, open_runs, play, running_stage

CLIENTS: dict[str, tuple[str, list[str], int]] = {
    "openai": ("openai_sdk.py", ["chat", "chat-stream", "responses", "responses-stream"], 3),
    "anthropic": ("anthropic_sdk.py", ["whole", "stream"], 3),
    "openai-agents": ("openai_agents.py", ["chat", "responses"], 3),
    "pydantic-ai": (
        "pydantic_ai_agent.py",
        ["chat", "chat-stream", "responses", "responses-stream", "messages", "messages-stream"],
        3,
    ),
    "mini-swe-agent": ("mini_swe_agent.py", ["chat"], 3),
}
"""Driver, modes, and the number of the task's turns."""


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_plays_a_task_unchanged(name: str) -> None:
    driver, modes, turns = CLIENTS[name]
    async with running_stage() as site:
        runs = await open_runs(site, modes, ["linear", "tree"])
        await play(driver, runs)
        for run in runs:
            await check_run(site, run, turns=turns)
