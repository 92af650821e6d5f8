"""A reply as Responses events.

::

    created, in_progress, (output_item.added, parts and deltas ..., output_item.done) ..., completed | incomplete
    failed at any time ends all

Every event has its type and a sequence number. Clients build their state from ``output_item.done``; the last event
repeats the whole output.
"""

from collections import Counter
from typing import Any

from turnkeeper.dialects.dialect import StreamStart
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.dialects.openai import choose_code
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.dialects.responses.reply import ResponsesReplyForm, build_part, build_text, build_usage, describe_end
from turnkeeper.dialects.sent_text import GrowingText, SentText
from turnkeeper.dialects.sse import encode_text_event
from turnkeeper.errors import TurnkeeperError
from turnkeeper.jsontypes import JsonObject

REASONING, TEXT = "reasoning", "message"


class ResponsesStream:
    """The state of one stream: which item is open, and which texts were sent."""

    def __init__(self, start: StreamStart, form: ResponsesReplyForm) -> None:
        self._start = start
        self._form = form
        self._sent = SentText()
        self._sequence = 0
        self._is_started = False
        self._output: list[JsonObject] = []
        self._parts = Counter[str]()
        """How many items of reasoning and of text there are: a model may come back to reasoning behind its text."""
        self._open: str | None = None
        self._text_so_far = GrowingText()
        """The text of the open item."""

    def heartbeat(self) -> bytes:
        """Send ``response.created`` at first, and ``response.in_progress`` again afterwards."""
        return self._in_progress() if self._is_started else self._begin()

    def extend(self, *, reasoning: str, content: str) -> bytes:
        """Send a delta for each text that is not empty."""
        self._sent.add(reasoning=reasoning, content=content)
        return self._begin() + self._add_text(REASONING, reasoning) + self._add_text(TEXT, content)

    def finish(self, reply: AgentReply) -> bytes:
        """Send the rest of the items, then the whole response."""
        rest = self._sent.get_unsent(reply.message)
        calls = reply.message.get("tool_calls") or ()
        parts = [self._begin(), self._add_text(REASONING, rest.reasoning), self._add_text(TEXT, rest.content)]
        if not calls and not self._sent.content and not rest.content:
            parts += [self._close_item(), self._open_item(TEXT)]
        parts.append(self._close_item())
        parts += [self._render_call(place, call) for place, call in enumerate(calls)]
        end = describe_end(reply)
        response = self._build(**end, output=self._output, usage=build_usage(reply))
        parts.append(self._event(f"response.{end['status']}", response=response))
        return b"".join(parts)

    def fail(self, error: TurnkeeperError) -> bytes:
        """Send ``response.failed`` with the code and the message of the error."""
        described = {"code": choose_code(error), "message": str(error)}
        response = self._build(status="failed", output=self._output, error=described)
        return self._event("response.failed", response=response)

    def _begin(self) -> bytes:
        if self._is_started:
            return b""
        self._is_started = True
        return self._event("response.created", response=self._build()) + self._in_progress()

    def _in_progress(self) -> bytes:
        return self._event("response.in_progress", response=self._build())

    def _build(self, **members: Any) -> JsonObject:
        return self._form.build_response(self._start.response_id, self._start.created_s, **members)

    # Texts.

    def _add_text(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        opening = b"" if self._open == kind else self._close_item() + self._open_item(kind)
        self._text_so_far.add(text)
        if kind == REASONING:
            return opening + self._item_event("response.reasoning_summary_text.delta", summary_index=0, delta=text)
        return opening + self._item_event("response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def _open_item(self, kind: str) -> bytes:
        self._open, self._text_so_far = kind, GrowingText()
        self._parts[kind] += 1
        self._output.append({})
        self._output[-1] = self._build_open()
        if kind == REASONING:
            part = {"type": "summary_text", "text": ""}
            return self._added({"summary": [], "status": "in_progress"}) + self._item_event(
                "response.reasoning_summary_part.added", summary_index=0, part=part
            )
        return self._added({"content": [], "status": "in_progress"}) + self._item_event(
            "response.content_part.added", content_index=0, part=build_part("")
        )

    def _close_item(self) -> bytes:
        if self._open is None:
            return b""
        item = self._output[-1] = self._build_open()
        kind, self._open = self._open, None
        if kind == REASONING:
            return (
                self._item_event("response.reasoning_summary_text.done", summary_index=0, text=str(self._text_so_far))
                + self._item_event("response.reasoning_summary_part.done", summary_index=0, part=item["summary"][0])
                + self._done()
            )
        return (
            self._item_event("response.output_text.done", content_index=0, text=str(self._text_so_far), logprobs=[])
            + self._item_event("response.content_part.done", content_index=0, part=item["content"][0])
            + self._done()
        )

    def _build_open(self) -> JsonObject:
        """Build the open item, which is the last of the output, with the text that it has so far."""
        response_id, part = self._start.response_id, self._parts[self._open or TEXT] - 1
        if self._open == REASONING:
            return self._form.build_reasoning(response_id, str(self._text_so_far), part)
        return build_text(response_id, str(self._text_so_far), part)

    # Calls.

    def _render_call(self, place: int, call: JsonObject) -> bytes:
        item = self._form.build_call(self._start.response_id, place, call)
        self._output.append(item)
        member, event = ("arguments", "function_call_arguments")
        if item["type"] == "custom_tool_call":
            member, event = ("input", "custom_tool_call_input")
        text: str = item[member]
        return (
            self._added({member: "", "status": "in_progress"})
            + self._item_event(f"response.{event}.delta", delta=text)
            + self._item_event(f"response.{event}.done", **{member: text, "name": item["name"]})
            + self._done()
        )

    # Events.

    def _added(self, changes: JsonObject) -> bytes:
        item = {**self._output[-1], **changes}
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _done(self) -> bytes:
        return self._event("response.output_item.done", output_index=len(self._output) - 1, item=self._output[-1])

    def _item_event(self, kind: str, **members: Any) -> bytes:
        place = len(self._output) - 1
        return self._event(kind, item_id=self._output[place]["id"], output_index=place, **members)

    def _event(self, kind: str, **members: Any) -> bytes:
        payload = {"type": kind, "sequence_number": self._sequence, **members}
        self._sequence += 1
        return encode_text_event(encode_json(payload), kind)
