"""The check of one route: a short generation shows whether the route keeps what turns need, and what is at fault if
not.

Owns the calls; `check_result` says what an answer means. A router that drops fields answers 200 like any other, so only
a real call shows it: the ids must be those that were prefilled, their logprobs must come back, and so must the routing
rows from the row that was asked for, prompt rows included. When the check of a router fails, its workers are called
directly, which tells a router's fault from an engine's.

Behind prefill and decode workers the rows of a prompt can be those of an earlier request, which look like any others.
There three calls are compared: a prompt, its ids backwards, and the prompt again. Rows that belong to their tokens are
the same for the same prompt and others for another.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from turnkeeper.channels import CallFacts, Capture, TurnPlan
from turnkeeper.choices import OnBadRows
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.engines.check import check_generation
from turnkeeper.engines.engine import Engine, EngineState, EngineStatus, GenerateRequest
from turnkeeper.engines.net.client import EngineClient, HttpReply
from turnkeeper.engines.sglang.chat import SHORT_CALL_TIMEOUT_S, read_workers
from turnkeeper.errors import EngineError, EngineProtocolError, TurnkeeperError
from turnkeeper.fleet.check_result import (
    FOREIGN,
    RouteCheckResult,
    RouteState,
    classify_error,
    describe_fault,
    describe_missing_adapter,
    describe_pair_fault,
)

PROBE_SESSION = "turnkeeper-probe"
"""The routing key of every probe; no session has this id."""

_SAMPLED = 2
"""The tokens that a probe samples, so that rows of the prompt and of sampled tokens come back."""

_WORKERS_PROBED = 3
"""The number of workers that are called at most to find a sound one; a router may have hundreds."""

_ALIKE = 0.5
"""The share of equal rows from which two prompts count as routed alike. Numerical noise changes a few percent of the
rows of one prompt; two prompts share few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRequirements:
    """The fields and rows that turns will need of a route."""

    prompt_ids: TokenIds
    """The ids of the probe's prompt: more than 3 ids that the model has, no palindrome. The messages sent beside them
    would render to other ids."""
    captures: tuple[Capture, ...] = ()
    """The side channels that turns may ask for."""
    on_bad_rows: OnBadRows = OnBadRows.FAIL
    """The treatment of bad rows in turns; masked rows make no turn fail."""
    lora_name: str | None = None
    """The LoRA adapter that turns are sampled with; None for the base weights."""
    vocabulary_size: int | None = None
    """The number of ids that the model has, padding included; None when unknown."""

    def build_request(self) -> GenerateRequest:
        """Build the probe's request, under an id of its own."""
        sampling: Mapping[str, Any] = {"max_tokens": _SAMPLED, "temperature": 0.0}
        for capture in self.captures:
            sampling = capture.shape_probe(sampling)
        turn = TurnPlan(prompt_tokens=len(self.prompt_ids), parent_tokens=2, common_prefix=2, sampling=sampling)
        planned = ((capture.channel.name, capture.plan(turn)) for capture in self.captures)
        return GenerateRequest(
            rid=f"{PROBE_SESSION}-{secrets.token_hex(8)}",
            session_id=PROBE_SESSION,
            prompt_ids=self.prompt_ids,
            messages=(
                {"role": "user", "content": "This text is not rendered: the ids beside it are the prompt. " * 4},
            ),
            sampling=sampling,
            asked={name: asked for name, asked in planned if asked is not None},
            lora_name=self.lora_name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteStatus:
    """The status of the engine or router at a URL, and the result of the check of its route."""

    engine: EngineStatus
    result: RouteCheckResult


class _ProbeCalls:
    """The calls of one check."""

    def __init__(self, engine: Engine, requirements: RouteRequirements) -> None:
        self._engine = engine
        self._requirements = requirements
        self._rid = ""
        self.sampled_tokens = 0

    async def fetch_prompt_items(self, prompt_ids: TokenIds) -> Mapping[str, Any]:
        """Generate behind a prompt, and return what side channels have for its tokens, by the channel's name.

        Raises:
            TurnkeeperError: the call failed as a turn would.
        """
        requirements = replace(self._requirements, prompt_ids=prompt_ids)
        request = requirements.build_request()
        self._rid = request.rid
        generation = await self._engine.generate(request)
        self._rid = ""
        self.sampled_tokens += len(generation.ids)
        if generation.is_aborted:
            raise EngineError("the engine aborted the probe", url=generation.url)
        check_generation(generation, request, vocabulary_size=requirements.vocabulary_size)
        call = CallFacts(url=generation.url, prompt_tokens=len(prompt_ids), ids=generation.ids)
        found: dict[str, Any] = {}
        for capture in requirements.captures:
            name = capture.channel.name
            if name in request.asked:
                taken = capture.probe(generation.payloads.get(name), request.asked[name], call)
                found[name] = capture.find_prompt_items(taken, len(prompt_ids))
        return {name: items for name, items in found.items() if items is not None}

    async def compare(self, first: Mapping[str, Any]) -> None:
        """Compare the items of three prompts.

        Raises:
            EngineProtocolError: the items of a prompt do not belong to its tokens.
        """
        other = await self.fetch_prompt_items(freeze_ids(self._requirements.prompt_ids[::-1]))
        again = await self.fetch_prompt_items(self._requirements.prompt_ids)
        for capture in self._requirements.captures:
            name = capture.channel.name
            if name in first and (
                capture.measure_likeness(first[name], again[name]) < _ALIKE
                or capture.measure_likeness(first[name], other[name]) > _ALIKE
            ):
                raise EngineProtocolError(capture.foreign_items, fault=FOREIGN)

    async def abort(self) -> None:
        """Abort the call that still runs, if there is one."""
        if self._rid:
            await self._engine.abort(self._rid)


async def probe_route(
    engine: Engine, requirements: RouteRequirements, *, is_disaggregated: bool = False, timeout_s: float = 30.0
) -> RouteCheckResult:
    """Check a route by short generations. It stays unchecked where the engine is not there, is busy or does not answer.

    Args:
        engine: the engine at the end of the route.
        requirements: what turns will need.
        is_disaggregated: True to check also that the rows of a prompt belong to its tokens.
        timeout_s: the longest that all calls together may take.
    """
    calls = _ProbeCalls(engine, requirements)
    try:
        async with asyncio.timeout(timeout_s):
            items = await calls.fetch_prompt_items(requirements.prompt_ids)
            if items and is_disaggregated:
                await calls.compare(items)
    except TimeoutError:
        await calls.abort()
        reason = f"a generation of {_SAMPLED} tokens gave no answer within {timeout_s:g} s"
        return RouteCheckResult(state=RouteState.UNCHECKED, reason=reason, sampled_tokens=calls.sampled_tokens)
    except TurnkeeperError as error:
        return replace(classify_error(error, requirements.on_bad_rows), sampled_tokens=calls.sampled_tokens)
    return RouteCheckResult(state=RouteState.SOUND, sampled_tokens=calls.sampled_tokens)


async def check_route(
    url: str,
    client: EngineClient,
    requirements: RouteRequirements,
    *,
    connect: Callable[[str], Engine],
    timeout_s: float = 30.0,
) -> RouteStatus:
    """Find the status of the server at a URL, and check its route where it serves.

    Args:
        url: an engine or a router.
        client: makes the calls.
        requirements: what turns will need.
        connect: makes the adapter for a URL.
        timeout_s: the longest that the probe may take; a paused engine does not answer.
    """
    url = url.rstrip("/")
    engine = connect(url)
    status = (await engine.fetch_status())[0]
    if status.state is not EngineState.SERVING:
        return RouteStatus(engine=status, result=RouteCheckResult(state=RouteState.UNCHECKED, reason=status.error))
    result = await probe_route(engine, requirements, is_disaggregated=status.is_disaggregated, timeout_s=timeout_s)
    if requirements.lora_name is not None and result.state is not RouteState.UNCHECKED:
        adapters = await list_models(status.workers[0] if status.workers else url, client)
        if adapters is not None and requirements.lora_name not in adapters:
            return RouteStatus(engine=status, result=describe_missing_adapter(url, requirements.lora_name, result))
    if result.state is not RouteState.UNFIT:
        return RouteStatus(engine=status, result=result)
    name = await name_router(url, client) if status.workers else ""
    if status.is_disaggregated:  # neither half of a pair answers by itself
        reason = describe_pair_fault(status, result, name=name)
        return RouteStatus(engine=status, result=replace(result, reason=reason))
    results: dict[str, RouteCheckResult] = {}
    for worker in status.workers[:_WORKERS_PROBED]:
        results[worker] = await probe_route(connect(worker), requirements, timeout_s=timeout_s)
        if results[worker].state is RouteState.SOUND:
            break
    tokens = result.sampled_tokens + sum(each.sampled_tokens for each in results.values())
    reason = describe_fault(url, result.reason, results, name=name)
    return RouteStatus(engine=status, result=replace(result, reason=reason, sampled_tokens=tokens))


async def list_models(url: str, client: EngineClient) -> frozenset[str] | None:
    """List the names under a server's ``/v1/models``, LoRA adapters included; None where it lists nothing."""
    try:
        reply = await client.call("GET", f"{url}/v1/models", timeout_s=SHORT_CALL_TIMEOUT_S)
        value: Any = orjson.loads(reply.body) if reply.status == 200 else {}
        return frozenset(str(entry["id"]) for entry in value["data"]) or None
    except (EngineError, orjson.JSONDecodeError, TypeError, KeyError):
        return None


async def find_workers(url: str, client: EngineClient) -> tuple[str, ...]:
    """List the workers behind a router; empty where the server is no router or does not answer."""
    try:
        return read_workers(await client.call("GET", f"{url}/workers", timeout_s=SHORT_CALL_TIMEOUT_S))
    except EngineError:
        return ()


async def name_router(url: str, client: EngineClient) -> str:
    """Find the name of a router by the way it refuses an unknown route."""
    try:
        return read_router_name(await client.call("GET", f"{url}/turnkeeper-probe", timeout_s=SHORT_CALL_TIMEOUT_S))
    except EngineError:
        return "a router"


def read_router_name(reply: HttpReply) -> str:
    """Read the name of a router: smg names itself in a header, sglang-router answers with an empty body."""
    if reply.find_header("x-smg-error-code") is not None:
        return "smg"
    return "sglang-router" if reply.status == 404 and not reply.body else "a router"
