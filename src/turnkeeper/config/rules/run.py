"""Rules about a run: how the session server goes with what the trainer does."""

from turnkeeper.choices import PauseMode
from turnkeeper.config.rule import Entry, Severity, Situation, rule

JUDGED = frozenset(
    {
        "partial_rollout",
        "mask_offpolicy_in_partial_rollout",
        "fully_async",
        "colocate",
        "group_rm",
        "recompute_logprobs_via_prefill",
    }
)
"""A trainer's options that the rules here are about: `turnkeeper serve` takes them, so that it can refuse a run."""


@rule(when="a trainer's namespace turns a session server on", must="it has `pause_generation_mode`")
def pause_mode_given(at: Situation) -> str | None:
    """The pause mode decides which routing rows a turn asks for, and a wrong guess makes wrong samples."""
    if at.entry is Entry.SERVE or not at.has_session_server or at.is_given("pause_generation_mode"):
        return None
    return (
        "pause_generation_mode is missing from the namespace: set it to abort, retract or in_place "
        "(--pause-generation-mode), whichever way the trainer pauses its engines"
    )


@rule(when="a session server is on", must="`--partial-rollout` is off")
def partial_rollout(at: Situation) -> str | None:
    """An unfinished session lives in the session server and cannot be recycled through the data buffer."""
    if not at.has_session_server or not at.settings.trainer.partial_rollout:
        return None
    return (
        "--use-session-server does not go with --partial-rollout: a session that has not finished lives in the "
        "session server and cannot be recycled through the data buffer. Leave --partial-rollout out (it is for "
        "single-turn rollouts), or --use-session-server"
    )


@rule(when="the session server is v2", must="`--group-rm` is off")
def tree_group_rm(at: Situation) -> str | None:
    """A tree gives several samples for a session, and a group reward expects one."""
    if not _is_tree(at) or not at.settings.trainer.group_rm:
        return None
    return (
        "--use-session-server v2 does not go with --group-rm: a session gives several samples, and a group reward "
        "expects one of each. Leave --group-rm out, or use v1"
    )


@rule(when="the session server is v2", must="`--recompute-logprobs-via-prefill` is off")
def tree_recompute(at: Situation) -> str | None:
    """A tree gives several samples for a session, and the recomputation of logprobs expects one."""
    if not _is_tree(at) or not at.settings.trainer.recompute_logprobs_via_prefill:
        return None
    return (
        "--use-session-server v2 does not go with --recompute-logprobs-via-prefill: a session gives several samples, "
        "and the recomputation expects one. Leave --recompute-logprobs-via-prefill out, or use v1"
    )


@rule(
    when="a session server is on with `--use-rollout-routing-replay`",
    must="`--pause-generation-mode` is not retract",
    severity=Severity.WARNING,
)
def retract_replay(at: Situation) -> str | None:
    """In mode retract every reply carries the routing rows of its whole conversation, which can become very large."""
    is_replay = at.has_session_server and at.settings.routing.use_rollout_routing_replay
    if not is_replay or at.settings.engine.pause_generation_mode is not PauseMode.RETRACT:
        return None
    return (
        "--use-session-server with --use-rollout-routing-replay and --pause-generation-mode retract: every turn "
        "brings back the full routing rows of its whole conversation, so payloads can become very large, and SGLang "
        "has known faults in routing replay after an update in retract mode. in_place and abort ask only for the "
        "rows that a turn adds"
    )


@rule(
    when="a session server is on with `--use-rollout-sampling-mask`",
    must="its engines give masks for the samplers that agents use",
    severity=Severity.WARNING,
)
def masks_need_top_k(at: Situation) -> str | None:
    """Not every engine gives sampling masks for top-p or min-p alone."""
    if not at.has_session_server or not at.settings.routing.use_rollout_sampling_mask:
        return None
    return (
        "--use-rollout-sampling-mask: SGLang 0.5.16, 0.5.17 and from 0.5.19 on, and vLLM, give masks only for requests "
        "with a finite top_k and answer others with a 400, vLLM greedy ones too. Give rollouts a top_k beside top_p"
    )


