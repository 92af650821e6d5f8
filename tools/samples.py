"""The reference page of samples, rendered from the wire's table of fields and from tables of the metadata's keys.

`tools.reference` writes the page to its file together with the others.
"""

import inspect
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

from turnkeeper.core import DropReason, MaskReason
from turnkeeper.samples import EmptyReason, SampleStatus
from turnkeeper.samples.wire import WireField, list_fields

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
        "one object a kept turn: `id` and `parent`, `response_id`, `start` and `end` of its completion, `text`: "
        "from where to where its text stands in `response`, its label, `agent`, `model`, `prompt_tokens`, "
        "`added_tokens` (those of the prompt that are not its parent's), `completion_tokens`, `cached_tokens`, "
        "sampler, marks, `sampled_call_ids`, why, and its `reward` where the collect gave it one; "
        "`noncanonical_from`: the place in its completion of the first id that the tokenizer "
        "[does not make of its text](../concepts/tokens.md#canonical-ids), where there is one; "
        "`rewritten`: in what its reply [came back changed](../concepts/matching.md#replies-that-come-back-rewritten)",
    ),
    ("versions", "", "`{version, start, end}`: the weights that sampled each token; `version` is null where unknown"),
    ("masked", "", "`{reason, start, end}`: sampled tokens that carry no loss"),
    ("label", "", "what the leaf is among its siblings: root, extension, branch, parallel or superseded"),
    ("delivered", "", "whether the leaf's reply reached the agent in full"),
    (
        "rolled_back",
        "where the agent did not go on from the leaf",
        "`{cause, by}`: why, and the turn that came in its place; `drop_retries` leaves such leaves out",
    ),
    ("rollout_leaves", "", "how many samples this collect gave for the session"),
    ("session_metadata", "where there is any", "`metadata` that the session was created with"),
    ("cut", "where tokens of the path are left out", "`{reason, turns, tokens}`: why, and what is kept"),
    ("past_truncation", "with `--sample-past-truncation`", "true where the sample goes on behind a truncated turn"),
)
"""Key, when it is there, what it holds; of the object under ``turnkeeper`` in a sample's metadata.

Positions are places in the response, half-open.
"""

CAUSES: tuple[tuple[str, str], ...] = (
    ("`undelivered`", "its reply never reached the agent in full"),
    ("`superseded`", "the same agent asked the same again after the reply was there"),
    (
        "`reply_left_out`, `reply_rewritten`, `input_changed`, ...",
        "the same agent asked something else of the leaf's parent after the reply was there; the cause is that of the "
        "later turn, see [labels](../concepts/sessions.md#labels)",
    ),
)
"""Why a leaf is rolled back, and when."""

REFERENCE_HOOKS: tuple[tuple[str, str, str], ...] = (
    (
        "",
        "`picker_hub.drop_retries`",
        "leaves out a leaf under a parent that has a later child, whatever either is; keeps every root",
    ),
    (
        "`drop_rolled_back_leaves`",
        "`picker_hub.drop_rolled_back_leaves`",
        "as that, and leaves out a root leaf where a later root has the same prompt ids",
    ),
    (
        "`drop_retries_same_prompt`",
        "`picker_hub.drop_retries_same_prompt`, `picker_hub.drop_same_prompt_retries`",
        "leaves out a leaf where a later child of its parent, or for a root a later root, has the same prompt ids",
    ),
    (
        "",
        "`postprocessor_hub.default_postprocess`",
        "as our `default_postprocess`; but where `metadata` of the collect and the server name the same key, the value "
        "of the collect wins, unless only the server may write the key",
    ),
    (
        "`non_positive_attempts`",
        "`postprocessor_hub.non_positive_attempts`",
        "as that, and says in `non_positive_advantage_spans` where the turns of "
        "`metadata.non_positive_advantage_response_ids` lie in the response",
    ),
)
"""Built-in name, import path below ``miles.rollout.session.v2``, rule."""

SESSION_METADATA: tuple[tuple[str, str, str], ...] = (
    ("metadata", "", "what the session was created with"),
    (
        "turns",
        "",
        "one object a turn of the session, as in samples, and `tokens`: how many of its sampled tokens are trainable, "
        "masked and dropped, by reason",
    ),
    ("accounting", "", "where every sampled token went; see below"),
    (
        "dropped_leaves",
        "where there are any",
        "one object for each turn without children that ends no sample: `{node_id, response_id, cause, by}`",
    ),
    ("rewards", "where the collect gave any", "`rewards` of the request"),
    (
        "acknowledged",
        "where a receipt was acknowledged",
        "`{receipt, turns}`: the acknowledged receipt that stands for the most turns, and their ids",
    ),
)
"""Key, when it is there, what it holds; of the object under ``turnkeeper`` in the session's metadata, without what only
``GET`` readers need."""

