"""Stacks that py-spy sampled, as shares by concern and as a picture.

::

    thread (7): MainThread;main (app.py:3);_read (turnkeeper/dialects/jsonbody.py:82);0x7f (orjson/orjson.so) 12

Stacks that wait are left out, and with them those in the kernel: on a busy machine a thread that has woken another one
there often waits for a core. So are lines, the frames above the event loop and those of the interpreter's own C code.
What stays of C code is which library was in it, and garbage collection. Pure.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from xml.sax.saxutils import escape

Stack: TypeAlias = tuple[str, ...]
"""The thread, then frames from the outermost to the innermost: ``function (package/module.py)``."""

GARBAGE = "garbage collection"
LOOP = "event loop: uvloop and asyncio"
_THREAD = re.compile(r"thread \(\d+\):? ?(.*?)(?:_\d+)?$")
_FRAME = re.compile(r"(?P<name>.*) \((?P<file>[^()]*?)(?::\d+)?\)$")
_OUTER = ("Runner.run (asyncio/runners.py)", "_WorkItem.run (concurrent/futures/thread.py)")
"""The frames that all stacks of a thread begin with end with one of these."""
_WAITS = frozenset(
    {"PyThread_acquire_lock_timed", "take_gil", "pthread_cond_timedwait", "epoll_pwait", "sem_post"}
    | {"write", "writev", "sendmsg", "read", "readv", "recv", "recvmsg", "munmap", "madvise"}
)

CONCERNS: tuple[tuple[str, str], ...] = (
    (GARBAGE, GARBAGE),
    ("handing work to threads", r"concurrent/futures|_chain_future|run_in_executor|to_thread"),
    ("tokenizing", r"rendering/tokenization/(encoder|fast_encoder|tokenizer)\.py"),
    ("rendering what a turn adds", r"rendering/|service/turns/prompt\.py"),
    ("routing rows", r"channels/|HeldRows|_take_payload"),
    (
        "reading the engine's reply",
        r"engines/(reply|meta|message|check|refusal|token_logprobs|top_logprobs|vllm/reply)\.py|"
        r"generation/(joining|part_reader)\.py|parse_chat_reply",
    ),
    ("writing the request to the engine", r"render_chat_body|render_body|write_ids|write_messages|join_prompt"),
    ("the client on aiohttp", r"^.*\((aiohttp|yarl|multidict)/|engines/net/"),
    (
        "the history: matching, begin, commit",
        r"turnkeeper/(core/(?!tokens)|matching/)|service/turns/(request|turn_service)\.py",
    ),
    ("reading the body, writing the reply", r"turnkeeper/dialects/|http/(reading|bodies)\.py"),
    ("HTTP frame: uvicorn, Starlette, routes", r"\((uvicorn|starlette)/|turnkeeper/http/"),
    ("seeing the turn through", r"turnkeeper/(service|generation|fleet|engines)/"),
    (LOOP, r"asyncio/|uvloop"),
)
"""What a stack is about: the row of the innermost frame that has one."""
OTHER = "anything else"


def parse_stacks(raw: str) -> Counter[Stack]:
    """Read py-spy's raw format, native frames or not; waits are left out."""
    stacks: Counter[Stack] = Counter()
    for line in raw.splitlines():
        spelled, _, count = line.rpartition(" ")
        thread, *frames = spelled.split(";")
        names = [found["name"] for frame in frames if (found := _FRAME.match(frame))]
        if not _WAITS & set(names[-4:]):
            named = _THREAD.match(thread)
            stacks[(named.group(1) if named else thread, *_clean(frames))] += int(count)
    return stacks


def _clean(frames: Iterable[str]) -> list[str]:
    cleaned: list[str] = []
    for frame in frames:
        spelled = _spell(frame)
        if spelled in _OUTER:
            cleaned = []
        elif spelled == GARBAGE:
            return [*cleaned, GARBAGE]
        elif spelled and cleaned[-1:] != [spelled]:
            cleaned.append(spelled)
    return cleaned


