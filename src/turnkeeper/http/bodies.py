"""The bodies and query parameters of the control plane, parsed into values. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnkeeper.choices import PauseMode
from turnkeeper.dialects.jsonbody import describe_json
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, is_number, is_object
from turnkeeper.samples import Reward
from turnkeeper.service.control import parse_pause_mode
from turnkeeper.service.sessions import parse_length

_SAMPLES_FIELDS = ("max_seq_len", "metadata", "rewards", "since")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesRequest:
    """The body of ``POST /sessions/{id}/samples``."""

    max_seq_len: int | None
    """The token limit of a sample; None leaves it to the session."""
    metadata: JsonObject | None
    """The trainer's own data, which goes into every sample; its ``reward`` is the reward of all of them."""
    rewards: Mapping[str, Reward]
    """A reward for each response id."""
    since: str | None
    """An acknowledged receipt, whose turns come along without loss."""

    @property
    def has_reward(self) -> bool:
        """True where the request gives a reward to any sample."""
        return bool(self.rewards) or (self.metadata or {}).get("reward") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequest:
    """The body of ``POST /engine/pause``."""

    mode: PauseMode
    forward: bool
    """Whether every engine is paused first."""


def parse_samples_request(body: JsonObject) -> SamplesRequest:
    """Parse the body of a request for samples.

    Raises:
        RequestError: a member is unknown or has a bad value, by its name.
    """
    for name in body:
        if name not in _SAMPLES_FIELDS:
            known = ", ".join(_SAMPLES_FIELDS)
            raise RequestError(f"{name[:64]} is not a field of samples", hint=f"known: {known}", param=name[:64])
    return SamplesRequest(
        metadata=_parse_metadata(body.get("metadata")),
        rewards=_parse_rewards(body.get("rewards")),
        max_seq_len=parse_length(body.get("max_seq_len"), "max_seq_len"),
        since=None if body.get("since") is None else _parse_digest(body["since"], "since"),
    )


def parse_receipt(body: JsonObject) -> str:
    """Parse the body of a request that acknowledges samples.

    Raises:
        RequestError: a member is unknown, or the receipt is none.
    """
    for name in body:
        if name != "receipt":
            raise RequestError(f"{name[:64]} is not a field of ack", hint="known: receipt", param=name[:64])
    return _parse_digest(body.get("receipt"), "receipt")


def parse_pause_request(body: JsonObject) -> PauseRequest:
    """Parse the body of a request to pause.

    Raises:
        RequestError: a member has a bad value, by its name.
    """
    return PauseRequest(mode=parse_pause_mode(body.get("mode")), forward=parse_forward(body))


def parse_forward(body: JsonObject) -> bool:
    """Parse ``forward``: whether every engine is told as well; false where it is left out.

    Raises:
        RequestError: it is no boolean.
    """
    forward = body.get("forward", False)
    if not isinstance(forward, bool):
        raise RequestError(f"forward must be true or false, got {forward!r}", param="forward")
    return forward


def _parse_digest(receipt: Any, name: str) -> str:
    if not isinstance(receipt, str):
        raise RequestError(
            f"{name} must be the receipt of a collect, a string, got {describe_json(receipt)}",
            hint="the receipt of a collect is the header x-turnkeeper-receipt of its reply",
            param=name,
        )
    return receipt


def _parse_metadata(metadata: Any) -> JsonObject | None:
    if metadata is None:
        return None
    if not is_object(metadata):
        raise RequestError(f"metadata must be an object, got {describe_json(metadata)}", param="metadata")
    if metadata.get("reward") is not None:
        _parse_reward(metadata["reward"], "metadata.reward", hint="other keys of metadata hold anything")
    return metadata


def _parse_rewards(rewards: Any) -> dict[str, Reward]:
    if rewards is None:
        return {}
    hint = "rewards holds a reward for each response id; metadata.reward is that of all samples"
    if not is_object(rewards):
        raise RequestError(f"rewards must be an object, got {describe_json(rewards)}", hint=hint, param="rewards")
    return {name: _parse_reward(reward, f"rewards.{name}", hint=hint) for name, reward in rewards.items()}


def _parse_reward(reward: Any, name: str, *, hint: str) -> Reward:
    if not (is_number(reward) or is_object(reward)):
        raise RequestError(f"{name} must be a number or an object, got {describe_json(reward)}", hint=hint, param=name)
    return reward
