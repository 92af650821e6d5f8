"""A session's samples: assemble every candidate path, let the hooks pick and finish, count, describe.

Reads a view and changes nothing: collecting again gives the same bytes. Pure and synchronous; for long sessions run it
beside the event loop.
"""

from dataclasses import dataclass, replace

import numpy as np

from turnkeeper.choices import HistoryKind, OnRecomputed
from turnkeeper.core import Ledger
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples.account import KeptSample, account, mark_reasons
from turnkeeper.samples.assemble import AssembledPath, Decode, assemble_path
from turnkeeper.samples.describe import OWN_KEY, describe_leaf, describe_lifecycle, describe_masked, describe_own
from turnkeeper.samples.draft import DraftSample
from turnkeeper.samples.sample import Sample
from turnkeeper.samples.select import Hooks, load_hooks, run_hooks
from turnkeeper.samples.truncate import choose_cut
from turnkeeper.samples.view import SessionView, lay_out
from turnkeeper.samples.wire import EmptyReason, SamplesPayload, encode_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    """How a server makes samples."""

    hooks: Hooks
    """Only a tree session asks them."""
    on_recomputed: OnRecomputed = OnRecomputed.KEEP
    """``--r3-recomputed``."""
    past_truncation: bool = False
    """``--sample-past-truncation``."""

    @classmethod
    def defaults(cls) -> "CollectOptions":
        """The built-in hooks and no extras."""
        return cls(hooks=load_hooks())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collection:
    """What one collect gives."""

    history: HistoryKind
    samples: tuple[Sample, ...]
    session_metadata: JsonObject
    """As given, with ``turnkeeper.accounting`` filled in, under tree also ``agent``."""
    empty_reason: EmptyReason | None
    ledger: Ledger
    """The session's terms and those of the samples; ``unaccounted`` is 0."""

    def encode(self) -> SamplesPayload:
        """The reply."""
        return encode_samples(self.samples, self.session_metadata, self.empty_reason, history=self.history)


def collect(
    view: SessionView,
    *,
    session_metadata: JsonObject,
    session_ledger: Ledger,
    decode: Decode,
    options: CollectOptions,
    max_seq_len: int | None = None,
    agent_metadata: JsonObject | None = None,
) -> Collection:
    """Make the samples of a session.

    Args:
        view: the session as it stands.
        session_metadata: what ``GET`` shows as ``metadata``; under tree it holds ``tree``.
        session_ledger: what the session knows: tokens sampled, and what abandoned calls lost.
        decode: token ids to text, special tokens kept.
        options: the server's.
        max_seq_len: the budget of one sample in tokens; None for none.
        agent_metadata: ``metadata`` of the request; only a tree session reads it.

    Raises:
        AssemblyError: turns do not make a sample.
        HookError: a hook raised or broke its contract.
    """
    is_tree = view.history is HistoryKind.TREE
    if is_tree and agent_metadata is not None:
        session_metadata = {**session_metadata, "agent": agent_metadata}
    paths: dict[TurnId, AssembledPath] = {}
    empty: list[tuple[TurnId, ...]] = []
    for leaf in view.leaves:
        path = view.trace(leaf)
        stretches = lay_out(path)
        cut = choose_cut(stretches, max_seq_len=max_seq_len, past_truncation=options.past_truncation)
        if not cut.turns:
            empty.append(tuple(turn.id for turn in path))
            continue
        assembled = assemble_path(stretches, cut, decode=decode, on_recomputed=options.on_recomputed)
        paths[leaf] = _describe(assembled, view)
    if is_tree and paths:
        drafts = {leaf: (DraftSample(path, dict(path.sample.metadata)), path) for leaf, path in paths.items()}
        finished = run_hooks(options.hooks, drafts, _spell_lists(session_metadata))
    else:
        finished = [(path, path.sample) for path in paths.values()]
    kept = mark_reasons(finished)
    ledger = session_ledger + account(view, kept, empty)
    reason = None if kept else (EmptyReason.ALL_TRUNCATED if view.turns else EmptyReason.NO_RECORDS)
    return Collection(
        history=view.history,
        samples=tuple(_show_masked(each) for each in kept),
        session_metadata=_show_ledger(session_metadata, ledger),
        empty_reason=reason,
        ledger=ledger,
    )


def _describe(assembled: AssembledPath, view: SessionView) -> AssembledPath:
    """Give an assembled sample its metadata."""
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
    metadata[OWN_KEY] = describe_own(assembled, view)
    return replace(assembled, sample=replace(assembled.sample, metadata=metadata))


def _list_path_ids(assembled: AssembledPath) -> list[int]:
    """The whole path, which the sample may be cut from."""
    pieces = [
        piece
        for stretch in assembled.stretches
        for piece in (stretch.turn.prompt.ids, stretch.turn.completion.ids[: stretch.kept - stretch.sampled])
    ]
    ids: list[int] = np.concatenate(pieces).tolist()
    return ids


def _spell_lists(metadata: JsonObject) -> JsonObject:
    """Lists for the arrays that stand for them: what hooks expect."""
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in metadata.items()}


def _show_masked(kept: KeptSample) -> Sample:
    own = {**kept.sample.metadata[OWN_KEY], "masked": describe_masked(kept.reasons_R)}
    return replace(kept.sample, metadata={**kept.sample.metadata, OWN_KEY: own})


def _show_ledger(session_metadata: JsonObject, ledger: Ledger) -> JsonObject:
    own = {**session_metadata.get(OWN_KEY, {}), "accounting": ledger.to_json()}
    return {**session_metadata, OWN_KEY: own}