_HEAD = """\
# Samples

`POST /sessions/{id}/samples` answers with one [safetensors](https://github.com/huggingface/safetensors) payload. Its
body may be left out, and so may each of its keys:

| key | holds |
|---|---|
| `max_seq_len` | the most tokens of a sample |
| `metadata` | an object of your own; `metadata.reward` is the reward of every sample |
| `rewards` | rewards of single turns: `{"<response id>": number or object}` |
| `since` | an acknowledged [receipt](#receipts), whose turns come along without loss |

`turnkeeper.samples.decode_samples` reads the payload; so does anything that reads safetensors:

```python
tensors = safetensors.numpy.load(payload)
meta = json.loads(tensors["_samples_meta"].tobytes())
tensors["tokens.0"], tensors["loss_mask.0"], meta["samples"][0]["status"]
```

A sample has T tokens, of which the last R = `response_length` stand behind the first prompt. Every tensor of the table
is named `FIELD.i` for sample i. `_samples_meta` is UTF-8 JSON:
`{"samples": [...], "session_metadata": {...}, "empty_reason": null}`. A sample's entry there holds the other fields
and `nulls`, the names of its tensor fields that are null. Readers ignore keys that they do not know.

In Python:

* `collate(samples, pad_id=...)` of `turnkeeper.samples` makes padded arrays of samples: `input_ids`, `attention_mask`,
  `position_ids`, `loss_mask`, `rollout_log_probs`, each with a place for each token, `rewards` (NaN where there is
  none), and `rollout_routed_experts` (-1 where a token has no row). `.to_dict()` and `.to_torch(device)` give them by
  name.
* `Sample.to_dict()` is a sample as JSON has it, arrays as lists.
* `write_payload(path, payload)` and `read_payloads(folder)` of `turnkeeper.client` keep payloads as files and read them
  back one by one; a file that holds no whole payload is a `PayloadError` that names it.

Samples come in the order in which the picker gives them: with the built-in pickers the leaf with the most turns first,
and of leaves with equally many turns the one that was committed last. Under v1 there is one sample.
"""

_RECEIPTS = """\
The reply to a collect has the header `x-turnkeeper-receipt`: the digest of its body (XXH3, 128 bits, as 32 hexadecimal
digits), which `decode_samples` gives as `receipt` and `compute_receipt` of `turnkeeper.samples` computes from a
payload, wherever it was kept. Equal payloads have one receipt. It tells payloads apart, and shows one that was damaged;
it proves nothing about who made a payload.

* `POST /sessions/{id}/ack {"receipt"}` says that a trainer has the samples for good. The reply is
  `{"receipt", "turns"}`: the ids of the turns that the receipt stands for, which are all that the session had at that
  collect, in or out of samples. It may be sent again. What is no receipt of the session is a 404 `receipt_unknown`.
* A later collect gives the whole session, and names the acknowledged turns in
  `session_metadata.turnkeeper.acknowledged`.
* With `{"since": receipt}` the turns of that receipt have no loss, and what would have trained of them is masked
  `acknowledged`. Their tokens come along, since later turns stand on them; a sample may be without loss. The receipt
  must have been acknowledged, else it is a 400. What an earlier collect left out of its samples does not train later.
* With `--store` receipts are stored with their session, and known after a restart. Without it the session holds its
  newest 64, and the acknowledged one that stands for the most turns.

[A trainer that may die](../guides/training-loop.md#a-trainer-that-may-die) says in which order to use them.
"""

_REWARDS = """\
A reward is a finite number, or an object of named numbers from which the trainer picks one (`--reward-key`). Anything
else is a 400 that says what came.

* `metadata.reward` of the collect is the reward of every sample. All of `metadata` comes back with every sample, in its
  `metadata`, and with the session, in `session_metadata.agent`; keys that the server writes keep the server's value.
* `rewards` gives a reward to single turns. The id is that of the reply which the agent got (`id` of a chat completion,
  a message or a response), and stands with each turn under `turnkeeper.turns`, in samples and in the session's
  metadata. The reward is shown with the turn, in each sample that holds it. That of a sample's last turn, its leaf, is
  also the sample's own, in place of `metadata.reward`. An id that is not that of exactly one turn is a 400 that names
  the id.

```json
{"metadata": {"reward": 0.5}, "rewards": {"chatcmpl-12ab": 1.0, "chatcmpl-34cd": {"format": 0, "answer": 1}}}
```

All of this is equal under v1 and v2. The reference trainer knows no reward of v1 samples: there it stands in a key that
its reader ignores, and so does `metadata` (`agent`, beside `session_metadata`). `decode_samples` puts both in their
places.
"""

