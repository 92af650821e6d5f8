"""What a session passes through.

1. Routes that generate are refused unless the server allows it; control routes never pass.
2. No spelling of a route (slashes, case, dots) changes what it is.
"""

from collections.abc import Callable

import pytest

from turnkeeper.errors import RouteNotServedError, UnrecordedGenerationError
from turnkeeper.http.passthrough import Passage, check_passage, choose_passage

ROUTES = {
    Passage.OPEN: ["v1/models", "tokenize", "detokenize", "v1/embeddings", "model_info", "get_model_info", "v1/rerank"],
    Passage.GENERATES: [
        "generate",
        "v1/completions",
        "inference/v1/generate",
        "chat/completions",
        "v1/messages",
        "v1/responses",
        "v1/responses/compact",
        "v1/messages/batches",
        "api/generate",
    ],
    Passage.CLOSED: [
        "pause_generation",
        "continue_generation",
        "flush_cache",
        "update_weights_from_disk",
        "update_weight_version",
        "abort_request",
        "release_memory_occupation",
        "resume_memory_occupation",
        "pause",
        "resume",
        "is_paused",
        "abort_requests",
        "collective_rpc",
        "v1/load_lora_adapter",
        "load_lora_adapter",
        "workers",
        "workers/http",
        "server_info",
        "",
        "/",
        "../generate",
        "v1/../generate",
        "a\\b",
        "a\x00b",
    ],
}


@pytest.mark.parametrize(("passage", "path"), [(passage, path) for passage, paths in ROUTES.items() for path in paths])
def test_each_route_has_its_passage(passage: Passage, path: str) -> None:
    assert choose_passage(path) is passage


@pytest.mark.parametrize("spell", [str.upper, lambda path: f"//{path}", lambda path: f"{path}/"])
@pytest.mark.parametrize("path", ["generate", "v1/completions", "pause_generation", "v1/models"])
def test_spelling_does_not_change_what_a_route_is(path: str, spell: Callable[[str], str]) -> None:
    assert choose_passage(spell(path)) is choose_passage(path)


def test_generation_is_refused_unless_allowed() -> None:
    with pytest.raises(UnrecordedGenerationError):
        check_passage("generate", allow_unrecorded=False)
    check_passage("generate", allow_unrecorded=True)


@pytest.mark.parametrize("allowed", [True, False])
def test_control_routes_never_pass(allowed: bool) -> None:
    with pytest.raises(RouteNotServedError):
        check_passage("pause_generation", allow_unrecorded=allowed)
