"""The OpenAI Responses API."""

from turnkeeper.dialects.responses.dialect import RESPONSES

__all__ = ["RESPONSES"]
