"""What any test may ask for, and which tests are fast."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

import thorough
from assets import MissingAssetError, get_asset, is_optional

TESTS = Path(__file__).parent
FAST = tuple(
    TESTS / name
    for name in ("channels", "core", "dialects", "http", "matching", "rendering/parsing", "samples", "service")
)
"""The folders of the fast tests: the pure packages, and sessions and front doors over an engine in memory. The rest of
rendering compares itself with every published template and tokenizer, and takes minutes."""

SLOW = tuple(
    TESTS / name for name in ("e2e", "demo", "clients", "traps", "cli", "store", "tiny", "bench", "properties")
)
"""The folders of files that take long: they come first, so that no worker waits for one of them at the end."""

# No deadline: a busy machine is no failure of the code.
settings.register_profile("untimed", deadline=None, max_examples=thorough.examples(50))
settings.load_profile("untimed")


@cache
def _is_fast(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in FAST)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no other test than the fast ones where only those are asked for."""
    if config.option.markexpr != "fast" or not collection_path.is_relative_to(TESTS):
        return None
    is_above = any(folder.is_relative_to(collection_path) for folder in FAST)
    return None if is_above or _is_fast(collection_path) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the fast folders, and put those of the slow ones first."""
    for item in items:
        if _is_fast(item.path):
            item.add_marker("fast")
    items.sort(key=lambda item: _rank(item.path))


@cache
def _rank(path: Path) -> int:
    return next((rank for rank, folder in enumerate(SLOW) if path.is_relative_to(folder)), len(SLOW))


def find_asset(name: str) -> Path:
    """The folder of an asset of assets.py; skips where it may be missing, fails elsewhere."""
    try:
        return get_asset(name)
    except MissingAssetError as error:
        if is_optional(name):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="session")
def qwen3_folder() -> Path:
    """A checkpoint folder with the real Qwen3 tokenizer and chat template (no weights, no config.json)."""
    return find_asset("qwen3")
