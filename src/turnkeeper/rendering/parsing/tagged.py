"""The parser of replies that are text with tags around reasoning and tool calls.

The result does not depend on how the ids are cut into chunks. No text is lost: whatever is neither white space of the
format nor a well-formed call becomes reasoning or content, an unfinished call and a call inside thinking too.

From the first marker of a tool call on, the answer is parsed at the end of the completion: a marker may be part of an
argument, and only the text behind it shows that.

White space of the format is exactly what the family renders around reasoning and calls, once; more of it is text.
"""

from collections.abc import Collection, Iterable, Sequence

from turnkeeper.rendering.family import Family, Thinking
from turnkeeper.rendering.parsing.reply import ParsedReply, ReplyBuffer, ReplyDelta
from turnkeeper.rendering.tokenization import Segment, SegmentStream, Tokenizer, count_overlap
from turnkeeper.rendering.tool_calls import MarkedText, Marker, ToolFormat, ToolSchemas


class TaggedParser:
    """Parses replies of the form thinking, answer, sections of tool calls."""

    def __init__(
        self, tokenizer: Tokenizer, family: Family, *, stops: Collection[str], schemas: ToolSchemas, is_thinking: bool
    ) -> None:
        """Begin a reply.

        Args:
            tokenizer: the tokenizer that decodes the ids.
            family: the family, which names the markers.
            stops: the texts of the stop tokens; a stop token at the end of the completion is not part of the text.
            schemas: the schemas of the tools' parameters.
            is_thinking: True when the prompt opened thinking.
        """
        self._thinking = family.thinking or _NO_THINKING
        self._tools = family.tools
        self._schemas = schemas
        self._stops = frozenset(stops)
        tools = (self._tools.opening, self._tools.closing) if self._tools else ()
        thinking = (self._thinking.opening, self._thinking.closing)
        self._stream = SegmentStream(tokenizer, [*thinking, *tools, *stops])
        self._out = ReplyBuffer()
        self._stop = ""  # a stop marker that is text after all, should anything follow it
        self._tail: list[Segment] = []  # the answer from the first marker of a section on
        self._skip = ""  # layout that may still be skipped at the present place
        self._held = ""  # text that is layout, should the right marker follow
        self._is_between = False  # whether the last thing was a whole section
        self._is_thinking = is_thinking
        self._is_begun = is_thinking
        if is_thinking:
            self._out.add_reasoning("")

    def feed(self, ids: Iterable[int]) -> ReplyDelta:
        """Return what these ids add to the reply."""
        for segment in self._stream.feed(ids):
            self._parse(segment)
        return self._out.take()

    def finish(self) -> ReplyDelta:
        """Return what was held back. Call it once, at the end of the completion."""
        for segment in self._stream.finish():
            self._parse(segment)
        self._parse_tail()
        if self._is_between and not self._held.strip("\n"):
            self._held = ""
        self._emit(self._held)
        return self._out.take()

    @property
    def reply(self) -> ParsedReply:
        """The reply so far; after ``finish`` the whole reply."""
        return self._out.reply

    def _parse(self, segment: Segment) -> None:
        if self._stop:
            stop, self._stop = self._stop, ""
            self._parse_text(stop)
        if not segment.is_marker:
            self._parse_text(segment.text)
        elif segment.text in self._stops:
            self._stop = segment.text
        elif self._tail:
            self._tail.append(segment)
        elif self._is_thinking:
            self._parse_in_thinking(segment.text)
        else:
            self._parse_in_answer(segment.text)

    def _parse_text(self, text: str) -> None:
        if self._tail:
            self._tail.append(Segment(text=text))
        else:
            self._say(text)

    def _parse_in_thinking(self, marker: str) -> None:
        if marker != self._thinking.closing:
            self._say(marker)
            return
        self._emit(self._held.removesuffix(self._thinking.before_closing))
        self._held = ""
        self._is_thinking = False
        self._skip = self._thinking.after_closing

    def _parse_in_answer(self, marker: str) -> None:
        if marker == self._thinking.opening and not self._is_begun and not self._held.strip():
            self._held = ""
            self._is_begun = self._is_thinking = True
            self._skip = self._thinking.after_opening
            self._out.add_reasoning("")
        elif self._tools is not None and marker == self._tools.opening:
            self._tail = [Segment(text=marker, is_marker=True)]
        else:
            self._say(marker)

    def _parse_tail(self) -> None:
        if self._tools is None or not self._tail:
            return
        for part in self._tools.parse(_mark(self._tail, self._tools), self._schemas):
            if isinstance(part, str):
                self._say(part)
                continue
            layout = self._tools.between if self._is_between else self._tools.before
            self._emit(self._held.removesuffix(layout))
            self._held = ""
            self._skip = ""
            self._is_begun = self._is_between = True
            self._out.add_calls(part)
        self._tail = []

    def _say(self, text: str) -> None:
        """Add text at the present place: skip white space of the format before it, and hold back the end that may be
        white space of the format."""
        while self._skip and text:
            if text[0] != self._skip[0]:
                self._skip = ""
            else:
                self._skip, text = self._skip[1:], text[1:]
        self._held += text
        if self._is_between and not self._held.strip():
            return
        layout = self._layout_ahead()
        kept = len(layout) if layout and self._held.endswith(layout) else count_overlap(self._held, layout)
        self._emit(self._held[: len(self._held) - kept])
        self._held = self._held[len(self._held) - kept :]

    def _layout_ahead(self) -> str:
        if self._is_thinking:
            return self._thinking.before_closing
        return self._tools.before if self._tools else ""

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._is_thinking:
            self._out.add_reasoning(text)
        else:
            self._is_between = False
            self._is_begun = self._is_begun or bool(text.strip())
            self._out.add_content(text)


_NO_THINKING = Thinking(opening="", closing="", after_opening="", before_closing="", after_closing="")


def _mark(segments: Sequence[Segment], tools: ToolFormat) -> MarkedText:
    """Join segments to one text, with the positions of the markers that begin and end sections of tool calls."""
    markers: list[Marker] = []
    position = 0
    for segment in segments:
        end = position + len(segment.text)
        if segment.is_marker and segment.text in (tools.opening, tools.closing):
            markers.append(Marker(start=position, end=end, is_opening=segment.text == tools.opening))
        position = end
    return MarkedText(text="".join(segment.text for segment in segments), markers=tuple(markers))
