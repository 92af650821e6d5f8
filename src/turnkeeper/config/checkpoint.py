"""Reads a checkpoint folder into the value that rendering works on. Knows nothing of what the contents mean."""

from pathlib import Path
from typing import Any

import orjson

from turnkeeper.errors import ConfigError
from turnkeeper.jsontypes import JsonObject, is_array, is_object
from turnkeeper.rendering import Checkpoint


def read_checkpoint(directory: Path, *, chat_template_path: Path | None = None) -> Checkpoint:
    """Read the contents of a local checkpoint folder.

    Args:
        directory: holds ``tokenizer.json``, and where it has them ``tokenizer_config.json``, ``config.json`` and
            ``chat_template.jinja``.
        chat_template_path: a template that takes the place of the folder's own.

    Raises:
        ConfigError: the folder or a file in it is missing or unreadable; the hint names the option.
    """
    if not directory.is_dir():
        raise ConfigError(
            f"{directory} is no folder",
            hint="--hf-checkpoint takes a local checkpoint folder; nothing is downloaded from a hub",
        )
    tokenizer_json = directory / "tokenizer.json"
    if not tokenizer_json.is_file():
        raise ConfigError(
            f"{directory} has no tokenizer.json",
            hint="--hf-checkpoint must name a folder with a fast tokenizer; a slow one can be saved as one",
        )
    tokenizer_config = _read_object(directory / "tokenizer_config.json")
    return Checkpoint(
        tokenizer_json=tokenizer_json.read_bytes(),
        tokenizer_config=tokenizer_config,
        config=_read_object(directory / "config.json"),
        template=_read_template(directory, tokenizer_config, chat_template_path),
    )


def _read_object(path: Path) -> JsonObject:
    if not path.is_file():
        return {}
    try:
        value: Any = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path} is no JSON: {error}", hint="--hf-checkpoint names a damaged folder") from error
    if not is_object(value):
        raise ConfigError(f"{path} holds no JSON object", hint="--hf-checkpoint names a damaged folder")
    return value


def _read_template(directory: Path, tokenizer_config: JsonObject, override: Path | None) -> str | None:
    """Read the template: the override, else ``chat_template.jinja``, else the key of the tokenizer's configuration; of
    several named ones, ``default``."""
    if override is not None:
        if not override.is_file():
            raise ConfigError(f"{override} is no file", hint="--chat-template-path takes a Jinja template file")
        return override.read_text(encoding="utf-8")
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    value: Any = tokenizer_config.get("chat_template")
    if is_array(value) and value:
        named: dict[str, Any] = {str(entry.get("name")): entry.get("template") for entry in value}
        value = named.get("default") or next(iter(named.values()))
    return value if isinstance(value, str) else None
