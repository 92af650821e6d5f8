"""Real checkpoints for the tests of rendering."""

from pathlib import Path

import pytest

from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.rendering import Checkpoint, Renderer, build_renderer


@pytest.fixture(scope="session")
def qwen3_checkpoint(qwen3_folder: Path) -> Checkpoint:
    """The real Qwen3 tokenizer and template."""
    return read_checkpoint(qwen3_folder)


@pytest.fixture(scope="session")
def qwen3(qwen3_checkpoint: Checkpoint) -> Renderer:
    return build_renderer(qwen3_checkpoint, "qwen3")


@pytest.fixture(scope="session")
def default(qwen3_checkpoint: Checkpoint) -> Renderer:
    """Qwen3's checkpoint under the family that knows nothing."""
    return build_renderer(qwen3_checkpoint, "default")
