"""The result of a route check, and the sentence that names what is at fault. Pure."""

from dataclasses import dataclass, replace
from enum import StrEnum

from turnkeeper.choices import EngineWire, OnBadRows
from turnkeeper.engines.engine import EngineStatus
from turnkeeper.errors import EngineError, EngineProtocolError, EngineTimeoutError, TurnkeeperError

FOREIGN = "foreign"
"""The fault of prompt rows that belong to another prompt."""


class RouteState(StrEnum):
    """The state of a route, as far as it was checked."""

    UNCHECKED = "unchecked"
    """The route was not checked yet, or gave no answer."""
    SOUND = "sound"
    """The route keeps what turns need."""
    UNFIT = "unfit"
    """The route loses or changes something that turns need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCheckResult:
    """The result of the check of one route."""

    state: RouteState
    reason: str = ""
    """The reason why the route is unfit, with the router or flag at fault, or why its state is unknown."""
    is_fatal: bool = False
    """True if turns on this route would fail for the same reason, or record what is not true."""
    is_about_rows: bool = False
    """True if the routing rows are at fault."""
    sampled_tokens: int = 0
    """The number of tokens that the engine sampled for the check."""


UNCHECKED = RouteCheckResult(state=RouteState.UNCHECKED)
"""The result before the first check."""


def classify_error(error: TurnkeeperError, on_bad_rows: OnBadRows = OnBadRows.FAIL) -> RouteCheckResult:
    """Make the check result of a probe that failed."""
    status = error.facts.get("engine_status")
    if isinstance(error, EngineProtocolError):
        is_about_rows = "fault" in error.facts
        is_fatal = error.facts.get("fault") == FOREIGN or not (is_about_rows and on_bad_rows is OnBadRows.MASK)
        return RouteCheckResult(
            state=RouteState.UNFIT, reason=str(error), is_fatal=is_fatal, is_about_rows=is_about_rows
        )
    if status in (429, 503) or isinstance(error, EngineTimeoutError) or (type(error) is EngineError and status is None):
        return RouteCheckResult(state=RouteState.UNCHECKED, reason=str(error))
    if "bootstrap room" in error.message:
        reason = (
            f"this is one half of a prefill/decode pair, which answers no request by itself ({error.message}); "
            "--backend-url has to name the router in front of the pair"
        )
        return RouteCheckResult(state=RouteState.UNFIT, reason=reason, is_fatal=True)
    return RouteCheckResult(state=RouteState.UNFIT, reason=str(error))  # the engine refuses turns itself


def describe_missing_adapter(url: str, lora_name: str, result: RouteCheckResult) -> RouteCheckResult:
    """Make the check result of a route whose engine does not list the LoRA adapter.

    Turns are tried all the same: a trainer may load the adapter with its first weight update, and an engine without it
    refuses the turn itself.
    """
    said = f": {result.reason}" if result.reason else ", and may sample the base weights without saying so"
    reason = (
        f"the engine at {url} does not know the adapter {lora_name!r} that turns are sampled with{said}; "
        "load the adapter there, or give --lora-name the name under which it is loaded"
    )
    return replace(result, state=RouteState.UNFIT, reason=reason)


def describe_fault(url: str, problem: str, results: dict[str, RouteCheckResult], *, name: str) -> str:
    """Say in one sentence what is at fault, the router or the engine behind it.

    Args:
        url: the address that was checked.
        problem: the reason that the check gave.
        results: the check results of workers that were called directly, by address.
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


def describe_pair_fault(status: EngineStatus, result: RouteCheckResult, *, name: str) -> str:
    """Say in one sentence what is at fault behind prefill and decode workers; an empty name stands for no router."""
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
