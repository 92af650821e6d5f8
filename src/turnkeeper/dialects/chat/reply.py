"""A reply as a chat completion: its message, why it ended, what it cost. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from turnkeeper.core.turn import FinishReason
from turnkeeper.dialects.dialect import DecodeToken
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.jsontypes import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReplyForm:
    """The form that a request wants its reply in."""

    model: str
    """The model that the reply names: the one that the request named."""
    wants_usage: bool
    """Whether a stream ends with a chunk of usage."""
    wants_logprobs: bool
    """Whether the reply lists each token with its log-probability."""
    decode_token: DecodeToken
    spell_token: Callable[[int], bytes]
    """The bytes of one token id: of a token that is part of a character, those that its text cannot show."""

    def build_logprobs(self, reply: AgentReply) -> JsonObject | None:
        """Build the sampled tokens with their texts and log-probabilities; None where the request wants none."""
        if not self.wants_logprobs:
            return None
        places = reply.top_logprobs if reply.top_logprobs is not None else ((),) * len(reply.ids)
        tokens = zip(reply.ids.tolist(), reply.logprobs.tolist(), places, strict=True)
        return {
            "content": [
                self._build_token(token_id, logprob) | {"top_logprobs": [self._build_token(*pair) for pair in place]}
                for token_id, logprob, place in tokens
            ]
        }

    def _build_token(self, token_id: int, logprob: float) -> JsonObject:
        text, spelled = self.decode_token(token_id), self.spell_token(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(spelled)}


def build_chat_completion(reply: AgentReply, form: ChatReplyForm) -> JsonObject:
    """Build the whole ``chat.completion`` object."""
    choice: JsonObject = {
        "index": 0,
        "message": reply.message,
        "logprobs": form.build_logprobs(reply),
        "finish_reason": choose_finish_reason(reply),
        "matched_stop": reply.matched_stop,
        "meta_info": dict(reply.meta),
    }
    return {
        "id": reply.response_id,
        "object": "chat.completion",
        "created": reply.created_s,
        "model": form.model,
        "choices": [choice],
        "usage": build_usage(reply),
    }


def choose_finish_reason(reply: AgentReply) -> str:
    """Choose the finish reason that the agent is told: ``tool_calls`` for a reply that stopped and has calls.

    An engine says ``stop`` of such a reply where the calls were parsed here and not by the engine. Records and samples
    keep the word of the engine.
    """
    if reply.finish_reason not in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        return reply.finish_reason
    return FinishReason.TOOL_CALLS if reply.message.get("tool_calls") else FinishReason.STOP


def build_usage(reply: AgentReply) -> JsonObject:
    """Build the token counts of chat completions."""
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }
