"""The table of side channels.

1. Names, keys of records and names of runs and tensors belong to one channel each.
2. What the channels declare together follows the table as it stands.
3. Nothing outside of the declarations decides by a channel.
"""

import re
from collections import Counter
from pathlib import Path

from turnkeeper.channels import CHANNELS, Capture, Channel

SRC = Path(__file__).parents[2] / "src" / "turnkeeper"
OUTSIDE = (
    "core",
    "dialects",
    "engines",
    "fleet",
    "generation",
    "http",
    "samples",
    "server",
    "service",
    "store",
    "views",
)


def test_names_belong_to_one_channel_each() -> None:
    channels = CHANNELS.values()
    for names in (
        [channel.name for channel in channels],
        [channel.label for channel in channels],
        [channel.stored_as for channel in channels],
        [run for channel in channels for run in channel.stored_runs],
        [tensor.name for tensor in CHANNELS.tensors],
        [name for channel in channels for name in (*channel.members, *channel.fields)],
    ):
        assert [name for name, count in Counter(names).items() if count > 1] == []
    assert [name for name, channel in CHANNELS.items() if channel.name != name] == []


def test_payloads_in_base64_are_members_of_replies() -> None:
    for channel in CHANNELS.values():
        assert set(channel.payload_keys) <= set(channel.members) <= CHANNELS.members
    assert CHANNELS.payload_keys == (b'"routed_experts"', b'"prompt_routed_experts"', b'"indexer_topk"')


def test_nothing_outside_of_the_declarations_decides_by_a_channel() -> None:
    """A name may stand in a table, as the fields of agents do; no branch may ask for it."""
    spelled = {name for channel in CHANNELS.values() for name in (channel.name, *channel.members, *channel.fields)}
    spelled |= {tensor.name for tensor in CHANNELS.tensors}
    classes = {type(channel).__name__ for channel in CHANNELS.values()} | {each.__name__ for each in _list_captures()}
    found = "|".join([*(rf"[\"']{name}[\"']" for name in sorted(spelled)), *sorted(classes)])
    decides = re.compile(rf"\b(if|elif|while|match|case)\b.*({found})")
    assert decides.search("if name == 'routed_experts':")
    assert decides.search("x = 1 if isinstance(capture, RowsCapture) else 2")
    files = [path for folder in OUTSIDE for path in (SRC / folder).rglob("*.py")]
    assert len(files) > 100
    lines = ((path, line) for path in files for line in path.read_text().splitlines())
    assert [f"{path.relative_to(SRC)}: {line}" for path, line in lines if decides.search(line)] == []


def _list_captures() -> list[type[Capture]]:
    """The captures that the package itself declares."""
    return [
        each for each in Capture.__subclasses__() if each.__module__.startswith(Channel.__module__.rpartition(".")[0])
    ]
