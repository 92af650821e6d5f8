"""A session's samples: assemble every candidate path, let the hooks pick and finish, count, describe.

Reads a view and changes nothing: collecting again gives the same bytes. Pure and synchronous; for long sessions run it
beside the event loop.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from turnkeeper.choices import HistoryKind, OnBadRows
from turnkeeper.core import DropReason, Ledger
from turnkeeper.errors import RequestError
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples.account import KeptSample, account, mark_reasons
from turnkeeper.samples.assemble import AssembledPath, Decode, assemble_path
from turnkeeper.samples.describe import describe_leaf, describe_lifecycle, describe_masked, describe_own
from turnkeeper.samples.hooks import Hooks, load_hooks, run_hooks
from turnkeeper.samples.lost_items import LostItems, find_lost, mask_lost, refuse_lost
from turnkeeper.samples.rollback import Rollback, find_rollbacks
from turnkeeper.samples.sample import OWN_KEY, Reward, Sample
from turnkeeper.samples.truncate import cut_paths
from turnkeeper.samples.view import SessionView
from turnkeeper.samples.wire import EmptyReason, SamplesPayload, encode_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    """The options by which a server makes samples."""

    hooks: Hooks
    """The picker and the postprocessor, which are called for tree sessions only."""
    masked_marks: frozenset[str] = frozenset()
    """The marks of turns whose tokens carry no loss, by the options of side channels such as ``--r3-recomputed``."""
    past_truncation: bool = False
    """``--sample-past-truncation``."""
    on_bad_rows: OnBadRows = OnBadRows.FAIL
    """``--on-bad-rows``, for items of side channels that were lost since they were recorded."""

    @classmethod
    def defaults(cls) -> "CollectOptions":
        """Take the built-in hooks and no extras."""
        return cls(hooks=load_hooks())


UNTRAINED = "other_model"
"""The cause of a leaf whose agent asked for a model that ``--train-models`` does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedLeaf:
    """A turn without children that is the end of no sample."""

    turn_id: TurnId
    response_id: str
    rollback: Rollback | None
    """The reason why the agent did not continue from the leaf; None where it might have."""
    is_over_length: bool
    """True when the length limit leaves nothing of the leaf's path."""
    is_untrained: bool
    """True when the agent of the leaf asked for a model that is not trained."""

    @property
    def cause(self) -> str:
        """The cause for which the leaf ends no sample."""
        if self.is_untrained:
            return UNTRAINED
        if self.rollback is not None:
            return str(self.rollback.cause)
        return str(DropReason.OVER_MAX_SEQ_LEN if self.is_over_length else DropReason.NOT_PICKED)

    def to_json(self) -> JsonObject:
        """Return the leaf's turn, the cause, and the turn that took its place where there is one."""
        rollback = {} if self.rollback is None else self.rollback.to_json()
        return {"node_id": int(self.turn_id), "response_id": self.response_id, "cause": self.cause} | rollback


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collection:
    """The result of one collect."""

    history: HistoryKind
    samples: tuple[Sample, ...]
    session_metadata: JsonObject
    """The session's metadata with ``turnkeeper.accounting``, for tree sessions also with ``agent``."""
    agent_metadata: JsonObject | None
    """``metadata`` of the request where the session is linear: no hook has put it into the samples."""
    empty_reason: EmptyReason | None
    ledger: Ledger
    """The session's terms and those of the samples; ``unaccounted`` is 0."""
    turn_ledgers: tuple[Ledger, ...]
    """The ledger of each turn in commit order, without ``sampled``."""
    dropped_leaves: tuple[DroppedLeaf, ...]
    """In commit order."""

    def encode(self) -> SamplesPayload:
        """Encode the reply to the collect request."""
        return encode_samples(
            self.samples,
            self.session_metadata,
            self.empty_reason,
            history=self.history,
            agent_metadata=self.agent_metadata,
        )


