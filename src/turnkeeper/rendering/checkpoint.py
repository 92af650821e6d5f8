"""What rendering needs of a checkpoint folder, as a value.

Knows nothing of files: ``turnkeeper.config.checkpoint`` reads the folder and hands the contents over.
"""

from dataclasses import dataclass, field
from typing import Any

from turnkeeper.jsontypes import JsonObject, is_array, is_object

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The contents of a checkpoint folder that bear on tokens."""

    tokenizer_json: bytes
    """``tokenizer.json`` as it lies on disk."""
    tokenizer_config: JsonObject = field(default_factory=dict[str, Any])
    """``tokenizer_config.json``: special tokens, sometimes the template."""
    config: JsonObject = field(default_factory=dict[str, Any])
    """``config.json``: architecture, end-of-text ids."""
    template: str | None = None
    """The chat template's source; None for families that bring their own encoder."""

    @property
    def named_tokens(self) -> dict[str, str]:
        """The special tokens that templates know by name: ``{"bos_token": "<s>", ...}``."""
        named: dict[str, str] = {}
        for name in _NAMED_TOKENS:
            value: Any = self.tokenizer_config.get(name)
            text: Any = value.get("content") if is_object(value) else value
            if isinstance(text, str):
                named[name] = text
        return named

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that ``config.json`` says end a generation."""
        value: Any = self.config.get("eos_token_id")
        values: list[Any] = value if is_array(value) else [value]
        return tuple(item for item in values if isinstance(item, int))
