"""Does a route keep what a turn needs? Finds out with one short generation, and says what is at fault when not.

Owns the question and the verdict. A router that drops fields answers 200 like any other, so only a real call shows
it: the ids must be those that were prefilled, their logprobs must come back, and so must the routing rows from the row
that was asked for, prompt rows included. When a router fails, its workers are asked the same question directly, which
tells a router's fault from an engine's.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from turnkeeper.core.tokens import TokenIds
from turnkeeper.engines.check import check_generation
from turnkeeper.engines.engine import Engine, EngineReport, EngineState, GenerateRequest
from turnkeeper.engines.http import EngineClient, HttpReply
from turnkeeper.engines.sglang import CONTROL_TIMEOUT_S, read_workers
from turnkeeper.errors import EngineError, EngineProtocolError, TurnkeeperError
from turnkeeper.routing import RoutingShape, plan_rows, take_patch


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a route is asked."""

    prompt_ids: TokenIds
    """A few ids that the model knows; more than 3. The messages sent beside them would render to other ones."""
    shape: RoutingShape | None = None
    """The model's routing, where rows are needed."""
    use_addition_r3: bool = True
    """Whether rows are asked for from a start."""
    wants_indexer: bool = False

    def build_request(self) -> GenerateRequest:
        """The generation that answers it: two tokens, so that a prompt row and a sampled one come back."""
        rows = plan_rows(parent_tokens=2, common_prefix=2, use_addition_r3=self.use_addition_r3) if self.shape else None
        return GenerateRequest(
            rid="turnkeeper-probe",
            session_id="turnkeeper-probe",
            prompt_ids=self.prompt_ids,
            messages=(
                {"role": "user", "content": "This text is not rendered: the ids beside it are the prompt. " * 4},
            ),
            sampling={"max_tokens": 2, "temperature": 0.0},
            rows=rows,
            wants_indexer=self.wants_indexer,
        )


async def ask(engine: Engine, question: Question) -> str:
    """What is wrong with the route to an engine; empty when nothing is.

    Raises:
        EngineError: the engine is not there, or gave no answer: nothing is known of its route.
    """
    request = question.build_request()
    try:
        generation = await engine.generate(request)
        if generation.is_aborted:
            raise EngineError("the engine aborted the probe", url=generation.url)
        check_generation(generation, request)
        if request.rows is not None and question.shape is not None:
            take_patch(
                generation.routed_experts,
                request=request.rows,
                shape=question.shape,
                prompt_tokens=len(request.prompt_ids),
                completion_tokens=len(generation.ids),
            )
        if question.wants_indexer and generation.indexer_topk is None:
            return "the reply has no indexer_topk: the engine's build does not serve it on this route"
    except EngineProtocolError as error:
        return str(error)
    except EngineError as error:
        if error.facts.get("engine_status") in (None, 503):
            raise
        return str(error)
    except TurnkeeperError as error:
        return str(error)
    return ""


async def check_route(
    url: str, client: EngineClient, question: Question, *, connect: Callable[[str], Engine], timeout_s: float = 30.0
) -> EngineReport:
    """Probe one URL: whether it is there, and whether its route keeps what a turn needs.

    Args:
        url: an engine or a router.
        client: makes the calls.
        question: what turns will need.
        connect: makes the adapter for a URL.
        timeout_s: how long the short generation may take; a paused engine answers nothing.
    """
    url = url.rstrip("/")
    engine = connect(url)
    report = (await engine.probe())[0]
    if report.state is not EngineState.SERVING:
        return report
    problem = await _ask_in_time(engine, question, timeout_s)
    if not problem:
        return report
    workers = await find_workers(url, client)
    verdicts = {worker: await _ask_in_time(connect(worker), question, timeout_s) for worker in workers}
    return replace(report, problems=(explain(url, problem, verdicts, name=await name_router(url, client)),))


async def _ask_in_time(engine: Engine, question: Question, timeout_s: float) -> str:
    try:
        async with asyncio.timeout(timeout_s):
            return await ask(engine, question)
    except TimeoutError:
        return f"a generation of 2 tokens gave no answer within {timeout_s:g} s"
    except EngineError as error:
        return str(error)


def explain(url: str, problem: str, verdicts: dict[str, str], *, name: str) -> str:
    """One sentence that says what is at fault.

    Args:
        url: what was asked.
        problem: what came back.
        verdicts: what came back from each worker asked directly; empty text is a sound one.
        name: the router's name.
    """
    if not verdicts:
        return problem
    sound = [worker for worker, verdict in verdicts.items() if not verdict]
    if sound:
        return (
            f"the router at {url} ({name}) is at fault, since its worker {sound[0]} answers the same call well: "
            f"{problem}; start a router that keeps unknown fields, or give every worker as a --backend-url"
        )
    worker, verdict = next(iter(verdicts.items()))
    return f"the worker {worker} behind {url} is at fault: {verdict}"


async def find_workers(url: str, client: EngineClient) -> tuple[str, ...]:
    """The workers behind a router; empty where this is none, or it does not answer."""
    try:
        return read_workers(await client.call("GET", f"{url}/workers", timeout_s=CONTROL_TIMEOUT_S))
    except EngineError:
        return ()


async def name_router(url: str, client: EngineClient) -> str:
    """Which router this is, by the way it refuses an unknown route."""
    try:
        return read_router_name(await client.call("GET", f"{url}/turnkeeper-probe", timeout_s=CONTROL_TIMEOUT_S))
    except EngineError:
        return "a router"


def read_router_name(reply: HttpReply) -> str:
    """smg says so in a header; sglang-router answers nothing at all."""
    if reply.find_header("x-smg-error-code") is not None:
        return "smg"
    return "sglang-router" if reply.status == 404 and not reply.body else "a router"
