"""The options of sessions: what a replayed conversation continues, and what becomes of it in samples."""

from typing import Annotated

from pydantic import Field

from turnkeeper.choices import (
    OnBadRows,
    OnImage,
    OnNotReplayable,
    OnRecomputed,
    OnRewrittenCalls,
    OnToolsChange,
    OnTruncated,
    RowsKept,
)
from turnkeeper.config.schema.section import Given, SettingsSection, Words


class HistorySection(SettingsSection):
    """History: what a replayed conversation continues, and what it becomes."""

    session_message_matcher: str = "tolerant"
    """When a replayed message is the stored one: strict, loose_tool_call, tolerant, role_content_only or a path.

    Change it for a harness that rewrites history in ways that you know to be harmless, or to allow none.
    """
    on_rewritten_calls: OnRewrittenCalls = OnRewrittenCalls.FIRST
    """A stored reply that comes back under its own call ids with other arguments, under the matcher tolerant.

    Change it where a harness repairs the arguments of tool calls and the repaired form is to be trained.
    """
    session_max_rollback: Annotated[int, Field(ge=0)] = 1
    """Turns that a request may step back behind under v1; more is refused.

    Raise it for agents under v1 that take back more than their last turn.
    """
    on_tools_change: OnToolsChange | None = None
    """A request that continues a path with other tools. Unset: `keep` under v1, `fork` under v2.

    Take `refuse` to find out whether an agent changes its tools, `fork` where it means to start anew.
    """
    on_truncated: OnTruncated | None = None
    """A request that extends a turn which ended by length; a session's own wins. Unset: v1 `bridge`, v2 `close`.

    Take `close` where nothing may follow a reply that was cut off, `bridge` where agents go on.
    """
    on_image: OnImage = OnImage.REFUSE
    """An image that an agent sends, be it a tool's result or the user's; a session holds text only.

    Change it for agents that send screenshots to a model that reads text only.
    """
    sample_past_truncation: bool = False
    """Continue samples behind a truncated turn, and flag them; without this option they end there.

    Turn it on where turns that follow a cut-off reply are wanted for training.
    """
    train_models: Words = ()
    """Models that are trained, as agents name them; turns of other models carry no loss. Unset: all.

    Set it where one agent calls several models by name and only some of them are trained.
    """
    session_sample_picker_path: str = "drop_retries"
    """Which leaves become samples under v2: drop_retries, keep_siblings, another built-in name or an import path.

    Change it to train leaves that the agent rejected, or to choose leaves by a rule of your own.
    """
    session_sample_postprocessor_path: str = "default_postprocess"
    """What happens to picked samples under v2: default_postprocess, another built-in name or an import path.

    Change it to set rewards, masks or metadata by a rule of your own.
    """
    save_debug_trajectory_data: Given = False
    """Put each sample's messages into its metadata.

    Turn it on to read conversations beside their tokens; samples become much larger.
    """


class RoutingSection(SettingsSection):
    """Routing replay: what engines report of each token, its experts and the ids that it was drawn from."""

    use_rollout_routing_replay: bool = False
    """Ask the engine for routed experts, and put them into samples.

    Turn it on to train a mixture of experts through the experts that the rollout used.
    """
    use_rollout_indexer_replay: bool = False
    """Ask the engine for the sparse-attention indexer's choices, and put them into samples.

    Turn it on to train a model with sparse attention through the rollout's choices.
    """
    use_rollout_sampling_mask: bool = False
    """Ask the engine for the ids that each token was drawn from, and put these masks into samples.

    Turn it on to train on samples that were drawn with top-p, top-k or min-p.
    """
    on_not_replayable: OnNotReplayable = OnNotReplayable.KEEP
    """With masks, a turn whose penalties, biases or grammar change weights in a way that no mask explains.

    Take `mask` to keep such turns out of the loss, `refuse` where agents are not to send them.
    """
    r3_rows: RowsKept = RowsKept.DECODE
    """Rows kept where a later payload differs: `decode`, those that sampled the token, or `latest`.

    Take `latest` for a trainer whose results are to be compared with those over the session server of miles.
    """
    r3_recomputed: OnRecomputed = OnRecomputed.KEEP
    """A turn whose rows the engine computed again after a retraction.

    Take `mask` where tokens must not be trained whose rows were computed by other weights than sampled them.
    """
    on_bad_rows: OnBadRows = OnBadRows.FAIL
    """A reply whose rows cannot be true.

    Take `mask` to keep a run alive while a fault of the engine is looked for.
    """
