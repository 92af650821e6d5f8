"""A stage for real agent clients: the server with a scripted engine that plays one task with any of them.

::

    async with running_stage() as site:
        runs = await open_runs(site, modes=["chat"], histories=["tree"])
        await play(driver_command("openai_sdk.py"), runs)
        for run in runs:
            await check_run(site, run)

The engine asks for the hello command twice at once, then once more, then ends; what it says depends on nothing but
the conversation it is sent, so that sessions may run side by side.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from httpkit import Site, running_site
from servicekit import get_renderer
from turnkeeper.core import Session, Turn
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import Renderer
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.testing import RecordedRequest, ScriptedEngine, ScriptedReply

DRIVERS = Path(__file__).parent / "clients" / "drivers"
RESULT = "hello-from-tool"
FINAL = f"All done: {RESULT}."
SHELLS: dict[str, str] = {
    "bash": "command",
    "Bash": "command",
    "exec_command": "cmd",
    "shell": "command",
    "shell_command": "command",
    "run_shell_command": "command",
}
"""What clients call their shell, and its parameter."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One session of a client."""

    mode: str
    history: str
    session: str
    """Its path."""
    url: str
    final: str = ""
    """The client's last words."""


@asynccontextmanager
async def running_stage(renderer: Renderer | None = None, **options: Any) -> AsyncGenerator[Site]:
    """The server in front of the engine that plays the task; without a renderer its model is the embedded engine's."""
    renderer = renderer or get_renderer()
    engine = ScriptedEngine(
        default=choose_reply,
        encode=lambda text: renderer.tokenizer.encode(text).tolist(),
        context_length=10**6,
    )
    async with running_site(engine, renderer=renderer, **options) as site:
        yield site


async def open_runs(site: Site, modes: Sequence[str], histories: Sequence[str]) -> list[Run]:
    """A session for each mode and history."""
    runs: list[Run] = []
    for mode in modes:
        for history in histories:
            session = await site.create(history=history)
            runs.append(Run(mode=mode, history=history, session=session, url=f"{site.url}{session}"))
    return runs


async def play(driver: str, runs: Sequence[Run], *, python: Path | str = sys.executable, limit_s: float = 100) -> None:
    """Let a driver play its runs, one after another in one process."""
    arguments = [str(DRIVERS / driver), *(f"{run.mode}={run.url}" for run in runs)]
    output = await run_process([str(python), *arguments], {}, limit_s=limit_s)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"mode"')]
    assert [line["mode"] for line in lines] == [run.mode for run in runs], output
    for run, line in zip(runs, lines, strict=True):
        run.final = line["final"]


async def run_process(
    command: Sequence[str], environment: Mapping[str, str], *, cwd: Path | None = None, limit_s: float
) -> str:
    """Run a client to its end; what it printed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        cwd=cwd,
    )
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"{command[0]} ended with {process.returncode}:\n{out.decode()}\n{err.decode()}"
    return out.decode()


def choose_reply(request: RecordedRequest) -> ScriptedReply:
    """What the engine says to a conversation."""
    names = [tool["function"]["name"] for tool in request.json.get("tools") or ()]
    shell = next((name for name in names if name in SHELLS), None)
    if shell is None:
        return ScriptedReply(text='{"title": "Run hello"}')
    messages = request.json["messages"]
    asked = [read_text(message) for message in messages if message["role"] == "user"]
    # Some clients write the results of their tools into what the user says.
    results = sum(message["role"] == "tool" for message in messages) or sum(text.count(RESULT) for text in asked)
    if results >= 3:
        return _end(names, shell, any("COMPLETE_TASK" in text for text in asked))
    commands = [f"echo {RESULT}", f"printf '%s\\n' {RESULT}"] if results == 0 else [f"echo  {RESULT}"]
    calls = [_call(shell, command, f"call_{results}_{place}") for place, command in enumerate(commands)]
    return ScriptedReply(
        text="I will run it.",
        reasoning=f"The user wants hello; {results} results so far.",
        tool_calls=calls,
        finish_reason="tool_calls",
    )


def _end(names: list[str], shell: str, submits: bool) -> ScriptedReply:
    if "final_answer" in names:
        answer = _build_call("final_answer", {"answer": FINAL}, "call_end")
        return ScriptedReply(text="", tool_calls=[answer], finish_reason="tool_calls")
    if submits:
        submit = _call(shell, f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo '{FINAL}'", "call_end")
        return ScriptedReply(text="Done.", tool_calls=[submit], finish_reason="tool_calls")
    return ScriptedReply(text=FINAL, reasoning="That is all.")


def _call(shell: str, command: str, call_id: str) -> JsonObject:
    return _build_call(shell, {SHELLS[shell]: command}, call_id)


def _build_call(name: str, arguments: JsonObject, call_id: str) -> JsonObject:
    # Two blanks: a spelling that clients which write the arguments anew will not keep.
    spelled = json.dumps(arguments).replace('": ', '":  ')
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": spelled}}


def read_text(message: Mapping[str, Any]) -> str:
    """The text of a message in chat form."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def get_session(site: Site, run: Run) -> Session:
    """The pure session of a run."""
    return site.find_entry(run.session.removeprefix("/sessions/")).session


def list_main_turns(session: Session) -> list[Turn]:
    """The turns of the task itself: those that offer a shell."""
    return [
        turn for turn in session.forest.turns if any(tool["function"]["name"] in SHELLS for tool in turn.request.tools)
    ]


async def check_run(site: Site, run: Run, *, turns: int = 3) -> None:
    """The task ended, every main turn extends the one before, and chat would have given the same samples."""
    assert FINAL in run.final, run
    session = get_session(site, run)
    main = list_main_turns(session)
    assert len(main) == turns, [turn.why for turn in main]
    for before, after in pairwise(main):
        assert after.parent == before.id, (run, after.why.describe())
    assert await collect(site, run.session) == await collect(site, await replay_as_chat(site, session, run.history))


async def replay_as_chat(site: Site, session: Session, history: str) -> str:
    """Hold the session's conversation again, through chat completions; the new session's path."""
    copy = await site.create(history=history)
    for turn in session.forest.turns:
        completion = turn.completion
        body: JsonObject = {
            "messages": [*session.forest.path_messages(turn.parent), *turn.messages],
            "tools": list(turn.request.tools) or None,
            **turn.request.sampling,
        }
        site.engine.script = [
            ScriptedReply(
                text=completion.message["content"],
                reasoning=completion.message.get("reasoning_content"),
                tool_calls=completion.message.get("tool_calls") or (),
                ids=completion.ids.tolist(),
                logprobs=completion.logprobs.tolist(),
                finish_reason=str(completion.finish_reason),
            )
        ]
        reply = await site.call("POST", f"{copy}/v1/chat/completions", body)
        assert reply.status == 200, reply.body
    return copy


async def collect(site: Site, session: str) -> list[Any]:
    """The samples of a session, less what names them."""
    samples: Sequence[Sample] = decode_samples((await site.call("POST", f"{session}/samples", {})).body).samples
    assert samples
    return [
        (each.tokens.tolist(), each.loss_mask.tolist(), each.rollout_log_probs.tolist(), each.response, each.status)
        for each in samples
    ]
