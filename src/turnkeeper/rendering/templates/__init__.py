"""Conversations as text: the checkpoint's chat template, its arguments, and what it does with each role."""

from turnkeeper.rendering.templates.chat_template_kwargs import check_change, merge_fixed, merge_request
from turnkeeper.rendering.templates.completeness import write_whole
from turnkeeper.rendering.templates.roles import RolePolicy
from turnkeeper.rendering.templates.template import ChatTemplate, FormatTime
from turnkeeper.rendering.templates.writer import EncoderWriter, RuleWriter, TemplateWriter, Writer

__all__ = [
    "ChatTemplate",
    "EncoderWriter",
    "FormatTime",
    "RolePolicy",
    "RuleWriter",
    "TemplateWriter",
    "Writer",
    "check_change",
    "merge_fixed",
    "merge_request",
    "write_whole",
]
