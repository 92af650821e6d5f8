"""Event streams of engines, as they come off the wire.

Pure: bytes in, the data of each event out. Engines put one JSON value in one ``data:`` line and end with ``[DONE]``;
lines may be megabytes long and may be cut anywhere by the network, so a line is read as a reply's body is: large
payloads are decoded while they come in.
"""

from turnkeeper.engines.reply import ReplyBody

DONE = b"[DONE]"
_FIELD = b"data:"


class DataLines:
    """Collects chunks and gives out the data of each whole line."""

    def __init__(self) -> None:
        """Begin before the first byte."""
        self._line = ReplyBody()

    def feed(self, chunk: bytes) -> list[ReplyBody]:
        """The data of every line that this chunk completes; comments, blank lines and other fields are left out."""
        *whole, rest = chunk.split(b"\n")
        found: list[ReplyBody] = []
        for part in whole:
            self._line.feed(part)
            found += self.finish()
        self._line.feed(rest)
        return found

    def finish(self) -> list[ReplyBody]:
        """The data of a last line without a newline."""
        line, self._line = self._line, ReplyBody()
        if not line.text.startswith(_FIELD):
            return []
        line.text = line.text[len(_FIELD) :].strip()
        return [line] if line.text else []
