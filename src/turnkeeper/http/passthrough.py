"""What a session passes through to its engine, and what it does not. The decision is pure.

An agent may ask its engine anything that neither generates tokens without a record nor steers the engine for everyone.
"""

import re
from enum import StrEnum

from turnkeeper.errors import RouteNotServedError, UnrecordedGenerationError


class Passage(StrEnum):
    """What becomes of a route."""

    OPEN = "open"
    """It is passed through."""
    GENERATES = "generates"
    """It would generate tokens that no turn records."""
    CLOSED = "closed"
    """It steers or inspects the engine for everyone, or has no clear meaning."""


_GENERATES = re.compile(
    r"generate|generate_stream|vertex_generate|invocations|(v1/)?(chat/)?completions(/.*)?|(v1/)?messages(/.*)?"
    r"|(v1/)?responses(/.*)?|(v1/)?batches(/.*)?|inference/.*|api/(chat|generate)|encode|(v1/)?audio/.*|start_session|open_session|close_session"
)
_CLOSED = re.compile(
    r"(un)?pause.*|continue.*|resume.*|is_paused|sleep|wake_up|is_sleeping|abort.*|flush.*|reset_.*|clear_.*"
    r"|(.*/)?(un)?load_.*|update_.*|init_.*|destroy_.*|release_.*|send_weights.*|get_weights.*|set_.*|configure_.*"
    r"|start_profile|stop_profile|start_expert.*|stop_expert.*|dump_expert.*|freeze_gc|collective_rpc|scale_.*"
    r"|server_info|get_server_info|get_load.*|loads|metrics.*|health.*|ready|workers(/.*)?|add_worker|remove_worker"
    r"|list_workers|debug.*|slow_down|separate_reasoning|parse_function_call|hicache.*|add_external.*|remove_external.*"
    r"|docs|redoc|openapi\.json|admin.*|_.*|engine(/.*)?|ping"
)


def choose_passage(path: str) -> Passage:
    """What becomes of a route behind ``/sessions/{id}/``, already percent-decoded.

    Extra slashes and upper case do not open a closed route; ``..``, backslashes and control characters have no clear
    meaning.
    """
    segments = [segment for segment in path.split("/") if segment]
    if not segments or any(segment in (".", "..") for segment in segments) or not path.isprintable() or "\\" in path:
        return Passage.CLOSED
    name = "/".join(segments).lower()
    if _GENERATES.fullmatch(name):
        return Passage.GENERATES
    return Passage.CLOSED if _CLOSED.fullmatch(name) or _CLOSED.fullmatch(name.removeprefix("v1/")) else Passage.OPEN


def check_passage(path: str, *, allow_unrecorded: bool) -> None:
    """Refuse what is not passed through.

    Raises:
        UnrecordedGenerationError: the route generates.
        RouteNotServedError: the route is closed.
    """
    match choose_passage(path):
        case Passage.GENERATES if not allow_unrecorded:
            raise UnrecordedGenerationError(
                f"/{path.lstrip('/')} generates tokens that no turn would record",
                hint="post to v1/chat/completions, or start the server with --allow-unrecorded",
            )
        case Passage.CLOSED:
            raise RouteNotServedError(f"/{path.lstrip('/')} is not served to agents")
        case _:
            pass
