"""A session as it is shown: its turns with what became of their tokens, and the turns in flight. Pure.

It is read from JSON: from what ``GET /sessions/{id}`` answers, or from the metadata of a samples payload, which say the
same of turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.errors import PayloadError
from turnkeeper.jsontypes import JsonObject, is_array, is_number, is_object
from turnkeeper.samples.sample import OWN_KEY
from turnkeeper.texts import shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownToken:
    """One sampled token of a turn."""

    id: int
    logprob: float
    version: str | None
    """The weights that sampled it; None where unknown."""
    trained: int | None
    """The number of samples in which it carries loss; None where no samples were collected."""
    masked: str
    """The reason why it carries no loss; empty where it does, or where the reason is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldMessage:
    """A message that a turn appended."""

    role: str
    """Empty where only the text of several messages together is known."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContent:
    """What a turn was told and what was sampled."""

    told: tuple[ToldMessage, ...]
    """The messages that the turn appended; one without a role where they are not known apart."""
    text: str
    """The sampled text: the message with its reasoning and calls, or the decoded tokens."""
    tokens: tuple[ShownToken, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """One recorded turn."""

    id: int
    parent: int | None
    label: str
    cause: str
    """The reason why it is no extension of a path; empty for one that is."""
    near: int | None
    """The turn that it came nearest to extending."""
    difference: JsonObject | None
    """The first difference that kept it from that: ``message``, ``field``, ``stored``, ``replayed``."""
    would_match: str
    """The setting under which it would have been an extension; empty where there is none."""
    response_id: str
    finish_reason: str
    prompt_tokens: int
    """The length of the whole prompt."""
    added_tokens: int
    """The number of prompt tokens that are not its parent's."""
    completion_tokens: int
    cached_tokens: int
    agent: str
    """The sub-agent that asked; empty for the main agent."""
    model: str
    """The model that the agent asked for; empty where it named none."""
    trainable: int | None
    """The number of its sampled tokens that train; None where that is not known, as in the next two."""
    masked: Mapping[str, int]
    """Sampled tokens that are in a sample without loss, by reason."""
    dropped: Mapping[str, int]
    """Sampled tokens that are in no sample, by reason."""
    times: Mapping[str, float]
    """The seconds that it took in each phase; empty where they are not known."""
    engine: str
    """The URL of the engine that answered; empty where it is not known."""
    content: TurnContent | None = None
    """None where the source holds no content of the turn."""

    @property
    def path_tokens(self) -> int:
        """The length of its path, completion included."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSession:
    """One session."""

    id: str
    history: str
    """``linear`` or ``tree``."""
    turns: tuple[ShownTurn, ...]
    """In commit order: ``turns[i].id == i``."""
    in_flight: tuple[JsonObject, ...] = ()
    """The turns that are not recorded yet: ``phase``, ``age_s``, ``phase_age_s``, ``engine``, ..."""
    closed: str = ""
    """Why it takes no further turns; empty while it does."""
    metadata: JsonObject = field(default_factory=dict[str, Any])
    """What its creator gave it."""
    accounting: JsonObject = field(default_factory=dict[str, Any])
    """Where its sampled tokens went: ``sampled``, ``trainable``, ``masked``, ``dropped``, ``calls``."""
    dropped_leaves: tuple[JsonObject, ...] = ()
    """The turns without children that end no sample: ``node_id``, ``cause``, ``by``."""
    mismatches: int = 0
    """The number of places in which the ids of the newest path say something else than its messages."""
    notes: tuple[str, ...] = ()
    """What its source could not read of it, in sentences."""

    def list_leaves(self) -> tuple[ShownTurn, ...]:
        """List the turns that nothing extends, in commit order."""
        parents = {turn.parent for turn in self.turns}
        return tuple(turn for turn in self.turns if turn.id not in parents)

    def trace(self, turn_id: int | None) -> tuple[ShownTurn, ...]:
        """List the turns from a root to a turn; nothing for None."""
        path: list[ShownTurn] = []
        while turn_id is not None:
            path.append(self.turns[turn_id])
            turn_id = path[-1].parent
        return tuple(reversed(path))


def read_session(session_id: str, metadata: JsonObject, contents: Mapping[int, TurnContent]) -> ShownSession:
    """Read a session from its metadata, as ``GET`` and samples payloads have it.

    Args:
        session_id: the id, or whatever the source calls the session.
        metadata: the object with the key ``turnkeeper``.
        contents: what is known of the content of turns, by turn.

    Raises:
        PayloadError: the metadata is not of a session of this server.
    """
    own = metadata.get(OWN_KEY)
    if not is_object(own) or not is_array(own.get("turns")):
        raise PayloadError(
            f"session {session_id} says nothing of its turns",
            hint="session metadata of turnkeeper is expected: a server's, or that of a samples payload",
        )
    try:
        turns = tuple(_read_turn(_check(each, dict), contents) for each in own["turns"])
        _check_order(turns)
        return ShownSession(
            id=session_id,
            history=_take(own, "history", str, ""),
            turns=turns,
            in_flight=tuple(map(_check_in_flight, _take(own, "in_flight", list, []))),
            closed=_take(own, "closed", str, ""),
            metadata=_take(own, "metadata", dict, {}),
            accounting=_read_fate(_take(own, "accounting", dict, {})),
            dropped_leaves=tuple(_check(leaf, dict) for leaf in _take(own, "dropped_leaves", list, [])),
            mismatches=len(_take(metadata, "tito_session_mismatch", list, [])),
        )
    except ValueError as error:
        raise PayloadError(f"session {session_id} has metadata of another form: {error}") from error


def _check_order(turns: Sequence[ShownTurn]) -> None:
    """Hold turns to commit order: every other reader goes by place."""
    for place, turn in enumerate(turns):
        if turn.id != place or not (turn.parent is None or 0 <= turn.parent < place):
            raise ValueError(f"turn {turn.id} with the parent {turn.parent} stands at place {place}")
        if not (turn.near is None or 0 <= turn.near < place):
            raise ValueError(f"turn {turn.id} is compared with turn {turn.near}, which was not there yet")


def _read_turn(turn: JsonObject, contents: Mapping[int, TurnContent]) -> ShownTurn:
    why: JsonObject = _take(turn, "why", dict, {})
    fate: JsonObject | None = _take(turn, "tokens", dict, None)
    tokens = {} if fate is None else _read_fate(fate)
    return ShownTurn(
        id=_take(turn, "id", int),
        parent=_take(turn, "parent", int, None),
        label=_take(turn, "label", str),
        cause=_take(why, "cause", str, ""),
        near=_take(why, "near", int, None),
        difference=_take(why, "difference", dict, None),
        would_match=_take(why, "would_match", str, ""),
        response_id=_take(turn, "response_id", str),
        finish_reason=_take(turn, "finish_reason", str),
        prompt_tokens=_take(turn, "prompt_tokens", int),
        added_tokens=_take(turn, "added_tokens", int),
        completion_tokens=_take(turn, "completion_tokens", int),
        cached_tokens=_take(turn, "cached_tokens", int),
        agent=_take(turn, "agent", str, ""),
        model=_take(turn, "model", str, ""),
        trainable=tokens.get("trainable"),
        masked=tokens.get("masked", {}),
        dropped=tokens.get("dropped", {}),
        times={name: _check(seconds, float) for name, seconds in _take(turn, "times", dict, {}).items()},
        engine=_take(turn, "engine", str, ""),
        content=contents.get(turn["id"]),
    )


def _check_in_flight(turn: Any) -> JsonObject:
    checked = _check(turn, dict)
    _take(checked, "phase", str)
    _take(checked, "age_s", float)
    _take(checked, "phase_age_s", float)
    return checked


def _read_fate(fate: JsonObject) -> JsonObject:
    """Read the terms of an accounting: counts, and counts by reason; what is missing is none."""
    counts = {name: _take(fate, name, int, 0) for name in ("sampled", "trainable")}
    by_reason = {
        name: {reason: _check(tokens, int) for reason, tokens in _take(fate, name, dict, {}).items()}
        for name in ("masked", "dropped")
    }
    return {**fate, **counts, **by_reason}


_REQUIRED: Any = object()


def _take(value: JsonObject, name: str, kind: type, default: Any = _REQUIRED) -> Any:
    """Take a member of an object; where it may be missing, null is taken for missing.

    Raises:
        ValueError: it is missing, or of another kind.
    """
    found = value.get(name)
    if found is None and default is not _REQUIRED:
        return default
    try:
        return _check(found, kind)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check(value: Any, kind: type) -> Any:
    """Hold a value to its kind; a whole number is a number as well, a truth value is none.

    Raises:
        ValueError: it is of another kind.
    """
    is_kind = is_number(value) if kind is float else isinstance(value, kind) and not isinstance(value, bool)
    if not is_kind:
        raise ValueError(f"{kind.__name__} expected, got {shorten(repr(value))}")
    return value
