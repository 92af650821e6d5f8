"""Reading a checkpoint folder.

1. The template is the override, else chat_template.jinja, else the key of tokenizer_config.json, ``default`` first.
2. Whatever is missing or damaged is a ConfigError that names the option to mend.
"""

import json
from pathlib import Path

import pytest

from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def write_template(folder: Path, value: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))


def test_a_folder_is_read_whole(folder: Path) -> None:
    write_template(folder, "T")
    (folder / "config.json").write_text('{"eos_token_id": [3, 4]}')
    checkpoint = read_checkpoint(folder)
    assert (checkpoint.tokenizer_json, checkpoint.template, checkpoint.end_ids) == (b"{}", "T", (3, 4))


def test_a_template_file_comes_before_the_key(folder: Path) -> None:
    write_template(folder, "key")
    (folder / "chat_template.jinja").write_text("file")
    assert read_checkpoint(folder).template == "file"


def test_the_override_comes_before_both(folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").write_text("file")
    override = tmp_path / "mine.jinja"
    override.write_text("mine")
    assert read_checkpoint(folder, chat_template_path=override).template == "mine"


def test_of_several_named_templates_the_default_one_is_taken(folder: Path) -> None:
    write_template(folder, [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}])
    assert read_checkpoint(folder).template == "D"


def test_a_folder_without_template_is_read_all_the_same(folder: Path) -> None:
    assert read_checkpoint(folder).template is None


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_file_names_the_option(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="--hf-checkpoint"):
        read_checkpoint(folder)


def test_a_folder_that_is_none_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--hf-checkpoint"):
        read_checkpoint(tmp_path / "nowhere")


def test_a_folder_without_tokenizer_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--hf-checkpoint"):
        read_checkpoint(tmp_path)


def test_an_override_that_is_none_names_its_option(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--chat-template-path"):
        read_checkpoint(folder, chat_template_path=folder / "no.jinja")