def collect(
    view: SessionView,
    *,
    session_metadata: JsonObject,
    session_ledger: Ledger,
    decode: Decode,
    options: CollectOptions,
    max_seq_len: int | None = None,
    agent_metadata: JsonObject | None = None,
    rewards: Mapping[str, Reward] | None = None,
    acknowledged: Container[TurnId] = (),
) -> Collection:
    """Make the samples of a session.

    Args:
        view: the session as it stands.
        session_metadata: what ``GET`` shows as ``metadata``; under tree it holds ``tree``.
        session_ledger: what the session knows: tokens sampled, and what abandoned calls lost.
        decode: token ids to text, special tokens kept.
        options: the server's.
        max_seq_len: the budget of one sample in tokens; None for none.
        agent_metadata: ``metadata`` of the request.
        rewards: rewards of single turns, by the id of their reply. That of a leaf's last turn is the leaf's own.
        acknowledged: turns that a trainer has from an earlier collect; they come along without loss.

    Raises:
        RequestError: a reward names no turn, or several.
        AssemblyError: turns do not make a sample, or items were lost and ``--on-bad-rows`` says that this fails.
        HookError: a hook raised or broke its contract.
    """
    rewards = rewards or {}
    _check_rewards(view, rewards)
    is_tree = view.history is HistoryKind.TREE
    if is_tree and agent_metadata is not None:
        session_metadata = {**session_metadata, "agent": agent_metadata}
    lost = find_lost(view)
    if lost and options.on_bad_rows is OnBadRows.MASK:
        view, lost = mask_lost(view, lost), dict[TurnId, LostItems]()
    rollbacks = find_rollbacks(view)
    found = cut_paths(view, max_seq_len=max_seq_len, past_truncation=options.past_truncation)
    paths: dict[TurnId, AssembledPath] = {}
    for leaf, path in found.kept.items():
        refuse_lost(path.stretches[: path.cut.turns], lost)
        assembled = assemble_path(
            path.stretches,
            path.cut,
            decode=decode,
            masked_marks=options.masked_marks,
            untrained=view.untrained,
            acknowledged=acknowledged,
        )
        paths[leaf] = _describe(assembled, view, rollbacks.get(leaf), rewards)
    if is_tree and paths:
        finished = run_hooks(options.hooks, paths, session_metadata)
    else:
        reward = (agent_metadata or {}).get("reward")
        finished = [(path, _give_reward(path.sample, reward)) for path in paths.values()]
    kept = mark_reasons(finished)
    turn_ledgers = account(view, [(each.assembled, each.reasons_R) for each in kept], found.empty.values())
    ledger = sum(turn_ledgers, session_ledger)
    ends = {each.assembled.stretches[-1].turn.id for each in kept}
    dropped = list_dropped(view, ends, rollbacks, found.empty)
    reason = None if kept else (EmptyReason.ALL_TRUNCATED if view.turns else EmptyReason.NO_RECORDS)
    said = _say_of_session(session_metadata, len(kept))
    return Collection(
        history=view.history,
        samples=tuple(_finish(each, said) for each in kept),
        session_metadata=show_outcome(session_metadata, ledger, dropped, turn_ledgers, rewards),
        agent_metadata=None if is_tree else agent_metadata,
        empty_reason=reason,
        ledger=ledger,
        turn_ledgers=turn_ledgers,
        dropped_leaves=dropped,
    )


def _check_rewards(view: SessionView, rewards: Mapping[str, Reward]) -> None:
    """Refuse a reward that belongs to no turn of a sample."""
    counts = Counter(turn.completion.response_id for turn in view.turns)
    for response_id in rewards:
        if counts[response_id] != 1:
            raise RequestError(
                f"rewards: {counts[response_id]} turns of the session have the response id {response_id!r}",
                hint="a reward is given to one turn, by the id of the reply that the agent got",
                param="rewards",
                response_id=response_id,
            )


