"""Side requests: turns beside a conversation whose reply opens another one, as a summary or a title does.

A harness that compacts its history asks for a summary at the end of a path and then starts another path with it. The
summary is rarely carried over letter by letter: harnesses cut parts of it away and wrap the rest in words of their
own. It is recognised by runs of words.

::

    reply    <analysis>the user wants ...</analysis> <summary>The login page rejects valid users since ...</summary>
    opening  This session continues an earlier one. Summary: The login page rejects valid users since ...
                                                            ^ runs of five words of the reply

A path that was started anew with its history (another system prompt) carries replies too, but with the question
before each of them; a summary comes without the request for it.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import orjson

from turnkeeper.core import Cause, Turn
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject, Message, is_array, is_object, iter_levels

_RUN_WORDS = 5
"""Two texts seldom share so many words in a row by chance; a shorter reply must stand in the opening whole."""
_CARRIED_SHARE = 1 / 3
"""The share of its runs by which a reply is recognised: Claude Code leaves out the analysis before its summary, up to
half of the reply."""

_WORD = re.compile(r"\w+")
_Run = tuple[str, ...]


def find_side_requests(turns: Sequence[Turn], ends: Collection[TurnId]) -> frozenset[TurnId]:
    """Find the turns without children whose reply, but not whose question, opens a later path or branch.

    Args:
        turns: all turns of the session in commit order.
        ends: the turns to judge.
    """
    replies = {end: _WORD.findall(_unwrap(_read_text(turns[end].completion.message))) for end in ends}
    sizes = {min(len(words), _RUN_WORDS) for words in replies.values() if words}
    if not sizes:
        return frozenset()
    holders: dict[_Run, TurnId] = {}
    openings: set[tuple[TurnId, str, str]] = set()
    for turn in turns:
        if turn.why.cause is Cause.NONE:
            continue
        for message in turn.messages:
            text = _read_text(message)
            openings.add((turn.id, message["role"], text))
            words = _WORD.findall(text)
            holders.update((run, turn.id) for size in sizes for run in _list_runs(words, size))

    def is_side(end: TurnId) -> bool:
        runs = list(_list_runs(replies[end], min(len(replies[end]), _RUN_WORDS)))
        carriers = Counter(holders[run] for run in runs if holders.get(run, end) > end)
        carrier, carried = max(carriers.items(), key=lambda item: item[1], default=(end, 0))
        question = turns[end].messages[-1]
        is_asked = (carrier, question["role"], _read_text(question)) in openings
        return carried > len(runs) * _CARRIED_SHARE and not is_asked

    return frozenset(end for end in ends if replies[end] and is_side(end))


def _list_runs(words: Sequence[str], size: int) -> Iterator[_Run]:
    return zip(*(words[start:] for start in range(size)), strict=False)


def _unwrap(text: str) -> str:
    """Return the texts in a reply of JSON, such as ``{"title": "Mend the login page"}``; any other text as it is."""
    try:
        values: JsonObject = orjson.loads(text) if text.lstrip().startswith("{") else {}
    except orjson.JSONDecodeError:
        return text
    said = [item for level in iter_levels(values) for item in level if isinstance(item, str)]
    return "\n".join(said) or text


def _read_text(message: Message) -> str:
    """Return the text of a message: its content, or the text parts of its content."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if is_object(part)] if is_array(content) else []
    return "\n".join(part for part in parts if isinstance(part, str))
