"""Side channels: what an engine reports of each token beside its id, its log-probability and its version.

Routing rows, the choices of a sparse-attention indexer and sampling masks are side channels. All of them take the same
way, and what is particular to one stands in its declaration, a `Channel`, and nowhere else::

    plan      what a turn asks for                                 Capture.plan, Channel.render
    read      the payload, out of the parsed reply                 Channel.read
    take      the items of one engine call, decoded and checked    Capture.take
    join      those of a turn that was aborted and resumed         Capture.join
    finish    what the turn keeps, and its marks                   Capture.finish
    check     that it fits the path before it is recorded          Channel.check_added
    keep      its runs of items, in memory or in a store           Items.runs, Channel.restore
    assemble  the tensors of a path's sample                       Channel.assemble

A `Channel` knows how items are spelled, stored and joined, whatever a server's options are: sessions that an earlier
server recorded are read by it too. A `Capture` is a channel as one server asks for it, by that server's options.
`turnkeeper.channels.table` lists the channels. Nothing here knows a session, a socket or the text of a reply.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels.run import ItemRun
from turnkeeper.fields import Wire
from turnkeeper.jsontypes import JsonObject

TakePayload: TypeAlias = Callable[[str], Any]
"""Takes what stands under a key of the reply: a payload in base64, as text or decoded while it came in, or `IdLists`
that were read apart; None where there is neither."""


class Items(Protocol):
    """What a turn keeps of a channel: one run of items, or several that belong together."""

    @property
    def runs(self) -> tuple[ItemRun, ...]:
        """The runs, in the order of the channel's ``stored_runs``."""
        ...


