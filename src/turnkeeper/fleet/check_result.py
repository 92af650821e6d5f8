"""What a probe's answer says of a route: the verdict, and the sentence that names what is at fault. Pure."""

from dataclasses import dataclass, replace
from enum import StrEnum

from turnkeeper.choices import EngineWire, OnBadRows
from turnkeeper.engines.engine import EngineStatus
from turnkeeper.errors import EngineError, EngineProtocolError, EngineTimeoutError, TurnkeeperError

FOREIGN = "foreign"
"""The fault of prompt rows that are another prompt's."""


class RouteState(StrEnum):
    """What is known of a route."""

    UNCHECKED = "unchecked"
    """Nothing: it was not asked yet, or gave no answer."""
    SOUND = "sound"
    """It keeps what a turn needs."""
    UNFIT = "unfit"
    """It does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What a probe found out about one route."""

    state: RouteState
    reason: str = ""
    """What is wrong, naming the router or flag at fault; or why nothing is known."""
    is_fatal: bool = False
    """Whether a turn on this route would fail for the same reason, or hold what is not true."""
    is_about_rows: bool = False
    """Whether the rows are what is wrong."""
    sampled_tokens: int = 0
    """What the engine sampled for the probe."""


UNCHECKED = CheckResult(state=RouteState.UNCHECKED)
"""Before the first probe."""


def classify_error(error: TurnkeeperError, on_bad_rows: OnBadRows = OnBadRows.FAIL) -> CheckResult:
    """What a failed probe says of the route."""
    status = error.facts.get("engine_status")
    if isinstance(error, EngineProtocolError):
        is_about_rows = "fault" in error.facts
        is_fatal = error.facts.get("fault") == FOREIGN or not (is_about_rows and on_bad_rows is OnBadRows.MASK)
        return CheckResult(state=RouteState.UNFIT, reason=str(error), is_fatal=is_fatal, is_about_rows=is_about_rows)
    if status in (429, 503) or isinstance(error, EngineTimeoutError) or (type(error) is EngineError and status is None):
        return CheckResult(state=RouteState.UNCHECKED, reason=str(error))
    if "bootstrap room" in error.message:
        reason = (
            f"this is one half of a prefill/decode pair, which answers no request by itself ({error.message}); "
            "--backend-url has to name the router in front of the pair"
        )
        return CheckResult(state=RouteState.UNFIT, reason=reason, is_fatal=True)
    return CheckResult(state=RouteState.UNFIT, reason=str(error))  # a turn is told so by the engine itself


def describe_missing_adapter(url: str, lora_name: str, result: CheckResult) -> CheckResult:
    """The verdict on a route whose engine lists no such adapter.

    Turns are tried all the same: a trainer may load the adapter with its first weight update, and an engine that
    refuses it tells the turn so itself.
    """
    said = f": {result.reason}" if result.reason else ", and may sample the base weights without saying so"
    reason = (
        f"the engine at {url} does not know the adapter {lora_name!r} that turns are sampled with{said}; "
        "load the adapter there, or give --lora-name the name under which it is loaded"
    )
    return replace(result, state=RouteState.UNFIT, reason=reason)


def describe_fault(url: str, problem: str, results: dict[str, CheckResult], *, name: str) -> str:
    """One sentence that says what is at fault.

    Args:
        url: what was asked.
        problem: what came back.
        verdicts: of each worker asked directly.
        name: the router's name.
    """
    if not results:
        return problem
    sound = [worker for worker, result in results.items() if result.state is RouteState.SOUND]
    if sound:
        return (
            f"the router at {url} ({name}) is at fault, since its worker {sound[0]} answers the same call well: "
            f"{problem}; start a router that keeps unknown fields, or give every worker as a --backend-url"
        )
    worker, result = next(iter(results.items()))
    return f"the worker {worker} behind {url} is at fault: {result.reason}"


def describe_pair_fault(status: EngineStatus, result: CheckResult, *, name: str) -> str:
    """The same for prefill and decode workers, and what stands in front of them; an empty name is no router's."""
    if not result.is_about_rows:
        router = f"the router at {status.url} ({name}) in front of prefill and decode workers"
        return f"{router} is at fault: {result.reason}" if name else result.reason
    remedy = (
        "give --engine-wire generate, or leave the option out"
        if status.wire is EngineWire.CHAT
        else "take a router that joins the rows of the prefill worker to those of the decode worker"
    )
    return (
        f"{status.url} serves by prefill/decode disaggregation, and its {status.wire} route returns rows of the prompt "
        f"that no forward of it produced: {result.reason}; {remedy}"
    )
