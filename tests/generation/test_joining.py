"""Parts of a turn as one reply.

1. Ids, logprobs, versions and rows are joined in order and stay parallel; counts are those of the whole.
2. A character or a tool call that lies across a cut comes out whole: the message is read from the joined ids.
3. A stop string that lies across a cut ends the turn where an uncut turn would have ended.
4. Wherever a turn is cut, joining gives what the uncut turn was (a property).
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channelkit import ROWS, capture_rows
from engines.builders import make_generation, make_request
from turnkeeper.channels.routing import Patch, RoutingRows, RoutingShape
from turnkeeper.core import VersionSpan
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.engines import GenerateRequest
from turnkeeper.engines.message import trim_stop
from turnkeeper.generation.joining import JoinedReply, ReplyPart, join_parts
from turnkeeper.testing.script import scripted_rows

PROMPT = [11, 12, 13, 14, 15]
CAPTURES = (capture_rows(RoutingShape(layers=2, topk=2, experts=8)),)


def encode(text: str) -> list[int]:
    return [16 + byte for byte in text.encode()]


def decode(ids: TokenIds) -> str:
    return bytes(int(each) - 16 for each in ids if each >= 16).decode("utf-8", "replace")


def parse(request: GenerateRequest, ids: TokenIds) -> dict[str, Any]:
    text = decode(ids)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return message | ({"tool_calls": [{"id": request.rid}]} if "<call>" in text else {})


def make_parts(ids: list[int], cuts: list[int], *, first_row: int = 3, **fields: Any) -> list[ReplyPart]:
    """A turn of these ids, cut at the given counts, each part under a version of its own."""
    path_rows = scripted_rows([*PROMPT, *ids], layers=2, topk=2, experts=8).astype(np.uint8)
    parts: list[ReplyPart] = []
    bounds = [0, *cuts, len(ids)]
    for number, (start, stop) in enumerate(pairwise(bounds)):
        is_last = stop == len(ids)
        held = first_row if start == 0 else len(PROMPT) + start - 1
        end = len(PROMPT) + stop - 1
        generation = make_generation(
            ids=freeze_ids(ids[start:stop]),
            logprobs=-0.5 - np.arange(start, stop),
            finish_reason="stop" if is_last else "abort",
            completion_tokens=stop - start,
            cached_tokens=10 + number,
            num_retractions=1,
            weight_version=str(number),
            meta={"e2e_latency": 2.0, "spec_verify_ct": 3},
            **fields,
        )
        parts.append(
            ReplyPart(
                request=make_request(sampling={"stop": ["END"]}),
                generation=generation,
                versions=(VersionSpan(version=str(number), start=0, stop=stop - start),) if stop > start else (),
                taken={
                    ROWS: Patch(
                        rows=RoutingRows(experts_RLK=path_rows[held:end]), start=held, bad=None, changed_rows=number
                    )
                },
            )
        )
    return parts


def join(parts: list[ReplyPart]) -> JoinedReply:
    return join_parts(parts, captures=CAPTURES, parse=parse, decode=decode)


def test_one_part_is_the_reply_as_the_engine_gave_it() -> None:
    [only] = make_parts(encode("hello"), [])
    joined = join_parts([only])
    assert joined.generation is only.generation
    assert (joined.versions, joined.taken, joined.cut_tokens) == (only.versions, only.taken, 0)


def test_reports_of_the_likeliest_tokens_are_joined_where_every_part_has_one() -> None:
    parts = make_parts(encode("hello"), [2])
    told = [
        replace(part, generation=replace(part.generation, top_logprobs=((((7, -float(at)),),) * count)))
        for at, (part, count) in enumerate(zip(parts, (2, 3), strict=True))
    ]
    assert join(told).generation.top_logprobs == (((7, 0.0),),) * 2 + (((7, -1.0),),) * 3
    assert join([told[0], parts[1]]).generation.top_logprobs is None
    assert join(parts).generation.top_logprobs is None


def test_everything_parallel_is_joined_in_order() -> None:
    ids = encode("hello world")
    joined = join(make_parts(ids, [4, 9]))
    found = joined.generation
    assert found.ids.tolist() == ids
    assert found.logprobs.tolist() == [-0.5 - index for index in range(len(ids))]
    assert [(span.version, span.start, span.stop) for span in joined.versions] == [
        ("0", 0, 4),
        ("1", 4, 9),
        ("2", 9, 11),
    ]
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (5, 11, 10)
    assert (found.num_retractions, found.weight_version, found.finish_reason) == (3, "2", "stop")
    assert found.meta == {
        "e2e_latency": 6.0,
        "spec_verify_ct": 9,
        "prompt_tokens": 5,
        "completion_tokens": 11,
        "cached_tokens": 10,
    }
    assert ROWS in joined.taken
    expected = scripted_rows([*PROMPT, *ids], layers=2, topk=2, experts=8)[3:]
    assert np.array_equal(joined.taken[ROWS].rows.experts_RLK, expected)
    assert (joined.taken[ROWS].start, joined.taken[ROWS].changed_rows) == (3, 3)


def test_half_a_character_on_either_side_of_the_cut_is_one_character() -> None:
    ids = encode("a\U0001f600b")
    assert join(make_parts(ids, [3])).generation.message["content"] == "a\U0001f600b"


def test_a_tool_call_across_the_cut_is_one_call_and_ends_the_turn_so() -> None:
    joined = join(make_parts(encode("<call>"), [3]))
    assert joined.generation.finish_reason == "tool_calls"
    assert joined.generation.message["tool_calls"] == [{"id": "rid-1"}]


def test_a_stop_string_across_the_cut_ends_the_turn_there() -> None:
    joined = join(make_parts(encode("okENDmore"), [3]))
    found = joined.generation
    assert (decode(found.ids), found.message["content"]) == ("okEND", "ok")
    assert (found.finish_reason, found.matched_stop, found.completion_tokens) == ("stop", "END", 5)
    assert (len(found.logprobs), joined.versions[-1].stop, joined.cut_tokens) == (5, 5, 4)
    assert ROWS in joined.taken
    assert joined.taken[ROWS].start + len(joined.taken[ROWS].rows) == len(PROMPT) + 5 - 1


def test_equal_versions_on_both_sides_are_one_span() -> None:
    parts = make_parts(encode("abcd"), [2])
    same = (VersionSpan(version="7", start=0, stop=2),)
    parts = [ReplyPart(request=p.request, generation=p.generation, versions=same, taken=p.taken) for p in parts]
    assert join(parts).versions == (VersionSpan(version="7", start=0, stop=4),)


def test_a_payload_that_was_taken_whole_replaces_the_earlier_ones() -> None:
    first, second = make_parts(encode("abcd"), [2], first_row=0)
    whole = scripted_rows([*PROMPT, *encode("abcd")], layers=2, topk=2, experts=8, salt=1).astype(np.uint8)
    patch = Patch(rows=RoutingRows(experts_RLK=whole), start=0, bad=None, changed_rows=6)
    second = ReplyPart(
        request=second.request, generation=second.generation, versions=second.versions, taken={ROWS: patch}
    )
    joined = join([first, second])
    assert ROWS in joined.taken
    assert np.array_equal(joined.taken[ROWS].rows.experts_RLK, whole)


@pytest.mark.parametrize(
    ("requested", "stops"),
    [
        ({}, ()),
        ({"stop": "x"}, ("x",)),
        ({"stop": ["a", "", "b"]}, ("a", "b")),
        ({"stop": None}, ()),
        ({"stop": ""}, ()),
    ],
)
def test_stop_strings_are_read_in_both_forms(requested: dict[str, Any], stops: tuple[str, ...]) -> None:
    assert make_request(sampling=requested).stop_strings == stops


def test_a_stop_string_is_cut_from_the_text_that_holds_it() -> None:
    assert trim_stop({"content": "aENDb"}, "END") == {"content": "a"}
    assert trim_stop({"reasoning_content": "rEND", "content": ""}, "END") == {"reasoning_content": "r", "content": ""}
    assert trim_stop({"content": "ab"}, "END") == {"content": "ab"}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), text=st.text("abEND\U0001f600é", min_size=2, max_size=24))
def test_wherever_a_turn_is_cut_it_comes_out_as_if_it_were_whole(data: st.DataObject, text: str) -> None:
    """The oracle reads the text byte by byte until the stop string is there."""
    raw = text.encode()
    until = next((n for n in range(len(raw) + 1) if b"END" in raw[:n]), len(raw))
    ids = encode(text)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids) - 1), min_size=1, max_size=3)))
    joined = join(make_parts(ids, cuts))
    found = joined.generation
    assert found.ids.tolist() == ids[:until]
    assert found.message["content"] == raw[:until].decode().split("END")[0]
    assert len(found.logprobs) == until == found.completion_tokens == joined.versions[-1].stop
    assert ROWS in joined.taken
    assert np.array_equal(
        joined.taken[ROWS].rows.experts_RLK, scripted_rows([*PROMPT, *ids[:until]], layers=2, topk=2, experts=8)[3:]
    )
