"""Samples payloads as files: written whole, and read back one behind the other.

::

    for stored in read_payloads("samples"):
        train(stored.batch.samples)
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnkeeper.errors import PayloadError

if TYPE_CHECKING:
    from pathlib import Path

    from turnkeeper.samples import SampleBatch

SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPayload:
    """A payload that was read from a file."""

    path: "Path"
    batch: "SampleBatch"


def write_payload(path: "str | Path", payload: bytes) -> None:
    """Write a payload to a file, so that a reader sees the whole file or none.

    Args:
        path: the file, which ends in ``.safetensors``; one that exists is replaced.
        payload: what `SessionHandle.samples_payload` returned.

    Raises:
        PayloadError: the file's name has another ending, under which `read_payloads` does not find it.
        OSError: the file cannot be written.
    """
    target = os.fspath(path)
    if not target.endswith(SUFFIX):
        raise PayloadError(f"the name of a payload's file ends in {SUFFIX}, got {target!r}")
    beside = f"{target}.{os.getpid()}.part"
    try:
        with open(beside, "wb") as file:
            file.write(payload)
        os.replace(beside, target)
    except BaseException:
        if os.path.exists(beside):
            os.remove(beside)
        raise


def read_payloads(folder: "str | Path") -> Iterator[StoredPayload]:
    """Read the payloads of a folder, in the order of their files' names, each when it is asked for.

    Files that come later are not seen; folders inside are not entered.

    Args:
        folder: its files that end in ``.safetensors`` are read.

    Raises:
        PayloadError: a file holds no whole payload; the message names it.
        OSError: the folder or a file cannot be read.
    """
    from pathlib import Path

    from turnkeeper.samples import decode_samples

    for name in sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX)):
        path = Path(folder, name)
        try:
            batch = decode_samples(path.read_bytes())
        except PayloadError as error:
            raise PayloadError(
                f"{path}: {error.message}",
                hint="was the file cut off while it was written? write_payload writes whole ones",
                path=str(path),
            ) from error
        yield StoredPayload(path=path, batch=batch)