_ROLLBACKS = """\
An agent does not go on from every reply: it rejects one and asks again, or it loses one on the way and repeats the
request. A leaf is **rolled back**, and its samples say so in `rolled_back`, in these cases:
"""

_NOT_ROLLED_BACK = """\
The turn that comes in the leaf's place must itself have been delivered, or continued: where two requests are equal and
the second reply got lost, the first stays. Roots are compared only with roots that ask the same. These do not roll a
leaf back:

* a **side request**: a turn without children whose reply opens a later root or branch, as the summary of a compaction
  or a title does. It is recognised by runs of words, since harnesses cut and wrap such replies. Where the question
  before the reply comes along, the conversation was started anew with its history, and the turn is no side request;
* a turn of another agent, as harness headers name it;
* a turn of a model that is not trained (`--train-models`);
* a turn that was asked before the leaf's reply was there. Leaves labelled `parallel` are never rolled back.

Each turn without children that ends no sample is listed in `session_metadata.turnkeeper.dropped_leaves` with its cause
(`not_picked`, `over_max_seq_len` and `other_model` beside those above), counted in `turnkeeper_leaves_dropped` and
named in the log.
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

* `--session-sample-picker-path` selects and orders. `drop_retries` (default) leaves out the leaves that are rolled
  back. `keep_siblings` leaves out only what never reached the agent.
* `--session-sample-postprocessor-path` may mask tokens, set `reward`, `status` and `metadata`, on the samples it is
  given or on copies. `default_postprocess` trains a shared completion once, in the earliest committed picked leaf, and
  gives rewards and metadata as said above.

Samples come to hooks with the attribute names of the reference trainer's `Sample`, lists where it has lists. Tokens,
log probabilities and rows are checked afterwards and may not change; a mask may be lowered but not raised. A hook that
raises or breaks this is a 422 that names it. `accumulated_token_ids`, `leaf`, `tito_session_mismatch` and `turnkeeper`
stay as the server wrote them.

The hooks of radixark/miles are built in under its names, and its import paths mean its rules to the letter; miles is
not imported.
"""


def render_samples() -> str:
    """Render the page."""
    parts = [
        _HEAD,
        _table(("field", "where", "shape", "null means", "meaning"), [_field_row(field) for field in list_fields()]),
        "## Status\n",
        _members(SampleStatus),
        "## Where a sample ends\n",
        _CUT,
        _members(EmptyReason),
        "## Rewards\n",
        _REWARDS,
        "## Receipts\n",
        _RECEIPTS,
        "## Metadata\n",
        _keys(METADATA),
        "Under `turnkeeper`; positions are places in the response, half-open:\n",
        _keys(OWN_METADATA),
        "Under `session_metadata.turnkeeper`, among others:\n",
        _keys(SESSION_METADATA),
        "## Leaves that are left out\n",
        _ROLLBACKS,
        _table(("cause", "when"), CAUSES),
        _NOT_ROLLED_BACK,
        "## Where tokens went\n",
        "`session_metadata.turnkeeper.accounting` counts every token that an engine reported as sampled exactly once:"
        "\n`sampled = trainable + masked + dropped`.\n",
        "Masked: in a sample, without loss.\n",
        _members(MaskReason),
        "Dropped: in no sample.\n",
        _members(DropReason),
        _HOOKS,
        _table(("name", "import path in `miles.rollout.session.v2`", "rule"), REFERENCE_HOOKS),
    ]
    return "\n".join(parts)


def _field_row(field: WireField) -> tuple[str, ...]:
    where = f"tensor {field.dtype.name}" if field.dtype is not None else "JSON"
    shape = field.shape.replace("|", " or ")
    return f"`{field.name}`", where, shape, field.null or "never null", field.meaning


def _keys(rows: Sequence[tuple[str, str, str]]) -> str:
    return _table(("key", "present", "holds"), [(f"`{key}`", when or "always", what) for key, when, what in rows])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


def _members(kind: type[StrEnum]) -> str:
    """The members of an enum with the line that stands beneath each."""
    lines = [line.strip() for line in inspect.getsource(kind).splitlines()]
    said = {line.split(" = ")[1].strip('"'): below.strip('"') for line, below in pairwise(lines) if " = " in line}
    return "".join(f"- `{member}`: {said[member]}\n" for member in kind)
