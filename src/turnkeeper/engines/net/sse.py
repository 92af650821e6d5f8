"""Server-sent events of engines.

Pure: bytes in, the data of each event out. Engines write one JSON value in each ``data:`` line and end with ``[DONE]``.
A line may be megabytes long and may be cut anywhere by the network, so large payloads in it are decoded while they come
in, as those of a whole body are.
"""

from turnkeeper.engines.reply import ReplyBody

DONE = b"[DONE]"
_FIELD = b"data:"


class DataLines:
    """Splits chunks into lines, and returns the data of each complete line."""

    def __init__(self) -> None:
        """Expect the first chunk."""
        self._line = ReplyBody()

    def feed(self, chunk: bytes) -> list[ReplyBody]:
        """Return the data of the lines that this chunk completes; comments and other fields are left out."""
        *whole, rest = chunk.split(b"\n")
        found: list[ReplyBody] = []
        for part in whole:
            self._line.feed(part)
            found += self.finish()
        self._line.feed(rest)
        return found

    def finish(self) -> list[ReplyBody]:
        """Return the data of a last line that has no newline."""
        line, self._line = self._line, ReplyBody()
        if not line.text.startswith(_FIELD):
            return []
        line.text = line.text[len(_FIELD) :].strip()
        return [line] if line.text else []
