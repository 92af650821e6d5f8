"""Reading formats in which a reply is a row of blocks, each with a header that says what it is.

::

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>          harmony
    <|content_thinking|>...<|end_message|><|message_model|><|content_text|>...<|end_message|>                   Inkling

A header runs to the marker that begins the body. Reasoning and answer come out as they are read, a call when its block
has ended; a call that is cut or malformed comes out as text.
"""

from collections.abc import Collection, Iterable

from turnkeeper.rendering.blockformat import BlockFormat, BlockHeader, BlockKind
from turnkeeper.rendering.parsing import ParsedReply, ReplyBuffer, ReplyDelta
from turnkeeper.rendering.stream import Piece, PieceStream
from turnkeeper.rendering.tokenizer import Tokenizer


class BlockParser:
    """Reads one completion. It begins inside a header: the prompt wrote the start."""

    def __init__(self, tokenizer: Tokenizer, blocks: BlockFormat, *, stops: Collection[str]) -> None:
        """Begin a completion."""
        self._format = blocks
        self._stops = frozenset(stops)
        self._stream = PieceStream(tokenizer, [*blocks.starts, *blocks.bodies, *blocks.ends, *blocks.inner, *stops])
        self._out = ReplyBuffer()
        self._header = ""
        self._body: BlockHeader | None = None  # None: inside a header
        self._is_outside = False  # behind a block, before the next one starts: no place for text, but it is kept
        self._call: list[str] = []
        self._seen: set[BlockKind] = set()

    def feed(self, ids: Iterable[int]) -> ReplyDelta:
        """What these ids complete."""
        for piece in self._stream.feed(ids):
            self._read(piece)
        return self._out.take()

    def finish(self) -> ReplyDelta:
        """What is left: a call that nothing ended is text, and so is a header that was no header."""
        for piece in self._stream.finish():
            self._read(piece)
        if self._body is not None and self._body.kind is BlockKind.CALL:
            self._say(BlockKind.CONTENT, "".join(self._call))
        elif self._body is None and not self._seen and not self._header.startswith(self._format.inner):
            self._say(BlockKind.CONTENT, self._header)
        self._body = None
        self._header = ""
        return self._out.take()

    @property
    def reply(self) -> ParsedReply:
        """Everything so far."""
        return self._out.reply

    def _read(self, piece: Piece) -> None:
        if piece.is_marker and piece.text in (*self._format.ends, *self._stops):
            self._end()
        elif piece.is_marker and piece.text in self._format.starts:
            self._end()
            self._is_outside = False
            self._header = ""
        elif self._is_outside:
            self._say(BlockKind.CONTENT, piece.text)
        elif self._body is None:
            self._header += piece.text
            if piece.is_marker and piece.text in self._format.bodies:
                self._begin(self._format.read_header(self._header))
        elif self._body.kind is BlockKind.CALL:
            self._call.append(piece.text)
        else:
            self._say(self._body.kind, piece.text)

    def _begin(self, header: BlockHeader) -> None:
        self._body = header
        self._header = ""
        self._call = []
        if header.kind in self._seen and header.kind is not BlockKind.CALL:
            self._say(header.kind, "\n")  # two blocks of one kind are two paragraphs of one text
        if header.kind is BlockKind.REASONING:
            self._out.add_reasoning("")
        self._seen.add(header.kind)

    def _end(self) -> None:
        body, self._body = self._body, None
        self._is_outside = True
        if body is None or body.kind is not BlockKind.CALL:
            return
        text = "".join(self._call)
        call = self._format.read_call(body.name, text)
        if call is None:
            self._say(BlockKind.CONTENT, text)
        else:
            self._out.add_calls([call])

    def _say(self, kind: BlockKind, text: str) -> None:
        if kind is BlockKind.REASONING:
            self._out.add_reasoning(text)
        else:
            self._out.add_content(text)
