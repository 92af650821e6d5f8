"""What a session passes through.

1. A list of methods and exact paths passes; everything else is refused.
2. Routes that generate are refused unless the server allows it; control routes never pass, and neither can be added.
3. No spelling of a route (slashes, case, dots, percent) opens what is closed.
"""

import pytest

from tablekit import checking_table
from turnkeeper.errors import RouteNotServedError, UnrecordedGenerationError
from turnkeeper.passthrough import Meaning, OpenRoute, find_passage, parse_open_route, tell_meaning

OPEN = [
    "GET model_info",
    "GET get_model_info",
    "HEAD model_info",
    "GET v1/models",
    "GET version",
    "POST tokenize",
    "POST v1/detokenize",
]
GENERATES = """
generate generate_from_file generate_stream vertex_generate health_generate v1/completions v1/completions/render
v1/chat/completions chat/completions inference/v1/generate v1/messages v1/messages/batches v1/responses
v1/responses/compact v1/batches api/generate api/chat invocations v1/audio/transcriptions v1/audio/translations
v1/realtime v1/interactions v1/images/generations generative_scoring v1/models/m:generateContent encode
"""
CONTROLS = """
pause_generation continue_generation pause resume unpause abort_request abort_requests inference/v1/abort_requests
flush_cache update_weights_from_disk update_weights_from_tensor update_weights_from_ipc update_weight_version
init_weights_update_group destroy_weights_update_group init_weights_send_group_for_remote_instance
send_weights_to_remote_instance get_weights_by_name weights_checker check_weights release_memory_occupation
resume_memory_occupation start_weight_update finish_weight_update update_weights init_weight_transfer_engine
sleep wake_up reset_prefix_cache reset_mm_cache reset_encoder_cache collective_rpc scale_elastic_ep
start_profile stop_profile freeze_gc slow_down configure_logging set_internal_state dumper/reset open_session
close_session start_session start_expert_distribution_record dump_expert_distribution_record
clear_hicache_storage_backend hicache/storage-backend load_lora_adapter unload_lora_adapter v1/load_lora_adapter
load_lora_adapter_from_tensors add_external_corpus remove_external_corpus remote_instance_transfer_engine_info
workers workers/http add_worker remove_worker list_workers v1/tokenizers v1/conversations wasm ha/shutdown _mesh
v1/responses/resp_1/cancel debug/pprof admin/x engine/pause docs openapi.json v1/files v1/mcp
"""
UNCLEAR = [
    "",
    "/",
    "../generate",
    "v1/../generate",
    "a\\b",
    "a\x00b",
    "a%2fb",
    "%2e%2e/generate",
    "./x",
    "a?b",
    "a#b",
    "ſ",
    "…",
]


@pytest.mark.parametrize("route", OPEN)
def test_the_list_passes(route: str) -> None:
    method, path = route.split()
    assert find_passage(method, path) == path


def test_generation_is_refused_unless_allowed() -> None:
    with checking_table() as table:
        for method in ["GET", "POST"]:
            for path in GENERATES.split():
                with table.case(path, method):
                    with pytest.raises(UnrecordedGenerationError):
                        find_passage(method, path)
                    assert find_passage(method, path, allow_unrecorded=True) == path


def test_control_routes_never_pass() -> None:
    with checking_table() as table:
        for allowed in [True, False]:
            for path in [*CONTROLS.split(), *UNCLEAR]:
                with table.case(path, repr(allowed)):
                    assert tell_meaning(path) is Meaning.CONTROLS
                    for method in ("GET", "POST", "DELETE", "OPTIONS"):
                        with pytest.raises(RouteNotServedError):
                            find_passage(method, path, allow_unrecorded=allowed)


def test_what_generates_or_controls_cannot_be_added() -> None:
    with checking_table() as table:
        for method in ["GET", "POST", "PUT"]:
            for path in [*GENERATES.split(), *CONTROLS.split(), *UNCLEAR]:
                with table.case(path, method), pytest.raises(ValueError, match=r"never passed through|write METHOD"):
                    parse_open_route(f"{method} {path}")


@pytest.mark.parametrize(
    "route", ["GET server_info", "get /server_info/", "GET  Server_Info", "GET get_load", "GET metrics"]
)
def test_a_route_that_only_reads_can_be_added(route: str) -> None:
    opened = parse_open_route(route)
    assert opened.method == "GET"
    with pytest.raises(RouteNotServedError):
        find_passage("GET", opened.path)
    assert find_passage("HEAD", opened.path, opened=[opened]) == opened.path
    with pytest.raises(RouteNotServedError):
        find_passage("POST", opened.path, opened=[opened])


def test_spelling_does_not_change_what_a_route_is() -> None:
    with checking_table() as table:
        for path in ["generate", "v1/completions", "pause_generation", "v1/models", "wasm"]:
            for pattern in ["{}", "//{}", "{}/", "{}//", "/{}/"]:
                with table.case(pattern, path):
                    for spelled in (pattern.format(path), pattern.format(path.upper())):
                        assert tell_meaning(spelled) is tell_meaning(path)


def test_what_passes_goes_out_in_the_spelling_of_the_list() -> None:
    assert find_passage("GET", "//V1//Models/") == "v1/models"
    assert OpenRoute("GET", "v1/models") == parse_open_route("GET v1/models")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_another_method_of_an_open_path_is_not_served(method: str) -> None:
    with pytest.raises(RouteNotServedError):
        find_passage(method, "model_info")
