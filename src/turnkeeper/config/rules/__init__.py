"""Which options go together: the table, and the check of all its rows.

A row's function gives the message where its rule is broken, and None otherwise. It looks at nothing but the options,
the families and, for one rule, whether a file is there.
"""

from turnkeeper.config.load import Loaded
from turnkeeper.config.rule import Entry, Findings, Rule, Situation, apply_rules
from turnkeeper.config.rules import model, run, server

RULES: tuple[Rule, ...] = (
    server.version_known,
    server.trainer_option,
    server.engine_given,
    server.engine_address,
    server.trace_endpoint,
    server.engine_key,
    server.server_keys,
    server.forwarded_fields,
    server.passed_through,
    server.one_port,
    server.some_workers,
    server.ports_exist,
    server.timeouts_nest,
    model.checkpoint_given,
    model.family_known,
    model.family_needs_server,
    model.family_is_default,
    model.template_or_family,
    model.template_exists,
    model.template_arguments,
    model.tools_of_engine,
    model.matcher_known,
    model.picker_known,
    model.postprocessor_known,
    run.pause_mode_given,
    run.partial_rollout,
    run.tree_group_rm,
    run.tree_recompute,
    run.retract_replay,
    run.masks_need_top_k,
    run.colocated_in_place,
    run.fully_async_abort,
    run.fully_async_partial_rollout,
    run.fully_async_colocate,
    run.fully_async_recompute,
    run.mask_without_partial,
    run.mask_without_partial_trainer,
)
"""Every rule, in the order in which findings are reported."""


def check(loaded: Loaded, entry: Entry = Entry.SERVE) -> Findings:
    """Check every rule and report all that are broken.

    Args:
        loaded: the options.
        entry: who reads them: some rules are about one of the two only.
    """
    return apply_rules(RULES, Situation(loaded=loaded, entry=entry))


__all__ = ["RULES", "check"]
