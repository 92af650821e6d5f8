"""The options of the trainer that a server reads, so that a run which cannot work is refused at start."""

from typing import Annotated

from pydantic import Field

from turnkeeper.config.schema.section import SettingsSection


class TrainerSection(SettingsSection):
    """Trainer: for the trainer alone; `turnkeeper serve` checks those that a rule is about and refuses the others."""

    partial_rollout: bool = False
    """Recycle unfinished samples into the data buffer.

    Leave it off with a session server: the two do not go together.
    """
    mask_offpolicy_in_partial_rollout: bool = False
    """Mask what an earlier policy generated in recycled samples.

    Give it here as well as to the trainer, so that a run that cannot work is refused at start.
    """
    fully_async: bool = False
    """Generate all the time, while the trainer trains.

    Give it here as well as to the trainer, so that a run that cannot work is refused at start.
    """
    colocate: bool = False
    """Trainer and engines take turns on the same devices.

    Give it here as well as to the trainer, so that a run that cannot work is refused at start.
    """
    group_rm: bool = False
    """Reward all samples of a group together.

    Give it here as well as to the trainer, so that a run that cannot work is refused at start.
    """
    recompute_logprobs_via_prefill: bool = False
    """Compute the rollout's logprobs again by prefill.

    Give it here as well as to the trainer, so that a run that cannot work is refused at start.
    """
    custom_generate_function_path: str | None = None
    """Import path of the trainer's generate function.

    Set it in the trainer alone.
    """
    custom_agent_function_path: str | None = None
    """Import path of the agent that the trainer runs.

    Set it in the trainer alone.
    """
    max_weight_staleness: Annotated[int, Field(ge=0)] | None = None
    """Weight versions by which a sample may be older than the policy.

    Set it in the trainer alone.
    """
