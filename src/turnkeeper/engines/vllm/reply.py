"""The replies of vLLM, whole or streamed, read into generations.

Pure. The two routes share a shape: one choice with ids and logprobs, and counts under ``usage``. The logprobs are
written in two ways::

    /inference/v1/generate   {"content": [{"token_id": 3, "logprob": -0.5, ...}, ...]}
    /v1/completions          {"token_logprobs": [-0.5, ...], ...}

The message is read from the ids.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np

from turnkeeper.channels import CHANNELS, PackedIds
from turnkeeper.core.tokens import NO_TOKENS, TokenIds
from turnkeeper.engines.engine import ABORT, GenerateRequest, Generation, ParseMessage
from turnkeeper.engines.meta import read_count, read_ids, read_payloads, read_spans
from turnkeeper.engines.reply import Body, JsonReply, clean_numbers, expect_object, parse_reply
from turnkeeper.engines.sglang.generate import add_message, build_stream_error
from turnkeeper.engines.top_logprobs import count_wanted, read_top_logprobs
from turnkeeper.errors import EngineError, EngineProtocolError
from turnkeeper.fields import Wire
from turnkeeper.jsontypes import JsonObject, is_number

CLAMPED_LOGPROB = -9999.0
"""The number that vLLM writes for minus infinity, for NaN, and for a logprob that it does not have."""

_LOGPROB_LISTS = ("content", "token_logprobs")


def parse_vllm_reply(body: Body, request: GenerateRequest, url: str, parse: ParseMessage) -> Generation:
    """Parse the body of a 200 of either route.

    Raises:
        EngineProtocolError: there is no choice or several, no ids, or no logprobs.
    """
    return read_vllm_reply(parse_reply(body, url, list_keys=request.list_keys), request, url, parse)


def read_vllm_reply(reply: JsonReply, request: GenerateRequest, url: str, parse: ParseMessage) -> Generation:
    """Translate a reply that is parsed already.

    Raises:
        EngineProtocolError: there is no choice or several, no ids, or no logprobs.
    """
    choices = reply.value.get("choices")
    if not isinstance(choices, list) or len(cast(list[object], choices)) != 1:
        found = f"{len(cast(list[object], choices))} choices" if isinstance(choices, list) else "no choices"
        raise EngineProtocolError(f"the engine at {url} answered {found}, expected exactly 1", url=url)
    choice = expect_object(cast(list[object], choices)[0], "choices[0]", url)
    return add_message(_build_bare(reply, choice, url, request), request, parse)


def _build_bare(reply: JsonReply, choice: JsonObject, url: str, request: GenerateRequest) -> Generation:
    finish = str(choice.get("finish_reason") or "stop")
    ids: object = choice.get("token_ids")
    logprobs: object = choice.get("logprobs")
    if finish == ABORT and not ids:  # aborted before its first token
        ids, logprobs = list[object](), {"content": list[object]()}
    if not isinstance(ids, list):
        raise EngineProtocolError(
            f"the reply of {url} has no token_ids",
            hint="a vLLM of this age has no return_token_ids, or a router drops it",
            url=url,
        )
    usage = expect_object(reply.value.get("usage") or {}, "usage", url)
    details: object = usage.get("prompt_tokens_details")
    cached = read_count(cast(JsonObject, details), "cached_tokens") if isinstance(details, dict) else None
    reason = choice.get("stop_reason")
    spans = read_spans(choice.get("weight_versions"), url)
    return Generation(
        message={},
        ids=read_ids(cast(list[object], ids), url),
        logprobs=np.asarray(read_logprobs(logprobs, url), dtype=np.float64),
        finish_reason=finish,
        matched_stop=reason if isinstance(reason, int | str) and not isinstance(reason, bool) else None,
        prompt_tokens=read_count(usage, "prompt_tokens"),
        completion_tokens=read_count(usage, "completion_tokens"),
        cached_tokens=cached or 0,
        is_cache_counted=cached is not None,
        weight_version=spans[-1].version if spans else None,
        spans=spans,
        payloads=read_payloads(reply, choice, request, Wire.VLLM),
        top_logprobs=read_top_logprobs(
            _find_places(logprobs), tokens=len(cast(list[object], ids)), wanted=count_wanted(request)
        ),
        meta=clean_numbers(
            reply, {name: reply.value[name] for name in ("kv_transfer_params", "metrics") if name in reply.value}
        ),
        response_id=str(reply.value.get("id") or reply.value.get("request_id") or ""),
        model=str(reply.value.get("model") or ""),
        url=url,
    )


def _find_places(logprobs: object) -> object:
    """Find the list of the likeliest tokens of each position, which each route has in another place."""
    fields = cast(JsonObject, logprobs) if isinstance(logprobs, dict) else {}
    return fields.get("top_logprobs") or fields.get("content")


def read_logprobs(value: object, url: str) -> list[float]:
    """Read the logprobs of the sampled tokens; NaN for null, minus infinity where vLLM clamped it.

    Raises:
        EngineProtocolError: the reply has no logprobs.
    """
    fields = cast(JsonObject, value) if isinstance(value, dict) else {}
    entries: object = next((fields[name] for name in _LOGPROB_LISTS if name in fields), None)
    if not isinstance(entries, list):
        raise EngineProtocolError(f"the reply of {url} has no logprobs, without which no turn can be recorded", url=url)
    found: list[float] = []
    for entry in cast(list[object], entries):
        number = cast(JsonObject, entry).get("logprob") if isinstance(entry, dict) else entry
        found.append(float(number) if isinstance(number, float) or is_number(number) else float("nan"))
    return [float("-inf") if number <= CLAMPED_LOGPROB else number for number in found]


def _read_list(value: object, name: str, url: str) -> list[object]:
    """Return a value that has to be a list; null is an empty list.

    Raises:
        EngineProtocolError: the value is something else.
    """
    if value is not None and not isinstance(value, list):
        raise EngineProtocolError(
            f"the reply of {url} has a {type(value).__name__} as {name}, expected a list", url=url
        )
    return cast(list[object], value or [])


class StreamedChoice:
    """A streamed reply, put together from its events: each adds ids and logprobs, the last ones what ends the reply."""

    def __init__(self, url: str, prompt_tokens: int) -> None:
        """Expect the first event; an error about the length names ``prompt_tokens``."""
        self._url = url
        self._prompt_tokens = prompt_tokens
        self._ids: list[int] = []
        self._logprobs: list[object] = []
        self._places: list[object] = []
        self._top: JsonObject = {}
        self._choice: JsonObject = {}
        self._payloads: Sequence[PackedIds] = ()

    def feed(self, data: Body) -> TokenIds:
        """Return the ids that this event adds.

        Raises:
            EngineError: the event is an error.
            EngineProtocolError: the event does not have the form of a reply.
        """
        reply = parse_reply(data, self._url)
        if "error" in reply.value:
            raise build_stream_error(reply.value["error"], self._url, self._prompt_tokens)
        self._top |= {name: value for name, value in reply.value.items() if value is not None and name != "choices"}
        for entry in _read_list(reply.value.get("choices"), "choices", self._url):
            choice = expect_object(entry, "choices[]", self._url)
            if any(choice.get(name) is not None for name in CHANNELS.members):
                self._payloads = reply.payloads
            self._choice |= {name: value for name, value in choice.items() if value is not None}
            logprobs = choice.get("logprobs")
            if isinstance(logprobs, dict):
                fields = cast(JsonObject, logprobs)
                for name in _LOGPROB_LISTS:
                    self._logprobs += _read_list(fields.get(name), name, self._url)
                places: object = fields.get("top_logprobs")
                self._places += cast(list[object], places) if isinstance(places, list) else []
            ids = read_ids(_read_list(choice.get("token_ids"), "token_ids", self._url), self._url)
            self._ids += ids.tolist()
            return ids
        return NO_TOKENS

    def finish(self) -> JsonReply:
        """Return the reply as an unstreamed call would have given it.

        Raises:
            EngineError: the stream ended before its reply was complete.
        """
        if not self._choice.get("finish_reason"):
            raise EngineError(f"the stream of {self._url} ended before its reply was complete", url=self._url)
        choice = {
            **self._choice,
            "token_ids": self._ids,
            "logprobs": {"content": self._logprobs, "top_logprobs": self._places},
        }
        return JsonReply(value={**self._top, "choices": [choice]}, payloads=self._payloads, is_strict=False)
