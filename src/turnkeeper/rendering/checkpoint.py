"""The contents of a checkpoint folder that rendering needs, as a value.

Knows nothing of files: ``turnkeeper.config.checkpoint`` reads the folder and hands the contents over.
"""

from dataclasses import dataclass, field
from typing import Any

from turnkeeper.jsontypes import JsonObject, is_array, is_object

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The files of a checkpoint folder that decide about tokens."""

    tokenizer_json: bytes
    """The bytes of ``tokenizer.json``."""
    tokenizer_config: JsonObject = field(default_factory=dict[str, Any])
    """The parsed ``tokenizer_config.json``, which names the special tokens and may hold the chat template."""
    config: JsonObject = field(default_factory=dict[str, Any])
    """The parsed ``config.json``, which names the architecture and the ids that end a generation."""
    template: str | None = None
    """The source of the chat template; None where the family has a message encoder and needs no template."""

    @property
    def named_tokens(self) -> dict[str, str]:
        """The special tokens that chat templates refer to by name, such as ``{"bos_token": "<s>"}``."""
        named: dict[str, str] = {}
        for name in _NAMED_TOKENS:
            value: Any = self.tokenizer_config.get(name)
            text: Any = value.get("content") if is_object(value) else value
            if isinstance(text, str):
                named[name] = text
        return named

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The token ids that end a generation according to ``eos_token_id`` of ``config.json``."""
        value: Any = self.config.get("eos_token_id")
        values: list[Any] = value if is_array(value) else [value]
        return tuple(item for item in values if isinstance(item, int))
