"""Conversations as text: the checkpoint's chat template, its arguments, and what it does with each role."""

from turnkeeper.rendering.templates.chat_template_kwargs import (
    check_kwargs_change,
    merge_request_kwargs,
    merge_server_kwargs,
)
from turnkeeper.rendering.templates.completeness import render_complete
from turnkeeper.rendering.templates.roles import RolePolicy
from turnkeeper.rendering.templates.template import ChatTemplate, FormatTime
from turnkeeper.rendering.templates.text_renderer import (
    EncoderTextRenderer,
    HistoryTextRenderer,
    TemplateTextRenderer,
    TextRenderer,
)

__all__ = [
    "ChatTemplate",
    "EncoderTextRenderer",
    "FormatTime",
    "HistoryTextRenderer",
    "RolePolicy",
    "TemplateTextRenderer",
    "TextRenderer",
    "check_kwargs_change",
    "merge_request_kwargs",
    "merge_server_kwargs",
    "render_complete",
]
