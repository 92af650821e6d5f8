"""The reference page of samples, rendered from the wire's table and the metadata's.

Knows no file: whoever renders all reference pages writes it.
"""

import inspect
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

from turnkeeper.core import DropReason, MaskReason
from turnkeeper.samples.sample import SampleStatus
from turnkeeper.samples.wire import FIELDS, EmptyReason, Field

METADATA: tuple[tuple[str, str, str], ...] = (
    (
        "lifecycle",
        "",
        "`{t0, t1, turn, req_ts, prev_t1}` of the one turn, or a list of them: Unix seconds of the engine call's start "
        "(null where the engine reports no `e2e_latency`), of the record, of the request, of the record before",
    ),
    ("messages", "with `--save-debug-trajectory-data`", "the path's messages, where the sample holds the whole path"),
    ("accumulated_token_ids", "tree", "the ids of the whole path, which the sample may be cut from"),
    ("leaf", "tree", "`{node_id, parent, path_node_ids, response_id}`: the turn that ends the path, in commit order"),
    ("tito_session_mismatch", "tree, where computed", "where the ids and a canonical rendering of the path differ"),
    ("turnkeeper", "", "what the next table lists"),
)
"""Key, when it is there, what it holds; of a sample's metadata."""

OWN_METADATA: tuple[tuple[str, str, str], ...] = (
    (
        "turns",
        "",
        "one object a kept turn: `id`, `start` and `end` of its completion, its label, `agent`, sampler, marks, "
        "`sampled_call_ids`, why",
    ),
    ("versions", "", "`{version, start, end}`: the weights that sampled each token; `version` is null where unknown"),
    ("masked", "", "`{reason, start, end}`: sampled tokens that carry no loss"),
    ("label", "", "what the leaf is among its siblings: root, extension, branch, parallel or superseded"),
    ("delivered", "", "whether the leaf's reply reached the agent in full"),
    ("cut", "where tokens of the path are left out", "`{reason, turns, tokens}`: why, and what is kept"),
    ("past_truncation", "with `--sample-past-truncation`", "true where the sample goes on behind a truncated turn"),
)
"""The same, of the object under ``turnkeeper``. Positions are places in the response, half-open."""

_HEAD = """\
# Samples

`POST /sessions/{id}/samples` with `{"max_seq_len": N, "metadata": {...}}` (both may be left out) answers with one
[safetensors](https://github.com/huggingface/safetensors) payload. `turnkeeper.samples.decode_samples` reads it; so does
anything that reads safetensors:

```python
tensors = safetensors.numpy.load(payload)
meta = json.loads(tensors["_samples_meta"].tobytes())
tensors["tokens.0"], tensors["loss_mask.0"], meta["samples"][0]["status"]
```

A sample has T tokens, of which the last R = `response_length` stand behind the first prompt. Every tensor of the table
is named `FIELD.i` for sample i. `_samples_meta` is UTF-8 JSON:
`{"samples": [...], "session_metadata": {...}, "empty_reason": null}`. A sample's entry there holds the other fields
and `nulls`, the names of its tensor fields that are null. Readers ignore keys that they do not know.
"""

_CUT = """\
A sample ends at the first turn that ended by length (`--sample-past-truncation` goes on), and at `max_seq_len`:
inside a completion there, inside a prompt at the end of the completion before. A longer limit only ever extends the
result of a shorter one. When nothing is left, the reply has no sample and says why:
"""

_HOOKS = """\
## Hooks

Under `--use-session-server v2` two functions decide which leaves become samples and finish them. Both are given as a
built-in name or an import path, and called as `fn(leaf_samples, session_metadata) -> list`.

* `--session-sample-picker-path` selects and orders. `drop_retries` (default) leaves out leaves with a later sibling,
  unless they were asked in parallel, leaves whose reply never reached the agent, and root leaves that a later root with
  equal messages superseded. `keep_siblings` leaves out only what never reached the agent.
* `--session-sample-postprocessor-path` may mask tokens, set `reward`, `status` and `metadata`, on the samples it is
  given or on copies. `default_postprocess` trains a shared completion once, in the earliest committed picked leaf, and
  makes `metadata.reward` of the request the reward of every sample. That reward is a finite number, an object or null;
  anything else is a 400, also under v1, where samples carry no reward.

Samples come to hooks with the attribute names of the reference trainer's `Sample`, lists where it has lists. Tokens,
log probabilities and rows are checked afterwards and may not change; a mask may be lowered but not raised. A hook that
raises or breaks this is a 422 that names it. `accumulated_token_ids`, `leaf`, `tito_session_mismatch` and `turnkeeper`
stay as the server wrote them.
"""


def render_samples() -> str:
    """Render the page."""
    parts = [
        _HEAD,
        _table(("field", "where", "shape", "null means", "meaning"), [_field_row(field) for field in FIELDS]),
        "## Status\n",
        _members(SampleStatus),
        "## Where a sample ends\n",
        _CUT,
        _members(EmptyReason),
        "## Metadata\n",
        _table(("key", "present", "holds"), [(f"`{key}`", when or "always", what) for key, when, what in METADATA]),
        "Under `turnkeeper`; positions are places in the response, half-open:\n",
        _table(("key", "present", "holds"), [(f"`{key}`", when or "always", what) for key, when, what in OWN_METADATA]),
        "## Where tokens went\n",
        "`session_metadata.turnkeeper.accounting` counts every token that an engine reported as sampled exactly once:"
        "\n`sampled = trainable + masked + dropped`.\n",
        "Masked: in a sample, without loss.\n",
        _members(MaskReason),
        "Dropped: in no sample.\n",
        _members(DropReason),
        _HOOKS,
    ]
    return "\n".join(parts)


def _field_row(field: Field) -> tuple[str, ...]:
    where = f"tensor {field.dtype.name}" if field.dtype is not None else "JSON"
    name = f"`{field.name}`" + (" (v2)" if field.is_tree_only else "")
    shape = field.shape.replace("|", " or ")
    return name, where, shape, field.null or "never null", field.meaning


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


def _members(kind: type[StrEnum]) -> str:
    """The members of an enum with the line that stands beneath each."""
    lines = [line.strip() for line in inspect.getsource(kind).splitlines()]
    said = {line.split(" = ")[1].strip('"'): below.strip('"') for line, below in pairwise(lines) if " = " in line}
    return "".join(f"- `{member}`: {said[member]}\n" for member in kind)
