"""The parser of replies that are sequences of blocks, each with a header that tells its kind.

::

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>          harmony
    <|content_thinking|>...<|end_message|><|message_model|><|content_text|>...<|end_message|>                   Inkling

A header ends with the marker that begins the content. Reasoning and answer are given out as they come. From the first
call on, the completion is parsed at its end: a marker may be part of a string in the JSON of a call. A call that is cut
short or malformed becomes text.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

from turnkeeper.rendering.family import BlockFormat, BlockHeader, BlockKind
from turnkeeper.rendering.parsing.reply import ParsedReply, ReplyBuffer, ReplyDelta
from turnkeeper.rendering.tokenization import Segment, SegmentStream, Tokenizer
from turnkeeper.rendering.tool_calls import skip_space


class BlockParser:
    """Parses one completion, which begins inside a header, because the prompt ends with the marker that starts it."""

    def __init__(self, tokenizer: Tokenizer, blocks: BlockFormat, *, stops: Collection[str]) -> None:
        """Begin a reply."""
        self._format = blocks
        self._stops = frozenset(stops)
        self._stream = SegmentStream(tokenizer, [*blocks.starts, *blocks.bodies, *blocks.ends, *blocks.inner, *stops])
        self._out = ReplyBuffer()
        self._header = ""
        self._body: BlockHeader | None = None  # None: inside a header
        self._is_outside = False  # behind a block, before the next one starts: no place for text, but it is kept
        self._tail: list[Segment] = []  # the completion from the first call's body on
        self._seen: set[BlockKind] = set()

    def feed(self, ids: Iterable[int]) -> ReplyDelta:
        """Return what these ids add to the reply."""
        for segment in self._stream.feed(ids):
            self._take(segment)
        return self._out.take()

    def finish(self) -> ReplyDelta:
        """Return what was held back, a call that did not end and a text that turned out to be no header included."""
        for segment in self._stream.finish():
            self._take(segment)
        self._parse_tail(self._tail)
        if self._body is None and not self._seen and not self._header.startswith(self._format.inner):
            self._say(BlockKind.CONTENT, self._header)
        self._body = None
        self._header = ""
        return self._out.take()

    @property
    def reply(self) -> ParsedReply:
        """The reply so far; after ``finish`` the whole reply."""
        return self._out.reply

    @property
    def _is_in_call(self) -> bool:
        return self._body is not None and self._body.kind is BlockKind.CALL

    def _take(self, segment: Segment) -> None:
        if self._is_in_call:
            self._tail.append(segment)
        else:
            self._parse(segment)

    def _ends_block(self, segment: Segment) -> bool:
        return segment.is_marker and segment.text in (*self._format.ends, *self._format.starts, *self._stops)

    def _parse_tail(self, segments: Sequence[Segment]) -> None:
        """Parse everything from the arguments of the first call on."""
        starts = [0, *accumulate(len(segment.text) for segment in segments)]
        text = "".join(segment.text for segment in segments)
        ends = {starts[index]: index for index, segment in enumerate(segments) if self._ends_block(segment)}
        index = 0
        while index < len(segments):
            if self._body is None or not self._is_in_call:
                self._parse(segments[index])
                index += 1
                continue
            call = self._format.parse_call(self._body.name, text, starts[index])
            end = ends.get(skip_space(text, call.end)) if call else None
            if call is not None and end is not None:
                self._out.add_calls(call.calls)
            else:
                end = next((other for other in range(index, len(segments)) if starts[other] in ends), len(segments))
                self._say(BlockKind.CONTENT, text[starts[index] : starts[end]])
            self._body = None
            self._is_outside = True
            index = end

    def _parse(self, segment: Segment) -> None:
        if self._ends_block(segment):
            self._body = None
            self._is_outside = segment.text not in self._format.starts
            if not self._is_outside:
                self._header = ""
        elif self._is_outside:
            self._say(BlockKind.CONTENT, segment.text)
        elif self._body is None:
            self._header += segment.text
            if segment.is_marker and segment.text in self._format.bodies:
                self._begin(self._format.parse_header(self._header))
        else:
            self._say(self._body.kind, segment.text)

    def _begin(self, header: BlockHeader) -> None:
        self._body = header
        self._header = ""
        if header.kind in self._seen and header.kind is not BlockKind.CALL:
            self._say(header.kind, "\n")  # two blocks of one kind are two paragraphs of one text
        if header.kind is BlockKind.REASONING:
            self._out.add_reasoning("")
        self._seen.add(header.kind)

    def _say(self, kind: BlockKind, text: str) -> None:
        if kind is BlockKind.REASONING:
            self._out.add_reasoning(text)
        else:
            self._out.add_content(text)
