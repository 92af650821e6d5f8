"""The Anthropic Messages API."""

from turnkeeper.dialects.messages.dialect import MESSAGES

__all__ = ["MESSAGES"]