def _spell(frame: str) -> str:
    """A frame without its line and without the folders before its package; nothing for the interpreter's own."""
    found = _FRAME.match(frame)
    if found is None:
        return ""
    name, file = found["name"], found["file"]
    if file.endswith(".py") or file.startswith("<"):
        path = re.split(r"site-packages/|/lib/python[\d.]+/|/src/", file)[-1].lstrip("/")
        return f"{name} ({path})"
    if name == "gc_collect_main":
        return GARBAGE
    library = file.partition("/")[0] if ".so" in file and "/" in file else ""
    return f"{library} (native)" if library else ""


def name_concern(stack: Stack) -> str:
    """What a stack is about. One that holds only its thread was in the event loop's C code."""
    for frame in reversed(stack[1:]):
        for concern, pattern in CONCERNS:
            if re.search(pattern, frame):
                return concern
    return OTHER if len(stack) > 1 else LOOP


def share_concerns(stacks: Mapping[Stack, int]) -> dict[str, float]:
    """Each concern's share of all samples, largest first."""
    counts: Counter[str] = Counter()
    for stack, count in stacks.items():
        counts[name_concern(stack)] += count
    return {name: count / counts.total() for name, count in counts.most_common()}


@dataclass(slots=True)
class _Node:
    count: int = 0
    concern: str = OTHER
    children: dict[str, "_Node"] = field(default_factory=dict[str, "_Node"])


_WIDTH, _ROW, _TOP = 1200, 17, 44
_LEAST_PIXELS = 2.0
"""Narrower boxes are left out."""
_CHARACTER = 6.2


def draw_flames(stacks: Mapping[Stack, int], title: str) -> str:
    """An SVG that stands alone: outermost frames at the top, width by samples, colour by concern."""
    root = _Node()
    for stack, count in stacks.items():
        _add(root, stack, count)
    boxes: list[str] = []
    depth = _draw(root, 0.0, -1, _WIDTH / max(1, root.count), root.count, boxes)
    height = _TOP + (depth + 1) * _ROW + 4
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="monospace" '
        f'font-size="10.5"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="4" y="18" font-size="14">{escape(title)}</text>'
        f'<text x="4" y="34" fill="#666">{root.count} samples; hover over a box for its name and share</text>'
    )
    return head + "\n" + "\n".join(boxes) + "\n</svg>\n"


def _add(root: _Node, stack: Stack, count: int) -> None:
    root.count += count
    node = root
    for depth, frame in enumerate(stack):
        node = node.children.setdefault(frame, _Node(concern=name_concern(stack[: depth + 1])))
        node.count += count


def _draw(node: _Node, x: float, depth: int, scale: float, total: int, boxes: list[str]) -> int:
    """Draw what lies below a node; the deepest row drawn."""
    deepest = depth
    for name, child in sorted(node.children.items()):
        width = child.count * scale
        if width >= _LEAST_PIXELS:
            boxes.append(_draw_box(name, child, x, depth + 1, width, 100 * child.count / total))
            deepest = max(deepest, _draw(child, x, depth + 1, scale, total, boxes))
        x += width
    return deepest


def _draw_box(name: str, node: _Node, x: float, row: int, width: float, percent: float) -> str:
    y = _TOP + row * _ROW
    label = escape(name[: int(width / _CHARACTER)]) if width > 4 * _CHARACTER else ""
    text = f'<text x="{x + 2:.1f}" y="{y + 12}">{label}</text>' if label else ""
    hover = escape(f"{name}: {percent:.1f}% ({node.concern})")
    size = f'x="{x:.1f}" y="{y}" width="{max(1.0, width - 0.5):.1f}" height="{_ROW - 1}"'
    return f'<g><title>{hover}</title><rect {size} fill="{_choose_colour(node.concern)}"/>{text}</g>'


def _choose_colour(concern: str) -> str:
    names: Sequence[str] = [name for name, _ in CONCERNS]
    if concern not in names:
        return "#e0e0e0"
    hue = names.index(concern) * 360 // len(names)
    return f"hsl({hue},65%,78%)"
