"""A system message for which the model's format has no place, in the dialects of its clients.

1. It is a 400 whose message begins with the words by which Claude Code knows to send its instructions otherwise.
2. The session stays as it was, and goes on without that message.
"""

from typing import Any

import pytest

from httpkit import Site, running_site
from rendering.templates.test_any_template import build, sources
from turnkeeper.jsontypes import JsonObject
from turnkeeper.testing import ScriptedReply

WORDS = "role 'system' is not supported after the first message"
ASKED: list[JsonObject] = [{"role": "user", "content": "Hi"}]
PLACELESS: list[JsonObject] = [*ASKED, {"role": "system", "content": "Be brief."}]


def ask(dialect: str, messages: list[JsonObject]) -> tuple[str, JsonObject]:
    """The path and body of a turn."""
    match dialect:
        case "chat":
            return "/v1/chat/completions", {"messages": messages}
        case "responses":
            return "/v1/responses", {"input": messages}
        case _:
            return "/v1/messages", {"messages": messages, "max_tokens": 9}


async def count_turns(site: Site, session: str) -> int:
    return len((await site.call("GET", session)).json()["metadata"]["tree"]["nodes"])


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
async def test_it_is_refused_in_the_words_that_claude_code_knows(dialect: str) -> None:
    """Mistral Nemo's template lets user and assistant alternate, so that not even a user message fits."""
    renderer = build(sources()["llama/mistralai-Mistral-Nemo-Instruct-2407"])
    assert renderer is not None
    async with running_site(use_session_server="v2", renderer=renderer) as site:
        site.engine.script.append(ScriptedReply(text="Hello."))
        session = await site.create()
        path, body = ask(dialect, PLACELESS)
        refused = await site.call("POST", session + path, body)
        error: Any = refused.json()["error"]
        assert (refused.status, await count_turns(site, session)) == (400, 0)
        assert error["message"].startswith(WORDS)
        path, body = ask(dialect, ASKED)
        assert (await site.call("POST", session + path, body)).status == 200
        assert await count_turns(site, session) == 1
