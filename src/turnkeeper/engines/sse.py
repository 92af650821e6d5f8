"""Event streams of engines, as they come off the wire.

Pure: bytes in, the data of each event out. Engines put one JSON value in one ``data:`` line and end with ``[DONE]``;
lines may be megabytes long and may be cut anywhere by the network.
"""

DONE = b"[DONE]"


class DataLines:
    """Collects chunks and gives out the data of each whole line."""

    def __init__(self) -> None:
        """Begin before the first byte."""
        self._pending: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every line that this chunk completes; comments, blank lines and other fields are left out."""
        head, newline, rest = chunk.partition(b"\n")
        self._pending.append(head)
        if not newline:
            return []
        lines = [b"".join(self._pending), *rest.split(b"\n")]
        self._pending = [lines.pop()]
        return [data for line in lines if (data := _read_data(line))]

    def finish(self) -> list[bytes]:
        """The data of a last line without a newline."""
        data = _read_data(b"".join(self._pending))
        self._pending = []
        return [data] if data else []


def _read_data(line: bytes) -> bytes:
    return line[5:].strip() if line.startswith(b"data:") else b""
