"""What a cause, a lost token or a long wait means to an operator, and which setting changes it: tables of sentences.

To add a cause or a reason: add a row; a test holds the tables to the enums, and their settings to the options.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from turnkeeper.core import Cause, DropReason, MaskReason
from turnkeeper.telemetry import TurnPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One row."""

    says: str
    """What happened, as the end of a sentence; of a cause with ``{near}`` for the turn that the request came nearest to
    extending."""
    heals: str = ""
    """What an operator, or the author of a harness, can do; empty where nothing is wrong."""
    goes_on: bool = False
    """Of a cause: whether the request goes on with one conversation, so that stored tokens could have been kept."""


CAUSES: Mapping[str, Advice] = {
    Cause.REPEATED: Advice(
        says="it asks the same",
        heals="if it is a retry, let the client say so, by an equal Idempotency-Key or by x-stainless-retry-count: "
        "within --replay-window it then gets the recorded reply; a second sample of one question is right as it is",
        goes_on=True,
    ),
    Cause.TOOLS_CHANGED: Advice(
        says="its tools or template arguments are not those with which the path of {near} was rendered",
        heals="--on-tools-change keep goes on with the stored tokens",
        goes_on=True,
    ),
    Cause.SUB_AGENT: Advice(says="a harness header names a sub-agent, which begins here"),
    Cause.SYSTEM_CHANGED: Advice(
        says="its system message is another one than that of {near}",
        heals="side requests (titles, topic checks) and sub-agents are right as roots; if it is the main conversation, "
        "keep what changes, such as a date, out of the system message",
    ),
    Cause.COMPACTED: Advice(
        says="the harness summarised its history: replies of this session stand behind another beginning than "
        "that of {near}",
        heals="a later compaction, in the harness's own settings, keeps paths longer",
    ),
    Cause.OTHER_START: Advice(
        says="its first message is another one than that of {near}",
        heals="side requests are right as roots; --train-models leaves those of other models out of training",
    ),
    Cause.REPLY_REWRITTEN: Advice(
        says="the reply of {near} came back changed",
        heals="no matcher takes the two for one: let the harness send replies back as it got them",
        goes_on=True,
    ),
    Cause.REWRITTEN_LATER: Advice(
        says="the reply of {near} came back in another form than it came back before",
        heals="--on-rewritten-calls always takes every form",
        goes_on=True,
    ),
    Cause.REPLY_LEFT_OUT: Advice(
        says="the reply of {near} did not come back: the harness threw it away and asked again",
        heals="--session-sample-picker-path keep_siblings also trains replies that were thrown away",
    ),
    Cause.INPUT_CHANGED: Advice(
        says="a message that {near} was told is another one now: the harness edited its history",
        heals="let the harness append to its history in place of editing it",
    ),
    Cause.CUT_SHORT: Advice(
        says="it ends before the messages of {near}",
        heals="let the harness append to its history in place of cutting it",
    ),
    Cause.MATCHER_REFUSED: Advice(
        says="the matcher refused a message of {near} in which no field differs",
        heals="look at the function that --session-message-matcher names",
        goes_on=True,
    ),
    Cause.COMMITTED_LATER: Advice(
        says="{near} was recorded after this request had begun",
        heals="let the harness wait for a reply before it goes on from it",
        goes_on=True,
    ),
}
"""The causes of a fork. `Cause.NONE` and `Cause.FIRST` are none."""

DROPPED: Mapping[str, Advice] = {
    DropReason.SUPERSEDED: Advice(
        says="a retry took the place of their turn",
        heals="let clients mark their retries (Idempotency-Key, x-stainless-retry-count), which then get the recorded "
        "reply within --replay-window",
    ),
    DropReason.UNDELIVERED: Advice(
        says="their reply never reached the agent in full", heals="look for clients and proxies that time out early"
    ),
    DropReason.ABORTED_PIECE: Advice(
        says="a weight update cut them off and the turn was generated again",
        heals="--on-abort resume keeps them, --pause-generation-mode in_place does not cut",
    ),
    DropReason.REFUSED_REPLY: Advice(says="the engine's reply failed its checks", heals="the server's log says which"),
    DropReason.CLIENT_GONE: Advice(
        says="the agent hung up and did not come back",
        heals="a longer --reconnect-grace, or a longer timeout of the agent's client",
    ),
    DropReason.STREAM_FAILED: Advice(
        says="the engine's stream broke, or the turn could not be recorded", heals="the server's log says why"
    ),
    DropReason.DELETED: Advice(
        says="the session was deleted while they were generated", heals="delete a session after its last turn"
    ),
    DropReason.JUNCTION_TRIM: Advice(says="the marker of the next turn took their place"),
    DropReason.OVER_MAX_SEQ_LEN: Advice(
        says="they stand behind the length limit of a sample", heals="a larger --max-seq-len, or that of the collect"
    ),
    DropReason.AFTER_TRUNCATION: Advice(
        says="they follow a turn that ended by length",
        heals="--sample-past-truncation keeps them; a larger max_tokens truncates less",
    ),
    DropReason.NOT_PICKED: Advice(
        says="the picker left their leaf out, or they stand behind the last turn of a model of --train-models",
        heals="--session-sample-picker-path keep_siblings picks every leaf that was delivered",
    ),
    DropReason.EVICTED: Advice(
        says="the session expired before it was collected", heals="a longer --session-ttl, or collect earlier"
    ),
}

MASKED: Mapping[str, Advice] = {
    MaskReason.SHARED_ELSEWHERE: Advice(says="they train in another sample that shares their turn"),
    MaskReason.BAD_ROWS: Advice(
        says="their routing rows, or earlier ones, are bad",
        heals="GET /health names the flag or router at fault; --on-bad-rows fail refuses such turns",
    ),
    MaskReason.ROWS_RECOMPUTED: Advice(
        says="the engine computed their routing rows again after it had sampled them",
        heals="--r3-recomputed keep trains them; a larger KV cache retracts less",
    ),
    MaskReason.NOT_REPLAYABLE: Advice(
        says="penalties, biases or a grammar changed their weights, which no sampling mask explains",
        heals="sample without them; --on-not-replayable keep trains such turns",
    ),
    MaskReason.OFFPOLICY: Advice(says="they were sampled by older weights, which the trainer leaves out"),
    MaskReason.HOOK: Advice(
        says="a postprocessor masked them, or their turn asked for a model that --train-models does not name"
    ),
    MaskReason.ACKNOWLEDGED: Advice(says="a trainer has them from an earlier collect, which `since` named"),
}

WAITS: Mapping[str, Advice] = {
    TurnPhase.RENDERING: Advice(
        says="its prompt is being rendered", heals="if that takes seconds, the server has too little CPU"
    ),
    TurnPhase.GATE: Advice(
        says="it waits at the gate: the engines are paused, or none of them serves",
        heals="POST /engine/continue opens a gate that a trainer left closed, GET /health says how the engines are; "
        "--gate-timeout ends the wait",
    ),
    TurnPhase.ENGINE: Advice(
        says="an engine has the call",
        heals="look at that engine's queue and log; --engine-timeout ends the wait",
    ),
    TurnPhase.HELD: Advice(
        says="its reply is complete and no client takes it", heals="--reconnect-grace is how long that may last"
    ),
    TurnPhase.RECORDING: Advice(says="it is being recorded"),
}
"""What a turn in flight waits for, by its phase."""
