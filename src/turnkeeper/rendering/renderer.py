"""Messages to tokens: a first prompt is rendered whole, every later prompt by what it appends.

::

    renderer = build_renderer(checkpoint, "qwen3")
    prompt = renderer.render(messages, tools, {})                      a root: all ids
    prompt = renderer.extend(parent, appended, tools, {})              a child: trim, and the ids to append

Stored ids are never rendered again. The prompt of a child is the path of its parent without the last ``trim`` ids,
followed by the appended ids.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from turnkeeper.choices import RenderTools
from turnkeeper.core.tokens import NO_TOKENS, TokenIds, join_ids
from turnkeeper.core.turn import Prompt
from turnkeeper.errors import ConfigError, RequestError, TemplateError
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering.boundary import ParentContext, TurnBoundary, build_turn_boundary
from turnkeeper.rendering.checkpoint import Checkpoint
from turnkeeper.rendering.comparison import Mismatch, build_comparator
from turnkeeper.rendering.families import get_family
from turnkeeper.rendering.family import Family
from turnkeeper.rendering.message import ROLES, build_sglang_tool, get_role
from turnkeeper.rendering.parsing import BlockParser, ReplyParser, TaggedParser
from turnkeeper.rendering.templates import (
    ChatTemplate,
    EncoderTextRenderer,
    FormatTime,
    HistoryTextRenderer,
    RolePolicy,
    TemplateTextRenderer,
    TextRenderer,
    check_kwargs_change,
    merge_request_kwargs,
    merge_server_kwargs,
    render_complete,
)
from turnkeeper.rendering.tokenization import Tokenizer
from turnkeeper.rendering.tool_calls import ToolSchemas


class Renderer:
    """Renders and parses for one checkpoint under one family.

    A renderer has no state but caches; any number of sessions and threads may share one.
    """

    def __init__(
        self,
        *,
        family: Family,
        tokenizer: Tokenizer,
        text_renderer: TextRenderer,
        boundary: TurnBoundary,
        roles: RolePolicy,
        chat_template_kwargs: JsonObject,
        render_tools: RenderTools = RenderTools.AS_SENT,
    ) -> None:
        """Keep the parts that ``build_renderer`` builds."""
        self.family = family
        self.tokenizer = tokenizer
        self.text_renderer = text_renderer
        self._boundary = boundary
        self._roles = roles
        self._chat_template_kwargs = chat_template_kwargs
        self._render_tools = render_tools
        self._stop_markers = [tokenizer.markers[stop] for stop in boundary.stop_ids if stop in tokenizer.markers]
        self._comparator = build_comparator(
            tokenizer,
            family,
            stops=self._stop_markers,
            turn_end=boundary.turn_end,
            reply_marker=boundary.reply_marker,
        )

    @property
    def max_trim(self) -> int:
        """The most trailing ids of a parent's path that a child's prompt may leave out: 0 or 1."""
        return self.family.max_trim

    @property
    def turn_end(self) -> str:
        """The text that ends an assistant message, the sampled and the unsampled part of it."""
        return self._boundary.turn_end

    @property
    def unsampled_turn_end(self) -> str:
        """The part of the turn end that models never sample: white space behind the stop token."""
        sampled_ends = self._boundary.sampled_ends
        return sampled_ends[0].rest if sampled_ends else ""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Every token with which a sampled message may end, in ascending order."""
        return tuple(sorted(self._boundary.stop_ids))

    def validate(
        self, messages: Sequence[Message], tools: Sequence[JsonObject], chat_template_kwargs: Mapping[str, Any]
    ) -> JsonObject:
        """Check messages and ``chat_template_kwargs`` of a request, and return the effective ``chat_template_kwargs``.

        Raises:
            RequestError: there is no message, a role is unknown, or an argument contradicts a pinned one.
        """
        if not messages:
            raise RequestError("messages is empty", hint="send at least one message", param="messages")
        for index, message in enumerate(messages):
            role = get_role(message)
            if role not in ROLES:
                raise RequestError(
                    f"messages[{index}] has the role {message.get('role')!r}",
                    hint=f"the roles are {', '.join(ROLES)}",
                    param=f"messages[{index}].role",
                )
        return merge_request_kwargs(self.family, self._chat_template_kwargs, chat_template_kwargs)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
        room: int | None = None,
    ) -> Prompt:
        """Render the first prompt of a path, generation prompt included.

        Args:
            messages: the conversation, not empty.
            tools: the request's function tools.
            chat_template_kwargs: the request's own template arguments.
            room: how many ids are of use; None for any number.

        Raises:
            TextTooLongError: the prompt cannot but have more ids than there is room for.
            RequestError: see ``validate``.
            RoleNotAppendableError: the format has no place for a system or developer message behind other messages.
            TemplateError: the template refuses the messages, or leaves out what one of them says.
        """
        chat_template_kwargs = self.validate(messages, tools, chat_template_kwargs)
        given = self._form_tools(tools)

        def render_messages(kept: Sequence[Message]) -> str:
            return self.text_renderer.render(self.place(kept), given, chat_template_kwargs, add_generation_prompt=True)

        text = render_complete(render_messages, messages, self.family)
        return Prompt(trim=0, ids=self.tokenizer.encode(text, room), chat_template_kwargs=chat_template_kwargs)

    def extend(
        self,
        parent: ParentContext,
        appended: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
        room: int | None = None,
    ) -> Prompt:
        """Render the prompt of a turn that follows another turn.

        Args:
            parent: the last turn of the path.
            appended: the messages that follow it, at least one.
            tools: the function tools of the request.
            chat_template_kwargs: the request's own arguments for the chat template.
            room: the number of ids that may be added; None for any number.

        Raises:
            TextTooLongError: the prompt cannot but add more ids than there is room for.
            RequestError: see ``validate``; or the ``chat_template_kwargs`` would change how the path is rendered.
            RoleNotAppendableError: the family cannot append a message of one of the roles.
            TemplateError: the template refuses these messages.
        """
        chat_template_kwargs = self.validate(appended, tools, chat_template_kwargs)
        if parent.chat_template_kwargs is not None:
            check_kwargs_change(self.text_renderer, parent.chat_template_kwargs, chat_template_kwargs)
        self._roles.check(appended)
        given = self._form_tools(tools)

        def render_messages(kept: Sequence[Message]) -> str:
            placed = self._roles.place(kept, is_behind=True)
            return self.text_renderer.render_suffix(parent.messages, placed, given, chat_template_kwargs)

        suffix = render_complete(render_messages, appended, self.family, is_behind=True)
        joined = self._boundary.join(parent, suffix, room)
        return Prompt(trim=joined.trim, ids=joined.ids, chat_template_kwargs=chat_template_kwargs)

    def place(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return a whole conversation with its system and developer messages where the format has them."""
        return self._roles.place(messages)

    def _form_tools(self, tools: Sequence[JsonObject]) -> Sequence[JsonObject]:
        return [build_sglang_tool(tool) for tool in tools] if self._render_tools is RenderTools.ENGINE else tools

    def compare(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
        ids: TokenIds,
    ) -> tuple[Mismatch, ...]:
        """List the differences between the ids of a path and its messages as the family renders them.

        Args:
            messages: the messages of the path, with the message of the last completion at the end.
            tools: the function tools of the path's root.
            chat_template_kwargs: the root's arguments for the chat template.
            ids: shape [T]; the ids of the path, the last completion included.

        Raises:
            RequestError: see ``validate``.
            TemplateError: the template refuses the messages.
        """
        chat_template_kwargs = self.validate(messages, tools, chat_template_kwargs)
        text = self.text_renderer.render(
            self.place(messages), self._form_tools(tools), chat_template_kwargs, add_generation_prompt=False
        )
        return self._comparator.compare(text, ids)

    def parser(self, prompt_ids: TokenIds = NO_TOKENS, tools: Sequence[JsonObject] = ()) -> ReplyParser:
        """Build a parser for one completion.

        Args:
            prompt_ids: the ids of the completion's prompt, or the last of them; they show whether the prompt opened
                thinking.
            tools: the function tools of the request, for formats that do not tell the type of an argument.
        """
        stops = self._stop_markers
        if self.family.block_format is not None:
            return BlockParser(self.tokenizer, self.family.block_format, stops=stops)
        context = ParentContext(messages=(), completion_ids=NO_TOKENS, prompt_ids=prompt_ids)
        thinking = self.family.thinking
        return TaggedParser(
            self.tokenizer,
            self.family,
            stops=stops,
            schemas=ToolSchemas(tools),
            is_thinking=thinking is not None and self._boundary.is_inside(thinking, context),
        )


def build_renderer(
    checkpoint: Checkpoint,
    family_name: str,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    format_time: FormatTime | None = None,
    tokenizer: Tokenizer | None = None,
    render_tools: RenderTools = RenderTools.AS_SENT,
) -> Renderer:
    """Build the renderer of a checkpoint under a family.

    Args:
        checkpoint: the contents of the checkpoint folder.
        family_name: a ``--tito-model`` name.
        chat_template_kwargs: the server's arguments for the chat template, for every request.
        format_time: formats the present time for templates that ask for the date.
        tokenizer: the tokenizer of the checkpoint where it is loaded already.
        render_tools: the form in which tools are rendered.

    Raises:
        ConfigError: an unknown family, a tokenizer that cannot be read or lacks the family's markers, a missing or
            broken template, or arguments that contradict the family.
    """
    family = get_family(family_name)
    tokenizer = tokenizer or Tokenizer(checkpoint.tokenizer_json)
    text_renderer = _build_text_renderer(checkpoint, family, format_time)
    chat_template_kwargs = merge_server_kwargs(family, chat_template_kwargs)
    for marker in family.stop_markers[:1]:
        tokenizer.get_id(marker)
    renderer = Renderer(
        family=family,
        tokenizer=tokenizer,
        text_renderer=text_renderer,
        boundary=_build_boundary(checkpoint, family, tokenizer, text_renderer, chat_template_kwargs),
        roles=RolePolicy(family, text_renderer),
        chat_template_kwargs=chat_template_kwargs,
        render_tools=render_tools,
    )
    _check_boundary(renderer)
    return renderer


def _check_boundary(renderer: Renderer) -> None:
    """Refuse a tokenizer that merges text across the end of a message.

    With such a tokenizer no suffix has the ids that its text has in place. A template that rewrites earlier text, so
    that the texts themselves differ, is not refused here.
    """
    asked: Message = {"role": "user", "content": "Hello there"}
    talk: Sequence[Message] = (asked, {"role": "assistant", "content": "Hello"})
    try:
        first = renderer.text_renderer.render(talk, (), renderer.validate(talk, (), {}), add_generation_prompt=False)
        path = renderer.tokenizer.encode(first.removesuffix(renderer.unsampled_turn_end))
        appended = renderer.extend(ParentContext(messages=talk, completion_ids=path), [asked], (), {})
        whole = renderer.render([*talk, asked], (), {}).ids
    except RequestError:
        return
    joined = join_ids([path[: len(path) - appended.trim], appended.ids])
    if joined.tolist() != whole.tolist() and renderer.tokenizer.decode(joined) == renderer.tokenizer.decode(whole):
        raise ConfigError(
            "the tokenizer merges text across the end of a message: appended messages cannot be tokenized alone",
            hint="--chat-template-path can name a template that ends messages with a control token of the tokenizer",
        )


def _build_boundary(
    checkpoint: Checkpoint,
    family: Family,
    tokenizer: Tokenizer,
    text_renderer: TextRenderer,
    chat_template_kwargs: JsonObject,
) -> TurnBoundary:
    """Build the turn boundary; what the family's row leaves open is found out from the checkpoint's template."""
    turn_end, generation_prompt, call_end = family.turn_end, family.reply_marker, ""
    try:
        if turn_end is None:
            turn_end = text_renderer.find_turn_end() if isinstance(text_renderer, TemplateTextRenderer) else ""
            call_end = text_renderer.find_call_end() if isinstance(text_renderer, TemplateTextRenderer) else ""
        if generation_prompt is None:
            generation_prompt = text_renderer.render_generation_prompt(chat_template_kwargs).split("<think>")[0].strip()
    except TemplateError as error:
        raise ConfigError(
            f"the chat template cannot write a question and an answer: {error.message}",
            hint="--chat-template-path names another template",
        ) from error
    end_ids = _find_end_ids(checkpoint, tokenizer)
    return build_turn_boundary(
        family, tokenizer, turn_end=turn_end, generation_prompt=generation_prompt, end_ids=end_ids, call_end=call_end
    )


def _find_end_ids(checkpoint: Checkpoint, tokenizer: Tokenizer) -> tuple[int, ...]:
    named = tokenizer.find_id(checkpoint.named_tokens.get("eos_token", ""))
    return checkpoint.end_ids if named is None else (*checkpoint.end_ids, named)


def _build_text_renderer(checkpoint: Checkpoint, family: Family, format_time: FormatTime | None) -> TextRenderer:
    if family.message_encoder is not None:
        return EncoderTextRenderer(family.message_encoder)
    if checkpoint.template is None:
        raise ConfigError(
            "the checkpoint folder has no chat template: neither chat_template.jinja nor the chat_template key of "
            "tokenizer_config.json",
            hint="--chat-template-path names a template file for --hf-checkpoint (with --tito-model default)",
        )
    template = ChatTemplate(checkpoint.template, checkpoint.named_tokens, format_time)
    return (
        TemplateTextRenderer(template)
        if family.history_format is None
        else HistoryTextRenderer(template, family.history_format)
    )
