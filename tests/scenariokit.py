"""Scenarios for real agent clients: what the scripted policy says is chosen by a key in the task.

::

    stage = Scenarios({"edit": [call("Edit", path=...), say("edited")]})
    async with stage.serve() as site:
        ...                                     # let a client play "Please (task edit)"
    check_scenario(site, run, stage)

The last message that holds ``(task NAME)`` names the script, and the number of assistant messages behind it the
step, so that sub-agents, resumed conversations and side requests may run side by side. A request for a summary, and
one without tools, gets a text; where the summary names a task, the policy goes on with that one behind a compaction.
Everything the policy says is kept with the prompt it said it to: the oracle of `check_scenario`, which uses nothing
that the server stored.
"""

import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from clientkit import Run, get_session, read_text
from httpkit import Site, running_site
from rendering.reals import real
from servicekit import get_renderer
from turnkeeper.core import DropReason, MaskReason
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import Renderer
from turnkeeper.samples import SampleBatch, decode_samples
from turnkeeper.testing import RecordedRequest, ScriptedEngine, ScriptedReply
from turnkeeper.testing.script import DEFAULT_STOP_ID

KEY = re.compile(r"\(task (\w+)\)")
SUMMARY = re.compile(
    r"detailed summary of|CONTEXT CHECKPOINT|provide a detailed prompt|<state_snapshot>|create a structured",
    re.IGNORECASE,
)
"""What harnesses ask of the user's side for a summary."""
SUMMARIZER = re.compile(
    r"context summarization|structured summaries of agent|a conversation history between a user and an AI",
    re.IGNORECASE,
)
"""What harnesses tell a summarizer, whom they show the conversation as one text, that it is, or that the text is."""

Calls = Sequence[tuple[str, Mapping[str, Any]]]
Step = Calls | Callable[[str], Calls] | str
"""What the policy does: calls of tools, as name and arguments, or a function that makes them from the last result of a
tool; or its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One reply of the policy."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    is_main: bool
    """Whether it answers the task, and not a title or summary request."""


def get_family(name: str) -> Renderer:
    """``tiny``, or ``qwen36`` or ``gptoss`` with the real template and tokenizer."""
    return get_renderer() if name == "tiny" else real(name)


@dataclass(slots=True)
class Scenarios:
    """The policy: a script for each task."""

    scripts: Mapping[str, Sequence[Step]]
    summary: str = "Summary: the work went well so far."
    """What the policy says where a harness asks for a summary."""
    said: list[Said] = field(default_factory=list[Said])
    renderer: Renderer = field(default_factory=get_renderer)

    @asynccontextmanager
    async def serve(self, **options: Any) -> AsyncGenerator[Site]:
        """The server in front of the policy."""
        engine = ScriptedEngine(default=self.reply, encode=self.encode, context_length=10**6)
        async with running_site(engine, renderer=self.renderer, **options) as site:
            yield site

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return self.renderer.tokenizer.encode(text).tolist()

    def reply(self, request: RecordedRequest) -> ScriptedReply:
        """What the policy says to a conversation."""
        name, step = find_step(request.json["messages"])
        text, calls, is_main = self._choose(request.json, name, step)
        ids = (*self.encode(text), DEFAULT_STOP_ID)
        self.said.append(Said(prompt=tuple(request.json["input_ids"]), ids=ids, is_main=is_main))
        return ScriptedReply(
            text=text,
            reasoning=f"Thinking of {name}, step {step}.",
            tool_calls=calls,
            ids=ids,
            finish_reason="tool_calls" if calls else "stop",
        )

    def _choose(self, body: JsonObject, name: str | None, step: int) -> tuple[str, list[JsonObject], bool]:
        users = [read_text(message) for message in body["messages"] if message["role"] == "user"]
        system = "".join(read_text(message) for message in body["messages"] if message["role"] == "system")
        if (
            name is None
            or SUMMARIZER.search(system + (users[-1] if users else ""))
            or (users and SUMMARY.search(users[-1]) and not KEY.search(users[-1]))
        ):
            return self.summary, [], False
        if not body.get("tools"):
            return '{"title": "A task"}', [], False
        script = self.scripts[name]
        if step >= len(script):
            return f"{name} is over.", [], True
        chosen = script[step]
        if isinstance(chosen, str):
            return chosen, [], True
        calls = chosen(read_text(body["messages"][-1])) if callable(chosen) else chosen
        return f"Step {step} of {name}.", [build_call(*each, f"call_{n}") for n, each in enumerate(calls)], True


def find_step(messages: Sequence[JsonObject]) -> tuple[str | None, int]:
    """The task that a conversation is at, and how often the policy has answered since it was set."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place]["role"] in ("user", "assistant") and (found := KEY.findall(read_text(messages[place]))):
            return found[-1], sum(message["role"] == "assistant" for message in messages[place + 1 :])
    return None, 0


def build_call(name: str, arguments: Mapping[str, Any], call_id: str) -> JsonObject:
    """A call whose arguments are spelled as no client spells them."""
    spelled = json.dumps(arguments).replace('": ', '":  ')
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": spelled}}


async def read_samples(site: Site, run: Run) -> SampleBatch:
    """The samples of a run."""
    return decode_samples((await site.call("POST", f"{run.session}/samples", {})).body)


def list_main_causes(site: Site, run: Run, stage: Scenarios) -> list[str]:
    """Why each root of the task is one, in order."""
    forest = get_session(site, run).forest
    mains = {said.prompt for said in stage.said if said.is_main}
    roots = [turn for turn in forest.turns if turn.parent is None and tuple(turn.prompt.ids.tolist()) in mains]
    return [str(turn.why.cause) for turn in roots]


def read_rewritten(batch: SampleBatch) -> set[str]:
    """How replies came back rewritten, by kind."""
    turns = batch.session_metadata["turnkeeper"]["turns"]
    return {kind for turn in turns for kind in turn.get("rewritten", ())}


async def check_scenario(site: Site, run: Run, stage: Scenarios, *, main_roots: int, sides: int = 0) -> SampleBatch:
    """Nothing that the policy said for the task is lost; the samples.

    The turns of the task are so many chains: each begins with a root, and each later turn is the only one of the task
    that extends the turn before it. Each main reply is trained in the samples exactly as the engine said it, behind the
    prompt it saw. At least so many side requests were made; each is a root or ends a path, and nothing goes on from it.
    """
    turns = get_session(site, run).forest.turns
    assert len(turns) == len(stage.said)
    mains = {said.prompt for said in stage.said if said.is_main}
    prompts = {turn.id: tuple(get_session(site, run).forest.path_ids(turn.id).tolist()) for turn in turns}
    of_task = [turn for turn in turns if prompts[turn.id][: -len(turn.completion.ids)] in mains]
    describe = [(turn.id, turn.parent, turn.why.describe()) for turn in turns]
    roots = [turn for turn in of_task if turn.parent is None]
    assert len(roots) == main_roots, describe
    extended = Counter(turn.parent for turn in of_task if turn.parent is not None)
    assert extended.keys() <= {turn.id for turn in of_task}, describe
    assert set(extended.values()) <= {1}, describe
    side_ids = {turn.id for turn in turns} - {turn.id for turn in of_task}
    assert len(side_ids) >= sides, describe
    assert not side_ids & {turn.parent for turn in turns}, describe
    batch = await read_samples(site, run)
    paths = [(sample.tokens.tolist(), sample.loss_mask.tolist()) for sample in batch.samples]
    for said in stage.said:
        if said.is_main:
            assert any(_is_trained(said, *path) for path in paths), describe
    check_accounting(batch, sampled=sum(len(said.ids) for said in stage.said))
    return batch


def check_accounting(batch: SampleBatch, *, sampled: int) -> None:
    """Every token that the engine said is trained, or masked or dropped for a reason of the closed lists."""
    said = batch.session_metadata["turnkeeper"]["accounting"]
    assert said["sampled"] == sampled
    assert said["sampled"] == said["trainable"] + sum(said["masked"].values()) + sum(said["dropped"].values())
    assert said["trainable"] == sum(int(sample.loss_mask.sum()) for sample in batch.samples)
    assert said["masked"].keys() <= set(MaskReason)
    assert said["dropped"].keys() <= set(DropReason)
    assert all(leaf["cause"] for leaf in batch.session_metadata["turnkeeper"].get("dropped_leaves", ()))


def _is_trained(said: Said, tokens: list[int], mask: list[int]) -> bool:
    start, stop = len(said.prompt), len(said.prompt) + len(said.ids)
    offset = len(tokens) - len(mask)  # the mask covers the response alone
    return (
        start >= offset
        and tuple(tokens[:stop]) == (*said.prompt, *said.ids)
        and all(mask[start - offset : stop - offset])
    )
