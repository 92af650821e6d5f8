"""SGLang's ``meta_info``, which each of its wires sends beside a reply, read into a `Generation`.

Pure. Knows the members of ``meta_info``, which the chat and the generate wire share; `check` compares its numbers.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from turnkeeper.channels import CHANNELS
from turnkeeper.core.tokens import TokenIds
from turnkeeper.core.turn import VersionSpan
from turnkeeper.engines.engine import ABORT, GenerateRequest, Generation
from turnkeeper.engines.reply import JsonReply, clean_numbers, expect_object
from turnkeeper.engines.token_logprobs import TokenLogprobs, freeze_whole_numbers, read_token_logprobs
from turnkeeper.engines.top_logprobs import count_wanted, read_top_logprobs
from turnkeeper.errors import EngineProtocolError
from turnkeeper.fields import Wire
from turnkeeper.jsontypes import MAX_DEPTH, JsonObject, is_array, is_too_deep

_CUT_META = {
    "output_token_logprobs",
    "input_token_logprobs",
    "output_top_logprobs",
    "input_top_logprobs",
    "output_token_ids_logprobs",
    "input_token_ids_logprobs",
    "output_ids",
}
"""Members of ``meta_info`` that a generation holds in another form, or that are not kept, beside those of side
channels."""


def build_generation(
    reply: JsonReply,
    meta: JsonObject,
    url: str,
    request: GenerateRequest | None,
    wire: Wire,
    *,
    message: JsonObject,
    finish_reason: object,
    matched_stop: object,
) -> Generation:
    """Build a generation of ``meta_info`` and of the members that the wires have for themselves.

    Payloads that ``request`` did not ask for are ignored; without a request every payload is taken.
    """
    finish = _read_finish(finish_reason, meta, url)
    sampled = reply.sampled or _find_sampled(meta, finish, url)
    top = reply.value
    kept = {key: value for key, value in meta.items() if key not in _CUT_META and key not in CHANNELS.members}
    if is_too_deep(kept):
        raise EngineProtocolError(f"the reply of {url} has meta data nested deeper than {MAX_DEPTH} levels", url=url)
    return Generation(
        message=message,
        ids=sampled.freeze_ids(url),
        logprobs=sampled.freeze_logprobs(),
        finish_reason=finish,
        matched_stop=_read_matched(matched_stop, meta),
        prompt_tokens=_read_prompt_tokens(meta, top.get("usage")),
        completion_tokens=read_count(meta, "completion_tokens"),
        cached_tokens=read_count(meta, "cached_tokens") or 0,
        weight_version=read_version(meta.get("weight_version")),
        spans=read_spans(meta.get("weight_versions"), url),
        num_retractions=read_count(meta, "num_retractions") or 0,
        payloads=read_payloads(reply, meta, request, wire),
        top_logprobs=read_top_logprobs(
            meta.get("output_top_logprobs"), tokens=len(sampled.ids), wanted=count_wanted(request)
        ),
        meta=clean_numbers(reply, kept),
        response_id=str(top.get("id") or meta.get("id") or ""),
        model=str(top.get("model") or ""),
        url=url,
    )


def read_payloads(
    reply: JsonReply, holder: JsonObject, request: GenerateRequest | None, wire: Wire
) -> Mapping[str, Any]:
    """Read the payloads of side channels out of their holder; without a request, those of all channels.

    Raises:
        EngineProtocolError: a payload is none.
    """
    asked = CHANNELS if request is None else request.asked
    take = partial(reply.take_payload, holder)
    return {name: CHANNELS[name].read(wire, holder, take) for name in asked}


def _find_sampled(meta: JsonObject, finish: str, url: str) -> TokenLogprobs:
    """Read the sampled tokens of a reply that was parsed whole."""
    entries = meta.get("output_token_logprobs")
    if entries is None and finish == ABORT:  # aborted before it ran: some builds then leave the lists out
        entries = []
    if not is_array(entries):
        raise EngineProtocolError(
            f"the reply of {url} lacks meta_info.output_token_logprobs, without which a turn has no token ids",
            hint="the route drops logprobs, or the engine was asked by something that overrides it",
            url=url,
        )
    return read_token_logprobs(entries, url)


def read_ids(values: Sequence[object], url: str) -> TokenIds:
    """Read a list of ids of a reply.

    Raises:
        EngineProtocolError: an entry is no token id.
    """
    try:
        return freeze_whole_numbers(values)
    except (ValueError, OverflowError) as error:
        raise EngineProtocolError(
            f"the reply of {url} holds something else than token ids: {error}", url=url
        ) from error


def _read_finish(value: object, meta: JsonObject, url: str) -> str:
    """Read the finish reason of the choice, or that of ``meta_info`` where the choice has none or hides an abort."""
    inner = meta.get("finish_reason")
    spelled = cast(JsonObject, inner).get("type") if isinstance(inner, dict) else inner
    word = value if isinstance(value, str) and value and spelled != ABORT else spelled
    if not isinstance(word, str) or not word:
        raise EngineProtocolError(f"the reply of {url} has no finish_reason", url=url)
    return word


def _read_matched(value: object, meta: JsonObject) -> int | str | None:
    inner = meta.get("finish_reason")
    if value is None and isinstance(inner, dict):
        value = cast(JsonObject, inner).get("matched")
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def read_count(fields: JsonObject, key: str) -> int | None:
    """Read a count; None where it is missing, or is no count, such as ``true``, ``4.0`` and ``-1``."""
    value = fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _read_prompt_tokens(meta: JsonObject, usage: object) -> int | None:
    """Read the count of ``meta_info``, else of ``usage``, where some routers write 0 for an unknown count."""
    counted = read_count(meta, "prompt_tokens")
    if counted is None and isinstance(usage, dict):
        return read_count(cast(JsonObject, usage), "prompt_tokens") or None
    return counted


def read_version(value: object) -> str | None:
    """Read a version label as text; None where there is none."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def read_spans(value: object, url: str) -> tuple[VersionSpan, ...] | None:
    """Read ``weight_versions`` as spans without the empty ones; None when absent.

    Raises:
        EngineProtocolError: an entry is not ``{"version", "start", "end"}`` or runs backwards.
    """
    if not isinstance(value, list):
        return None
    spans: list[VersionSpan] = []
    for entry in cast(list[object], value):
        fields = _read_span(entry, url)
        start, stop = fields.get("start"), fields.get("end")
        if type(start) is not int or type(stop) is not int or not 0 <= start <= stop:
            raise EngineProtocolError(f"the reply of {url} has a malformed version span {str(fields)[:200]}", url=url)
        if start < stop:
            spans.append(VersionSpan(version=read_version(fields.get("version")), start=start, stop=stop))
    return tuple(spans)


def _read_span(entry: object, url: str) -> JsonObject:
    """Read a span as an object; some builds send a list of its three members."""
    if isinstance(entry, list):
        return dict(zip(("version", "start", "end"), cast(list[object], entry), strict=False))
    return expect_object(entry, "meta_info.weight_versions[]", url)
