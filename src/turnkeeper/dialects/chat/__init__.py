"""OpenAI chat completions."""

from turnkeeper.dialects.chat.dialect import CHAT

__all__ = ["CHAT"]