def _describe(
    assembled: AssembledPath, view: SessionView, rollback: Rollback | None, rewards: Mapping[str, Reward]
) -> AssembledPath:
    """Give an assembled sample its metadata, and the reward of its last turn where there is one."""
    path = [stretch.turn for stretch in assembled.stretches]
    leaf = path[-1].id
    metadata: JsonObject = {"lifecycle": describe_lifecycle(assembled.stretches[: assembled.cut.turns])}
    if leaf in view.messages and assembled.cut.turns == len(path):
        metadata["messages"] = [dict(message) for message in view.messages[leaf]]
    if view.history is HistoryKind.TREE:
        metadata["accumulated_token_ids"] = _list_path_ids(assembled)
        metadata["leaf"] = describe_leaf(path)
        if leaf in view.mismatches:
            metadata["tito_session_mismatch"] = list(view.mismatches[leaf])
    metadata[OWN_KEY] = describe_own(assembled, view, rollback=rollback, rewards=rewards)
    reward = rewards.get(path[-1].completion.response_id)
    return replace(assembled, sample=replace(assembled.sample, metadata=metadata, reward=reward))


def _tell_fate(ledger: Ledger) -> JsonObject:
    """Return the terms of one turn that are not 0, ready for JSON."""
    said = {name: term for name, term in ledger.to_json().items() if name in ("trainable", "masked", "dropped")}
    return {name: term for name, term in said.items() if term}


def _give_reward(sample: Sample, reward: Reward | None) -> Sample:
    """Return the sample with the session's reward, unless it has a reward of its own."""
    return sample if sample.reward is not None else replace(sample, reward=reward)


def list_dropped(
    view: SessionView,
    ends: Container[TurnId],
    rollbacks: Mapping[TurnId, Rollback],
    empty: Container[TurnId],
) -> tuple[DroppedLeaf, ...]:
    """List the turns without children that end no sample; under linear those beside the live path are among them."""
    inside = {turn.parent for turn in view.turns}
    return tuple(
        DroppedLeaf(
            turn_id=turn.id,
            response_id=turn.completion.response_id,
            rollback=rollbacks.get(turn.id),
            is_over_length=turn.id in empty,
            is_untrained=turn.id in view.untrained,
        )
        for turn in view.turns
        if turn.id not in inside and turn.id not in ends
    )


def _list_path_ids(assembled: AssembledPath) -> list[int]:
    """List the ids of the whole path, of which the sample may keep less."""
    pieces = [
        piece
        for stretch in assembled.stretches
        for piece in (stretch.turn.prompt.ids, stretch.turn.completion.ids[: stretch.kept - stretch.sampled])
    ]
    ids: list[int] = np.concatenate(pieces).tolist()
    return ids


def _say_of_session(session_metadata: JsonObject, leaves: int) -> JsonObject:
    """Return the metadata of the session that is part of every sample."""
    created_with: JsonObject = session_metadata.get(OWN_KEY, {}).get("metadata", {})
    return {"rollout_leaves": leaves} | ({"session_metadata": created_with} if created_with else {})


def _finish(kept: KeptSample, said: JsonObject) -> Sample:
    """Finish the sample that goes to the trainer: explain its masks, and add what is said of its session."""
    own = {**kept.sample.metadata[OWN_KEY], "masked": describe_masked(kept.reasons_R), **said}
    return replace(kept.sample, metadata={**kept.sample.metadata, OWN_KEY: own})


def show_outcome(
    session_metadata: JsonObject,
    ledger: Ledger,
    dropped: Sequence[DroppedLeaf],
    turn_ledgers: Sequence[Ledger],
    rewards: Mapping[str, Reward] | None = None,
) -> JsonObject:
    """Return the session's metadata, together with what a collect found and was given, or would find.

    Each of ``turns`` gets ``tokens``: how many of its sampled tokens train, are masked and are dropped, and why.
    """
    own: JsonObject = {**session_metadata.get(OWN_KEY, {}), "accounting": ledger.to_json()}
    if "turns" in own:  # turns may have been committed since
        known = [{**turn, "tokens": _tell_fate(each)} for turn, each in zip(own["turns"], turn_ledgers, strict=False)]
        own["turns"] = [*known, *own["turns"][len(known) :]]
    if dropped:
        own["dropped_leaves"] = [leaf.to_json() for leaf in dropped]
    if rewards:
        own["rewards"] = dict(rewards)
    return {**session_metadata, OWN_KEY: own}
