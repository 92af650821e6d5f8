"""What any test may ask for."""

from pathlib import Path

import pytest

from assets import MissingAssetError, get_asset, is_optional


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
