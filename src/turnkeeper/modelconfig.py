"""The facts that servers need of a checkpoint's ``config.json``.

Multimodal checkpoints describe their language model in an object ``text_config``, whose values come before those of the
outer object.
"""

from collections.abc import Iterator
from typing import Any

from turnkeeper.jsontypes import JsonObject, is_object


def iter_config_values(config: JsonObject, *keys: str) -> Iterator[Any]:
    """Yield the values of any of the keys that are not null, those in ``text_config`` first.

    Args:
        config: the parsed ``config.json``.
        keys: the names under which model types keep one fact, the likeliest first.
    """
    for source in (config.get("text_config"), config):
        if is_object(source):
            yield from (source[key] for key in keys if source.get(key) is not None)


def find_context_length(config: JsonObject) -> int | None:
    """Return the number of tokens for which the model has positions; None where the file does not say."""
    lengths = _iter_whole_numbers(config, "max_position_embeddings")
    return next((length for length in lengths if length > 0), None)


def find_embedding_rows(config: JsonObject) -> int:
    """Return the number of ids of the model's output layer, padding included; 0 where the file does not say."""
    return max(_iter_whole_numbers(config, "vocab_size"), default=0)


def _iter_whole_numbers(config: JsonObject, key: str) -> Iterator[int]:
    values = iter_config_values(config, key)
    return (value for value in values if isinstance(value, int) and not isinstance(value, bool))
