"""``--render-tools`` reaches the prompt, and the engine still gets the tools as the client sent them."""

from typing import Any

import pytest

from probekit import build_engine, probing_site
from servicekit import get_renderer, user
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.testing import running

WITHOUT_ROWS = {"use_rollout_routing_replay": False}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, '{"type": "function", "function": {"name": "look", "parameters": {}}}'),
        ({"render_tools": "as_sent"}, '{"type": "function", "function": {"name": "look", "parameters": {}}}'),
        (
            {"render_tools": "engine"},
            '{"type": "function", '
            '"function": {"description": null, "name": "look", "parameters": {}, "strict": false}}',
        ),
    ],
    ids=["unset", "as_sent", "engine"],
)
async def test_tools_are_rendered_in_the_form_that_was_chosen(options: dict[str, Any], written: str) -> None:
    engine = build_engine()
    async with running(engine) as engine_url, probing_site(engine, engine_url, **WITHOUT_ROWS, **options) as site:
        reply = await site.chat(await site.create(), [user("Hi")], tools=[TOOL])
        assert reply.status == 200
    call = next(request.json for request in engine.requests if request.json.get("tools"))
    assert call["tools"] == [TOOL]
    assert written in get_renderer().tokenizer.decode(freeze_ids(call["input_ids"]))
