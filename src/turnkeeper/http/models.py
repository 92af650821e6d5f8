"""``/v1/models``: which models a session serves, in the forms that OpenAI's and Anthropic's clients read.

There is one policy, and it answers under every name: an agent may ask for any model, and a client that looks up the
name it was given finds that name. The list has the names that the server knows. No engine is asked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from turnkeeper.dialects import CHAT, MESSAGES, Dialect
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.headers import JSON_HEADERS
from turnkeeper.http.backend import Backend
from turnkeeper.http.exchange import Exchange
from turnkeeper.jsontypes import JsonObject

ANTHROPIC_HEADER = "anthropic-version"
"""The header that Anthropic's clients send with every request, and no other client does."""

UNKNOWN_TO_ANTHROPIC = ("capabilities", "deprecated_at", "line", "max_input_tokens", "max_tokens")
"""The members of Anthropic's ``model`` object whose values are not known here."""

_EPOCH = "1970-01-01T00:00:00Z"
"""The date that Anthropic's API gives a model whose date of release is unknown."""


@dataclass(frozen=True, slots=True)
class ModelsHandler:
    """Lists the models, or shows the one that the path names."""

    backend: Backend

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request."""
        session_id, name = (exchange.path_params.get(key) for key in ("session_id", "model_id"))
        if session_id is not None:
            self.backend.sessions.get_turn_session_id(session_id)
        is_anthropic = choose_dialect(exchange.headers) is MESSAGES
        if name is not None:
            shown = render_anthropic_model(name) if is_anthropic else render_openai_model(name)
        else:
            names = self.backend.options.model_names
            shown = render_anthropic_list(names) if is_anthropic else render_openai_list(names)
        await exchange.respond(200, encode_json(shown), JSON_HEADERS)


def choose_dialect(headers: Mapping[str, str]) -> Dialect:
    """Choose the API whose client sent these headers; their names are in lower case."""
    return MESSAGES if ANTHROPIC_HEADER in headers else CHAT


def render_openai_model(name: str) -> JsonObject:
    """Render a ``model`` object of OpenAI."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "turnkeeper"}


def render_openai_list(names: Iterable[str]) -> JsonObject:
    """Render a ``list`` object of OpenAI."""
    return {"object": "list", "data": [render_openai_model(name) for name in names]}


def render_anthropic_model(name: str) -> JsonObject:
    """Render a ``model`` object of Anthropic."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": _EPOCH,
        "lifecycle": "active",
        **dict.fromkeys(UNKNOWN_TO_ANTHROPIC),
    }


def render_anthropic_list(names: Iterable[str]) -> JsonObject:
    """Render a page of Anthropic's list, which is the only one."""
    data = [render_anthropic_model(name) for name in names]
    return {"data": data, "first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
