"""From the options of a server to those of its parts, each of which knows its own options alone."""

import time
from pathlib import Path

from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.http.backend import HttpOptions
from turnkeeper.matching import Matcher, ReplyRules, load_matcher
from turnkeeper.passthrough import parse_open_route
from turnkeeper.rendering import Checkpoint, Renderer, build_renderer
from turnkeeper.samples import CollectOptions, load_hooks
from turnkeeper.server.engines import list_masked_marks

CLIENTS_THINKING_TAGS = ("<think>", "</think>")
"""The tags in which clients put reasoning into the content where the family has no tags of its own, as gpt-oss."""


def build_http_options(config: ResolvedConfig) -> HttpOptions:
    """Gather the options that routes follow."""
    checkpoint = Path(config.model.hf_checkpoint or "policy").name
    return HttpOptions(
        max_body_bytes=config.limits.max_body_bytes,
        max_turn_body_bytes=config.limits.max_turn_body_bytes,
        stream_header_delay_s=config.timeouts.stream_header_delay_s,
        stream_heartbeat_s=config.timeouts.stream_heartbeat_s,
        forward_fields=config.engine.forward_field,
        on_image=config.history.on_image,
        pass_through=frozenset(map(parse_open_route, config.server.pass_through)),
        allow_unrecorded=config.server.allow_unrecorded,
        model_names=tuple(dict.fromkeys((checkpoint, *config.history.train_models))),
    )


def build_model_renderer(config: ResolvedConfig, checkpoint: Checkpoint) -> Renderer:
    """Build the renderer of a checkpoint under the family and the template arguments of the options.

    Raises:
        ConfigError: the family, the template or the tokenizer cannot work; the message names the option.
    """
    return build_renderer(
        checkpoint,
        config.model.tito_model,
        chat_template_kwargs=config.model.apply_chat_template_kwargs,
        format_time=time.strftime,
        render_tools=config.model.render_tools,
    )


def build_matcher(config: ResolvedConfig, renderer: Renderer) -> Matcher:
    """Load the matcher of messages, with the rules by which rewritten replies are told.

    Raises:
        ConfigError: the matcher cannot be imported.
    """
    tags = renderer.family.thinking_tags or CLIENTS_THINKING_TAGS
    rules = ReplyRules(thinking_tags=tags, on_rewritten_calls=config.history.on_rewritten_calls)
    return load_matcher(config.history.session_message_matcher, rules)


def build_collect_options(config: ResolvedConfig) -> CollectOptions:
    """Gather how samples are collected, with the hooks loaded.

    Raises:
        ConfigError: a hook cannot be imported.
    """
    history = config.history
    return CollectOptions(
        hooks=load_hooks(history.session_sample_picker_path, history.session_sample_postprocessor_path),
        masked_marks=list_masked_marks(config),
        past_truncation=history.sample_past_truncation,
        on_bad_rows=config.routing.on_bad_rows,
    )
