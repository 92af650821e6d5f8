"""Nothing that an agent, a model, an engine's error or a client's key says stands in the log, at debug, in either form.

Every path on which such words could get into a line is played: turns, refusals, engines that quote the prompt, replies
that make no sense, hooks and matchers that fail over a text, requests on no route, and faults of the server itself.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from agentkit import AGENTS
from httpkit import Site, running_site
from logs.test_setup import without_handlers
from servicekit import user
from turnkeeper.choices import LogFormat, LogLevel
from turnkeeper.logs import LogOptions, logging_to
from turnkeeper.testing import ScriptedEngine, ScriptedReply

ADMIN, WORD = "adm1n-k3y", "pl4gi4rism"
TEXT = f'tell nobody of {WORD}\n{{"level":"error"}}\x1b[31m \u2028'

ENGINES: dict[str, ScriptedReply] = {
    "an answer": ScriptedReply(text=TEXT),
    "a refusal that quotes": ScriptedReply(status=400, body=json.dumps({"message": f"bad prompt: {TEXT}"}).encode()),
    "a length that quotes": ScriptedReply(status=400, body=f"longer than the maximum model length: {TEXT}".encode()),
    "a fault that quotes": ScriptedReply(status=500, body=TEXT.encode()),
    "an engine out of reach": ScriptedReply(status=503, body=TEXT.encode()),
    "no JSON": ScriptedReply(body=TEXT.encode()),
    "a call without a name": ScriptedReply(
        edit=lambda reply: reply["choices"][0]["message"].update(tool_calls=[{"function": {"name": "", "x": TEXT}}])
    ),
    "content that is a list": ScriptedReply(
        edit=lambda reply: reply["choices"][0]["message"].update(content=[{"type": "text", "text": TEXT}])
    ),
    "a token that is no number": ScriptedReply(
        edit=lambda reply: reply["choices"][0]["meta_info"].update(output_token_logprobs=[[-0.1, TEXT, None]])
    ),
    "no count": ScriptedReply(edit=lambda reply: reply["choices"][0]["meta_info"].update(completion_tokens=99)),
}
"""What the engine answers to every call."""

BODIES: dict[str, Any] = {
    "a turn": {"messages": [user(TEXT)]},
    "a system message": {"messages": [{"role": "system", "content": TEXT}, user(TEXT)]},
    "a tool": {
        "messages": [user("a")],
        "tools": [{"type": "function", "function": {"name": WORD, "parameters": TEXT}}],
    },
    "a tool's result": {"messages": [user("a"), {"role": "tool", "tool_call_id": WORD, "content": TEXT}]},
    "arguments that are no JSON": {
        "messages": [
            user("a"),
            {"role": "assistant", "tool_calls": [{"id": WORD, "function": {"name": WORD, "arguments": TEXT}}]},
            user("b"),
        ]
    },
    "a role": {"messages": [{"role": WORD, "content": TEXT}]},
    "content of another kind": {"messages": [{"role": "user", "content": {WORD: TEXT}}]},
    "a part of another kind": {"messages": [{"role": "user", "content": [{"type": WORD, "text": TEXT}]}]},
    "an assistant last": {"messages": [user(TEXT), {"role": "assistant", "content": TEXT}]},
    "no messages": {"messages": [], "metadata": {WORD: TEXT}},
    "a field that is not known": {"messages": [user("a")], WORD: TEXT},
    "a field that is not allowed": {"messages": [user("a")], "lora_path": TEXT},
    "a sampler of another kind": {"messages": [user("a")], "temperature": TEXT, "stop": [TEXT]},
    "a template argument": {"messages": [user("a")], "chat_template_kwargs": {WORD: TEXT, "messages": TEXT}},
    "a model": {"messages": [user("a")], "model": WORD},
    "a list": [TEXT],
    "no JSON": TEXT.encode(),
    "a truncated body": json.dumps({"messages": [user(TEXT)]}).encode()[:-3],
}
"""What an agent sends."""


def fail_over(*values: Any) -> Any:
    """A matcher, picker and hook that fails and quotes what it was given."""
    raise ValueError(f"cannot read {WORD}: {values!r}")


def break_call(args: dict[str, Any], context: object, request: dict[str, Any]) -> Any:
    """A hook on engine calls that fails and quotes the prompt."""
    raise KeyError(f"{WORD} {request!r}")


async def play(site: Site, bodies: list[Any]) -> None:
    """Send everything to every route, as the agent and as strangers."""
    created = (await site.call("POST", "/sessions", {"metadata": {"answer": TEXT}}, x_api_key=ADMIN)).json()
    session, key = f"/sessions/{created['session_id']}", created["key"]
    for body in bodies:
        for agent in AGENTS.values():
            await site.call("POST", f"{session}/{agent.path}", body, x_api_key=key, x_request_id="r-1")
            await site.call("POST", f"{session}/{agent.path}", body, authorization=f"Bearer {key}", x_agent=WORD)
    streamed = {"messages": [user(TEXT), user("again")], "stream": True}
    await site.call("POST", f"{session}/v1/chat/completions", streamed, x_api_key=key)
    for path in (f"{session}/tokenize", f"{session}/v1/files", f"{session}/generate", "/v1/chat/completions"):
        await site.call("POST", path, {"prompt": TEXT, "messages": [user(TEXT)]}, x_api_key=key)
    await site.call("POST", f"/sessions/{key}/v1/chat/completions", bodies[0], x_api_key=f"{WORD}-key")
    await site.call("POST", f"/sessions/{WORD}/v1/messages", bodies[0], x_api_key=key)
    await site.call("GET", f"{session}?token={WORD}&key={key}", x_api_key=ADMIN)
    await site.call("POST", "/sessions", {WORD: TEXT, "sampling_params": {WORD: TEXT}}, x_api_key=ADMIN)
    for body in (None, {"rewards": {WORD: TEXT}}, {"metadata": {"reward": TEXT}}):
        await site.call("POST", f"{session}/samples", body, x_api_key=ADMIN)
    await site.call("POST", "/engine/pause", {"mode": TEXT}, x_api_key=ADMIN)
    await site.call("DELETE", session, x_api_key=ADMIN)


async def collect_log(path: Path, form: LogFormat, engine: ScriptedReply, bodies: list[Any], **options: Any) -> str:
    """Play, and return the log; the paths of a server that lets everything through are part of it."""
    chosen = LogOptions(form=form, level=LogLevel.DEBUG, secrets=(ADMIN,))
    scripted = ScriptedEngine(default=engine)
    with (
        path.open("ab") as file,
        without_handlers(),
        logging_to(chosen, is_whole_process=True, descriptor=file.fileno()),
    ):
        async with running_site(scripted, api_key=ADMIN, use_session_server="v2", abort_grace=0.01, **options) as site:
            await play(site, bodies)
    return path.read_text()  # noqa: ASYNC240 - nothing else runs any more


def check(log: str, form: LogFormat) -> list[str]:
    """The events of a log that says nothing it should not."""
    assert [line for line in log.split("\n") if WORD in line or ADMIN in line] == []
    assert "tk-" not in log.replace("turnkeeper", "")
    assert all(line.isprintable() for line in log.splitlines())
    assert log.splitlines() == log.split("\n")[:-1]
    if form is LogFormat.TEXT:
        return [line.split(" ")[2] for line in log.splitlines()]
    return [json.loads(line)["event"] for line in log.splitlines()]


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize("name", ENGINES)
async def test_no_reply_of_an_engine_gets_into_the_log(name: str, form: LogFormat, tmp_path: Path) -> None:
    bodies = [{"messages": [user(TEXT)], "input": TEXT, "max_tokens": 9, "model": "m"}]
    log = await collect_log(tmp_path / "log", form, ENGINES[name], bodies)
    assert {"turn_ended", "session_ended", "engine_call_ended", "request_failed"} <= {*check(log, form)}


@pytest.mark.parametrize("form", LogFormat)
async def test_no_word_of_an_agent_gets_into_the_log(form: LogFormat, tmp_path: Path) -> None:
    log = await collect_log(tmp_path / "log", form, ScriptedReply(text=TEXT), list(BODIES.values()))
    events = check(log, form)
    assert {"turn_matched", "prompt_rendered", "turn_ended", "request_failed", "branch_explained"} <= {*events}


@pytest.mark.parametrize(
    "option",
    [
        "session_message_matcher",
        "session_sample_picker_path",
        "session_sample_postprocessor_path",
        "custom_rollout_request_hook_path",
    ],
)
async def test_no_fault_of_a_hook_gets_its_words_into_the_log(option: str, tmp_path: Path) -> None:
    hook = "break_call" if option == "custom_rollout_request_hook_path" else "fail_over"
    options: dict[str, Any] = {option: f"logs.test_hostile.{hook}", "custom_rollout_request_hook_args": {"key": ADMIN}}
    bodies = [{"messages": [user(TEXT)]}, {"messages": [user(TEXT), user("more")]}]
    log = await collect_log(tmp_path / "log", LogFormat.JSON, ScriptedReply(text=TEXT), bodies, **options)
    events = check(log, LogFormat.JSON)
    assert "request_failed" in events


async def test_no_unforeseen_fault_gets_its_words_into_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnkeeper.service.turns.turn_service.log_matched", fail_over)
    bodies = [{"messages": [user(TEXT)]}]
    log = await collect_log(tmp_path / "log", LogFormat.JSON, ScriptedReply(text=TEXT), bodies)
    check(log, LogFormat.JSON)
    faults = [each for line in log.splitlines() if (each := json.loads(line)).get("error") == "ValueError"]
    assert faults
    assert any("logs/test_hostile.py" in frame for each in faults for frame in each["frames"])
