"""Sampled stacks as shares and as a picture.

1. A frame keeps its function and its module; lines, folders and the interpreter's own C code are left out.
2. Stacks that wait are left out, and garbage collection ends a stack.
3. The innermost frame with a concern says what a stack is about; shares add up to all.
4. The picture stands alone, holds no path of the machine, and shows what is wide enough.
"""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.flame import GARBAGE, LOOP, OTHER, draw_flames, name_concern, parse_stacks, share_concerns

SRC = Path(__file__).parent.parent.parent / "src" / "turnkeeper"
OUTER = "thread (7): MainThread;main (turnkeeper/__main__.py:6);Runner.run (asyncio/runners.py:118)"
READ = "parse (turnkeeper/engines/sglang.py:5);parse_reply (turnkeeper/engines/reply.py:7)"
NATIVE = "Loop__run (loop.c:1);0x7f01 (orjson/orjson.cpython-311-x86_64-linux-gnu.so);malloc (libc.so.6)"


@pytest.mark.parametrize(
    ("line", "stack"),
    [
        (f"{OUTER};{READ}", ("parse (turnkeeper/engines/sglang.py)", "parse_reply (turnkeeper/engines/reply.py)")),
        (f"{OUTER};f (/home/me/src/turnkeeper/core/a.py:3)", ("f (turnkeeper/core/a.py)",)),
        (f"{OUTER};f (/opt/lib/python3.11/json/decoder.py:3)", ("f (json/decoder.py)",)),
        (f"{OUTER};f (/v/lib/python3.11/site-packages/aiohttp/a.py:3)", ("f (aiohttp/a.py)",)),
        (f"{OUTER};f (a.py:1);f (a.py:2)", ("f (a.py)",)),
        (f"{OUTER};{NATIVE}", ("orjson (native)",)),
        (f"{OUTER};f (a.py:1);0x1 (o/o.so);gc_collect_main (libpython3.so);visit (a.c:2)", None),
    ],
    ids=["module", "source folder", "standard library", "installed", "two lines", "native", "garbage"],
)
def test_a_frame_is_a_function_and_a_module(line: str, stack: tuple[str, ...] | None) -> None:
    expected = ("f (a.py)", "o (native)", GARBAGE) if stack is None else stack
    assert parse_stacks(f"{line} 3\n") == {("MainThread", *expected): 3}


@pytest.mark.parametrize(
    "leaf", ["epoll_pwait (libc.so.6)", "write (libc.so.6)", "PyThread_acquire_lock_timed (p.so);sem_wait (libc.so.6)"]
)
def test_a_stack_that_waits_is_left_out(leaf: str) -> None:
    assert parse_stacks(f"{OUTER};f (a.py:1);{leaf} 9\n") == {}


def test_threads_of_one_pool_are_one() -> None:
    raw = "thread (8): render_0;f (a.py:1) 1\nthread (9): render_1;f (a.py:2) 2\n"
    assert parse_stacks(raw) == {("render", "f (a.py)"): 3}


def test_the_innermost_frame_with_a_concern_decides() -> None:
    stack = ("MainThread", "begin (turnkeeper/core/session.py)", "loads (json/decoder.py)")
    assert name_concern(stack) == "the history: matching, begin, commit"
    assert name_concern((*stack, "encode (turnkeeper/rendering/tokenization/encoder.py)")) == "tokenizing"
    assert name_concern((*stack, GARBAGE)) == GARBAGE
    assert name_concern(("MainThread", "f (elsewhere.py)")) == OTHER
    assert name_concern(("MainThread",)) == LOOP


@pytest.mark.parametrize(
    ("file", "concern"),
    [
        ("rendering/tokenization/encoder.py", "tokenizing"),
        ("service/turns/prompt.py", "rendering what a turn adds"),
        ("channels/routing/patch.py", "routing rows"),
        ("engines/reply.py", "reading the engine's reply"),
        ("engines/vllm/reply.py", "reading the engine's reply"),
        ("generation/joining.py", "reading the engine's reply"),
        ("engines/net/client.py", "the client on aiohttp"),
        ("core/history/attach.py", "the history: matching, begin, commit"),
        ("matching/normal.py", "the history: matching, begin, commit"),
        ("service/turns/turn_service.py", "the history: matching, begin, commit"),
        ("dialects/jsonbody.py", "reading the body, writing the reply"),
        ("dialects/chat/stream.py", "reading the body, writing the reply"),
        ("http/reading.py", "reading the body, writing the reply"),
        ("http/protocol.py", "HTTP frame: uvicorn, Starlette, routes"),
        ("generation/runner.py", "seeing the turn through"),
        ("service/turns/in_flight.py", "seeing the turn through"),
    ],
)
def test_a_file_of_the_package_has_its_concern(file: str, concern: str) -> None:
    assert (SRC / file).is_file()
    assert name_concern(("MainThread", f"f (turnkeeper/{file})")) == concern


def test_shares_add_up_to_all() -> None:
    stacks = parse_stacks(f"{OUTER};{READ} 3\n{OUTER};f (elsewhere.py:2) 1\n")
    assert share_concerns(stacks) == {"reading the engine's reply": 0.75, OTHER: 0.25}


def test_the_picture_stands_alone() -> None:
    raw = f"{OUTER};{READ} 900\n{OUTER};f (/home/me/src/turnkeeper/core/a<b>.py:2) 99\n{OUTER};g (rare.py:1) 1\n"
    picture = draw_flames(parse_stacks(raw), "no rows & more")
    titles = [each.text or "" for each in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == f"MainThread: 100.0% ({LOOP})"
    assert "parse_reply (turnkeeper/engines/reply.py): 90.0% (reading the engine's reply)" in titles
    assert not [title for title in titles if "rare" in title]
    assert not re.search(r"/home|<script|href", picture)