@rule(
    when="a session server is on with `--colocate`",
    must="`--pause-generation-mode` is not in_place",
    severity=Severity.WARNING,
)
def colocated_in_place(at: Situation) -> str | None:
    """An engine gives its memory back only when it is idle, and mode in_place leaves requests on it."""
    is_colocated = at.has_session_server and at.settings.trainer.colocate
    if not is_colocated or at.settings.engine.pause_generation_mode is not PauseMode.IN_PLACE:
        return None
    return (
        "--colocate with --pause-generation-mode in_place: an engine gives its memory back only when it is idle, and "
        "in_place leaves requests on it. Use abort, or update only when no turn is in flight"
    )


@rule(when="`--fully-async` is on", must="`--pause-generation-mode` is not abort")
def fully_async_abort(at: Situation) -> str | None:
    """Pause mode abort would end every request at each update of a fully-async run."""
    is_abort = at.settings.engine.pause_generation_mode is PauseMode.ABORT
    return _find_fully_async(
        at,
        is_abort,
        "--pause-generation-mode abort",
        "generation never rests, so that each weight update would end every request and have it done again",
    )


@rule(when="`--fully-async` is on", must="`--partial-rollout` is off")
def fully_async_partial_rollout(at: Situation) -> str | None:
    """Requests of a fully-async run go on over weight updates, so there is nothing to recycle."""
    is_on = at.settings.trainer.partial_rollout
    return _find_fully_async(at, is_on, "--partial-rollout", "its requests go on over updates, and none is recycled")


@rule(when="`--fully-async` is on", must="`--colocate` is off")
def fully_async_colocate(at: Situation) -> str | None:
    """In a fully-async run engines generate while the trainer trains, so the two cannot share devices."""
    is_on = at.settings.trainer.colocate
    return _find_fully_async(at, is_on, "--colocate", "engines must generate while the trainer trains")


@rule(when="`--fully-async` is on", must="`--recompute-logprobs-via-prefill` is off")
def fully_async_recompute(at: Situation) -> str | None:
    """By the time of the prefill the engines of a fully-async run may have other weights than those that sampled."""
    return _find_fully_async(
        at,
        at.settings.trainer.recompute_logprobs_via_prefill,
        "--recompute-logprobs-via-prefill",
        "by the time of the prefill the engines may have other weights than those that sampled",
    )


@rule(
    when="on `turnkeeper serve`, `--mask-offpolicy-in-partial-rollout` is on",
    must="`--partial-rollout` is on",
)
def mask_without_partial(at: Situation) -> str | None:
    """Only recycled samples can be masked, and without partial rollouts there are none."""
    return _find_idle_mask(at) if at.entry is Entry.SERVE else None


@rule(
    when="in a trainer's arguments, `--mask-offpolicy-in-partial-rollout` is on",
    must="`--partial-rollout` is on",
    severity=Severity.WARNING,
)
def mask_without_partial_trainer(at: Situation) -> str | None:
    """Only recycled samples can be masked, and without partial rollouts there are none."""
    return _find_idle_mask(at) if at.entry is Entry.TRAINER else None


def _is_tree(at: Situation) -> bool:
    return at.settings.server.use_session_server == "v2"


def _find_fully_async(at: Situation, is_on: bool, other: str, why: str) -> str | None:
    if not at.settings.trainer.fully_async or not is_on:
        return None
    return f"--fully-async does not go with {other}: {why}. Leave one of the two out"


def _find_idle_mask(at: Situation) -> str | None:
    trainer = at.settings.trainer
    if not trainer.mask_offpolicy_in_partial_rollout or trainer.partial_rollout:
        return None
    return (
        "--mask-offpolicy-in-partial-rollout does nothing without --partial-rollout: there are no recycled samples "
        "to mask. Leave it out"
    )
