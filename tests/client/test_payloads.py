"""Payloads as files.

1. What is written is read back, in the order of names, each file when it is asked for.
2. A reader sees a whole file or none, whatever happens to the writer.
3. A file that is torn, or something else, is named.
"""

from pathlib import Path

import numpy as np
import pytest

from turnkeeper.client import read_payloads, write_payload
from turnkeeper.errors import PayloadError
from turnkeeper.samples import Sample, SampleStatus, encode_samples


def make_payload(token: int) -> bytes:
    sample = Sample(
        tokens=np.array([1, token], np.int64),
        loss_mask=np.ones(1, np.uint8),
        rollout_log_probs=np.array([-0.5]),
        response="x",
        status=SampleStatus.COMPLETED,
        reward=0.5,
    )
    return encode_samples([sample], {"token": token}).to_bytes()


def test_what_is_written_is_read_back_in_the_order_of_names(tmp_path: Path) -> None:
    for token, name in ((3, "b"), (2, "a"), (4, "c")):
        write_payload(tmp_path / f"{name}.safetensors", make_payload(token))
    (tmp_path / "notes.txt").write_text("no payload")
    (tmp_path / "inner").mkdir()
    read = list(read_payloads(tmp_path))
    assert [stored.path for stored in read] == [tmp_path / f"{name}.safetensors" for name in "abc"]
    assert [stored.batch.samples[0].tokens.tolist() for stored in read] == [[1, 2], [1, 3], [1, 4]]
    assert [stored.batch.session_metadata["token"] for stored in read_payloads(str(tmp_path))] == [2, 3, 4]


def test_a_file_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    write_payload(tmp_path / "a.safetensors", make_payload(2))
    write_payload(tmp_path / "b.safetensors", make_payload(3))
    payloads = read_payloads(tmp_path)
    assert next(payloads).batch.session_metadata["token"] == 2
    write_payload(tmp_path / "b.safetensors", make_payload(7))
    assert next(payloads).batch.session_metadata["token"] == 7


def test_a_writer_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_payload(path, make_payload(2))
    with pytest.raises(TypeError):
        write_payload(path, "no bytes")  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]
    assert path.read_bytes() == make_payload(2)
    with pytest.raises(PayloadError, match=r"ends in \.safetensors"):
        write_payload(tmp_path / "a.bin", make_payload(2))


TORN = {
    "torn": make_payload(2)[:-1],
    "torn in the header": make_payload(2)[:20],
    "empty": b"",
    "something else": b"<html>",
    "of a model": encode_samples([], {}).to_bytes().replace(b"_samples_meta", b"_weights_meta"),
}


@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
def test_a_file_that_holds_no_payload_is_named(tmp_path: Path, content: bytes) -> None:
    write_payload(tmp_path / "a.safetensors", make_payload(2))
    torn = tmp_path / "b.safetensors"
    torn.write_bytes(content)
    payloads = read_payloads(tmp_path)
    next(payloads)
    with pytest.raises(PayloadError, match="cut off while it was written") as caught:
        next(payloads)
    assert caught.value.message.startswith(f"{torn}: ")


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        next(read_payloads(tmp_path / "nowhere"))