class Asked(Protocol):
    """What one engine call is asked for on a channel."""

    @property
    def payload_start(self) -> int:
        """The position of the prompt that the payload begins with; the prompt's length where it covers none of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTensor:
    """One tensor that a channel adds to samples."""

    name: str
    dtype: np.dtype[Any]
    """On the wire; in memory it may be narrower."""
    shape: str
    """For readers: T tokens, R of them behind the first prompt."""
    null: str
    """The meaning of null."""
    meaning: str
    is_left_out_when_null: bool = False
    """True where a sample without the tensor does not name it either, as readers that do not know it expect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """What a server says about its captures."""

    options: Mapping[str, Any]
    """The options of replay and of the model, by name."""
    use_increments: bool
    """True where an update leaves earlier items as they are, so that a turn may ask for new ones only: in every pause
    mode but retract."""
    checkpoint: JsonObject = field(default_factory=dict[str, Any])
    """The checkpoint's ``config.json``."""
    vocabulary_size: int | None = None
    """The number of ids that the model has, padding included; None when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    """A turn before its call, as far as it decides what is asked for."""

    prompt_tokens: int
    parent_tokens: int
    """The length of the parent's path; 0 for a root."""
    common_prefix: int
    """The number of leading ids that the prompt shares with that path."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The effective sampler under chat-completions names, with the fields that are forwarded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldPath:
    """What the turns of a path keep of a channel, from the root."""

    items: Sequence[Any]
    """None for a turn that keeps nothing."""
    path_tokens: Sequence[int]
    """The length of the path at the end of each of these turns; parallel to ``items``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallFacts:
    """One engine call that has ended, or all engine calls of a turn together, as the check of items needs them."""

    url: str
    """The engine that answered."""
    prompt_tokens: int
    ids: NDArray[np.int32]
    """Shape [C]: the sampled ids."""
    cut_tokens: int = 0
    """The number of sampled ids behind these that no turn records."""
    num_retractions: int = 0
    """The number of times that the engine computed the request's KV again."""
    has_mixed_versions: bool = False
    """True where the tokens are of several weight versions, or of an unknown one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a turn keeps of a channel."""

    items: Items | None
    """None where it keeps nothing."""
    marks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Marks of the turn, JSON-ready."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathTurn:
    """One turn of a path from which a sample is made. Positions are places in the ids of the path."""

    number: int
    """The turn's id, for messages."""
    channels: Mapping[str, Any]
    """What the turn keeps of side channels, by the channel's name."""
    sampled: int
    """Where its completion begins."""
    kept: int
    """Where the part of its completion ends that its path keeps, which is the sample's end at most."""
    stop: int
    """Where its own path ends, before anything is trimmed or cut."""
    logprobs: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Shape [C]: those of its completion."""
    marks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The sampling parameters that the turn was sampled with, under the names of chat completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSpan:
    """Sampled tokens that carry no loss."""

    reason: str
    """The value of a mask reason."""
    start: int
    """The position in the path of the first token."""
    stop: int
    wins_over_hook: bool = False
    """True where the reason stands also for tokens of turns that are not trained anyway."""


class Channel(ABC):
    """The declaration of a side channel."""

    name: ClassVar[str]
    """The name of the channel. It is the key of the channel's items in a completion, and of its payload in a parsed
    reply."""
    label: ClassVar[str]
    """One word for it in the line that a server says at its start."""
    stored_as: ClassVar[str]
    """The key of its items in stored records, which never changes."""
    stored_runs: ClassVar[tuple[str, ...]]
    """The names of its runs in a store, which never change."""
    members: ClassVar[tuple[str, ...]]
    """The members of a reply's meta data that hold its payload."""
    payload_keys: ClassVar[tuple[str, ...]] = ()
    """Those members that are base64, which are decoded apart from the JSON while they come in."""
    list_keys: ClassVar[tuple[str, ...]] = ()
    """Those members that are lists of lists of ids, which are read apart from the JSON."""
    fields: ClassVar[tuple[str, ...]]
    """The fields of requests by which engines are asked for it; no agent can set them."""
    needs_prompt_count: ClassVar[bool] = False
    """True where its items have their places by the prompt's length as the engine counted it."""
    lossy_streams: ClassVar[frozenset[str]] = frozenset()
    """The routes whose streams lose its payload, so that a turn that asks for it is fetched whole there."""
    needs_checkpoint: ClassVar[bool] = False
    """True where ``open`` reads sizes of the model out of the checkpoint's ``config.json``."""
    tensors: ClassVar[tuple[SampleTensor, ...]]

    # Asking and reading.

    def is_lost(self, route: str, asked: Any) -> bool:
        """Return True if streams of a route lose the payload, or carry it at too high a cost."""
        return route in self.lossy_streams

    @abstractmethod
    def render(self, wire: Wire, asked: Any) -> JsonObject:
        """Render the fields that ask for the items: members of the body, on vLLM's wires of the sampling parameters."""

    @abstractmethod
    def read(self, wire: Wire, holder: JsonObject, take: TakePayload) -> Any:
        """Read the payload out of a parsed reply; None where there is none.

        Args:
            wire: where the reply comes from.
            holder: ``meta_info``, or the choice on vLLM's wires.
            take: takes a payload out of the holder, decoded or as text.
        """

    @abstractmethod
    def is_on(self, options: Mapping[str, Any]) -> bool:
        """Return True if options ask for the channel."""

    @abstractmethod
    def open(self, settings: CaptureSettings) -> "Capture":
        """Make the capture of a server whose options ask for the channel.

        Raises:
            ConfigError: the options do not fit the model.
        """

    # Keeping.

    def restore(self, runs: Sequence[ItemRun]) -> Items:
        """Make items of the runs that a store has of them."""
        (run,) = runs
        return run

    @abstractmethod
    def check_added(self, items: Any, parent_items: Any, *, parent_tokens: int, path_tokens: int) -> None:
        """Check that items fit what a turn adds to its path.

        Args:
            items: what the turn is to keep.
            parent_items: what its parent keeps; None for nothing, or for a root.
            parent_tokens: the length of the parent's path; 0 for a root.
            path_tokens: the length of the turn's path.

        Raises:
            TokenIntegrityError: they do not; the turn may not be recorded.
        """

    def show(self, items: Any) -> JsonObject:
        """Spell items as a reply's meta data would, for people who ask for a turn's record with them."""
        return {}

    def show_asked(self, items: Any, *, parent_tokens: int, use_increments: bool) -> JsonObject:
        """Spell the fields of the request that was answered with items, for the record of a turn."""
        return {}

    def tell(self, asked: Any) -> JsonObject:
        """Return what the log says of a call that asks for the channel."""
        return {}

    # Samples.

    @abstractmethod
    def assemble(self, turns: Sequence[PathTurn], *, tokens: int) -> Mapping[str, NDArray[Any]]:
        """Make the tensors of a sample.

        Args:
            turns: those of the path that the sample keeps, from the root.
            tokens: how many tokens the sample keeps.

        Returns:
            The tensors by name; none where the turns keep no items. ``rollout_log_probs`` among them takes the place of
            the log-probabilities that the turns' completions have.

        Raises:
            AssemblyError: the items of the turns do not make those of the path.
        """

    @abstractmethod
    def check_tensors(
        self, tensors: Mapping[str, NDArray[Any]], *, tokens: int, loss_mask: NDArray[Any], turns: Sequence[JsonObject]
    ) -> str | None:
        """Find what is wrong with the tensors of a sample; None where nothing is.

        Args:
            tensors: all tensors of the sample that channels added, by name.
            tokens: the number of its tokens.
            loss_mask: shape [R]: 1 on tokens that train.
            turns: what the sample's metadata says of its turns; empty where it says nothing yet.
        """

    def list_masked_marks(self, options: Mapping[str, Any]) -> Sequence[str]:
        """List the marks of turns that these options want masked in samples."""
        return ()

    def find_masked(self, turns: Sequence[PathTurn], masked_marks: frozenset[str]) -> Sequence[MaskedSpan]:
        """Find the sampled tokens that carry no loss because of the channel.

        Args:
            turns: those of the path that the sample keeps, from the root.
            masked_marks: the marks whose turns are to be masked.
        """
        return ()


