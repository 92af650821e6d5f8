"""What a session passes through to its engine, and what it does not. The decision is pure.

An agent may ask its engine a few things: those of a list of methods and exact paths. ``--pass-through`` adds to the
list, and never a route that generates tokens without a record or that changes the engine for everyone. Such routes
are known by the words in their names, so that a route which an engine gains tomorrow is known as well.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.errors import RouteNotServedError, UnrecordedGenerationError


class Meaning(StrEnum):
    """What an engine's route does, told by its name."""

    PLAIN = "plain"
    """It neither generates nor controls, as far as its name says."""
    GENERATES = "generates"
    """It generates tokens that no turn records."""
    CONTROLS = "controls"
    """It controls or inspects the engine for everyone, or its name has no clear meaning."""


@dataclass(frozen=True, slots=True)
class OpenRoute:
    """A route of the engine that sessions pass through."""

    method: str
    """In upper case; GET stands for HEAD as well."""
    path: str
    """In lower case, without a slash at either end."""


OPEN_ROUTES = frozenset(
    OpenRoute(method, path)
    for method, paths in {
        "GET": ("model_info", "get_model_info", "v1/models", "version", "tokenizer_info"),
        "POST": ("tokenize", "detokenize", "v1/tokenize", "v1/detokenize"),
    }.items()
    for path in paths
)
"""The routes that are always open: they say what the model is, and turn text into ids and back."""

_ADDABLE_METHODS = ("GET", "POST")
_PATH = re.compile(r"[A-Za-z0-9_.:/-]+")
_READS = re.compile(r"(get_|v1/)?loads?|is_paused|is_sleeping|(get_)?weight_version|weight_info|health|metrics")
"""Routes that only read, whose names have a word of those that control."""
_GENERATES = re.compile(
    r"generat\w*|complet\w*|chat|messages?|responses?|batch\w*|inference|invocations?|infer|predict\w*|encode|audio"
    r"|speech|transcri\w*|translat\w*|realtime|interactions?|images?|videos?|sampl\w*|beam\w*"
)
_CONTROLS = re.compile(
    r"(un)?paus\w*|continu\w*|resum\w*|sleep\w*|wake\w*|slow|stop\w*|start\w*|finish\w*|begin|end|abort\w*|cancel\w*"
    r"|flush\w*|reset\w*|clear\w*|purge|evict|(un)?load\w*|updat\w*|init\w*|destroy\w*|releas\w*|send|receive|pull|push"
    r"|weights?\w*|checkpoints?|lora|adapters?|set|put|patch|delete|del|configure|config|add|remove|register|deregister"
    r"|unregister|create|open|close|freeze|unfreeze|gc|rpc|collective|scal\w*|elastic|profil\w*|trac\w*|dump\w*|record"
    r"|cach\w*|hicache|kv|memory|experts?|sessions?|conversations?|workers?|tokenizers|wasm|plugins?|modules?|skills?"
    r"|admin|debug\w*|internal|engine|instance|transfer|corpus|corpora|external|shutdown|kill|exit|restart|drain|ha|mesh"
    r"|scheduler|limit|rate|exec|execute|run|eval|files?|upload|download|rollback|swap|migrat\w*|rebalanc\w*|state|log"
    r"|logging|docs|redoc|openapi|mcp|tools|responses_store|metrics|health|ready|ping|paused|sleeping"
)


def tell_meaning(path: str) -> Meaning:
    """Tell what a route of an engine does, whatever its spelling.

    A route that both controls and generates by its words (``pause_generation``) controls.
    """
    name = _normalize(path)
    if name is None:
        return Meaning.CONTROLS
    if _READS.fullmatch(name):
        return Meaning.PLAIN
    words = [word for word in re.split(r"[^a-z0-9]+", name) if word]
    if not words or name.startswith("_"):
        return Meaning.CONTROLS
    # What stands behind the word that generates may be an id: what it says does not matter.
    is_generating = any(_GENERATES.fullmatch(word) for word in words)
    if name not in _GENERATING_NAMES and any(_CONTROLS.fullmatch(word) for word in words):
        return Meaning.CONTROLS
    return Meaning.GENERATES if is_generating else Meaning.PLAIN


_GENERATING_NAMES = ("health_generate", "generate_from_file")
"""Routes that generate, whose names have a word of those that control."""


def parse_open_route(text: str) -> OpenRoute:
    """Read ``METHOD path``, such as ``GET server_info``.

    Raises:
        ValueError: it is no route, or one that is never passed through; says why.
    """
    method, _, path = text.strip().partition(" ")
    name, method = _normalize(path.strip()), method.upper()
    if name is None or method not in _ADDABLE_METHODS:
        raise ValueError("write METHOD and path of one route, with the method GET or POST, such as 'GET server_info'")
    meaning = tell_meaning(name)
    if meaning is not Meaning.PLAIN:
        what = "generates tokens that no turn would record" if meaning is Meaning.GENERATES else "controls the engine"
        raise ValueError(f"a route that {what} is never passed through")
    return OpenRoute(method, name)


def find_passage(method: str, path: str, *, opened: Collection[OpenRoute] = (), allow_unrecorded: bool = False) -> str:
    """Find the path under which a call goes to the engine, without a slash in front.

    Args:
        method: of the call, in upper case.
        path: what stands behind ``/sessions/{id}/``, percent-decoded once.
        opened: what the operator added to the list.
        allow_unrecorded: whether routes that generate pass.

    Raises:
        UnrecordedGenerationError: the route generates.
        RouteNotServedError: the route is not on the list.
    """
    name = _normalize(path)
    route = None if name is None else OpenRoute("GET" if method == "HEAD" else method, name)
    if route is not None and (route in OPEN_ROUTES or route in opened):
        return route.path
    shown = path.lstrip("/")[:200]
    if tell_meaning(path) is not Meaning.GENERATES:
        raise RouteNotServedError(
            f"{method} /{shown} is not served to agents", hint="--pass-through adds a route that only reads"
        )
    if not allow_unrecorded:
        raise UnrecordedGenerationError(
            f"/{shown} generates tokens that no turn would record",
            hint="post to v1/chat/completions, or start the server with --allow-unrecorded",
        )
    return "/".join(segment for segment in path.split("/") if segment)


def _normalize(path: str) -> str | None:
    """Spell a path in the one way that is compared; None for a path that has no clear meaning.

    Extra slashes and upper case do not change what a route is. Dots as segments, backslashes, control characters and
    what is still percent-encoded might be read otherwise by a router or an engine.
    """
    segments = [segment for segment in path.split("/") if segment]
    if not segments or not _PATH.fullmatch(path) or any(not segment.strip(".") for segment in segments):
        return None
    return "/".join(segments).lower()