class Capture(ABC):
    """A channel as one server asks for it. Methods are pure; the large work of ``take`` and ``finish`` may be done in a
    thread."""

    channel: Channel

    @abstractmethod
    def plan(self, turn: TurnPlan) -> Asked | None:
        """Decide what a turn asks for; None for nothing.

        Raises:
            TurnkeeperError: the turn cannot be asked for in this way.
        """

    def list_held(self, asked: Any, find_path: Callable[[], HeldPath]) -> Sequence[Any]:
        """List the items of the parent's path that the payload will cover again; none where nothing is compared.

        Args:
            asked: what ``plan`` returned.
            find_path: finds what the turns of the parent's path keep, which costs as much as they are many.
        """
        return ()

    def plan_next(self, asked: Any, taken: Any, prompt_tokens: int) -> Asked:
        """Decide what the next call of an interrupted turn asks for.

        Args:
            asked: what the turn's first call asked for.
            taken: what was taken of the last part.
            prompt_tokens: the length of the next call's prompt.
        """
        return asked

    @abstractmethod
    def take(self, payload: Any, asked: Any, call: CallFacts, *, held: Sequence[Any], earlier: Sequence[Any]) -> Any:
        """Take the items of one engine call, decoded and checked as far as the call alone allows.

        Args:
            payload: what ``Channel.read`` found in the reply.
            asked: what the call asked for.
            call: the call; it sampled at least one token.
            held: from ``list_held``.
            earlier: what was taken of the parts before, where the turn was interrupted.

        Raises:
            EngineProtocolError: there is no payload, or it is wrong; the message names the likely cause.
        """

    def join(self, taken: Sequence[Any], *, prompt_tokens: int, counts: Sequence[int], count: int) -> Any:
        """Join what was taken of the parts of one turn.

        Args:
            taken: at least one, in order.
            prompt_tokens: the length of the turn's own prompt.
            counts: the number of sampled ids of each part.
            count: the number of them, of all parts together, that the turn records.
        """
        return taken[-1]

    @abstractmethod
    def finish(self, taken: Any, turn: CallFacts, *, held: Sequence[Any]) -> Kept:
        """Make of the taken items what the turn keeps.

        Args:
            taken: from ``take``, or from ``join``.
            turn: all calls of the turn together.
            held: from ``list_held``.

        Raises:
            EngineProtocolError: the items are not there, or the options refuse the turn.
        """

    def weigh_take(self, payload: Any) -> int:
        """Return the size of the work of ``take`` in bytes, by which it is done in a thread or at once."""
        return 0

    def weigh_finish(self, taken: Any) -> int:
        """Return the size of the work of ``finish`` in bytes, by which it is done in a thread or at once."""
        return 0

    # The check of a route.

    def shape_probe(self, sampling: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the sampler with which a probe finds out whether a route keeps the channel."""
        return sampling

    foreign_items: ClassVar[str] = ""
    """The message of the route check for a route that returns items of other tokens than those of the prompt."""

    def probe(self, payload: Any, asked: Any, call: CallFacts) -> Any:
        """Take the items of a probe, which is refused where a turn would be, and where its items are bad.

        Raises:
            EngineProtocolError: as ``take`` and ``finish`` raise it.
        """
        return self.take(payload, asked, call, held=(), earlier=())

    def find_prompt_items(self, taken: Any, prompt_tokens: int) -> Any:
        """Return the items of a prompt's tokens, which tell one prompt from another; None where there are none."""
        return None

    def measure_likeness(self, one: Any, other: Any) -> float:
        """Return the share of equal items of two prompts, from 0 to 1."""
        return 1.0
