"""The choices of the sparse-attention indexer: every payload has those of a whole path, a turn keeps what it adds.

::

    turn 0    payload 0..9     kept 0..9
    turn 1    payload 0..19    kept 9..19, where rows 0..9 are those that turn 0 keeps; else all of them

So the rows of a path are those of its last turn's payload, byte for byte, and each is held once. The payload is whole
in every pause mode, and that of the last reply part covers a turn that was resumed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels.channel import (
    CallFacts,
    Capture,
    CaptureSettings,
    Channel,
    HeldPath,
    Kept,
    PathTurn,
    SampleTensor,
    TakePayload,
    TurnPlan,
)
from turnkeeper.channels.packed import Payload, pack_payload
from turnkeeper.channels.run import ItemRun, join_arrays
from turnkeeper.errors import AssemblyError, EngineProtocolError, TokenIntegrityError
from turnkeeper.fields import Wire
from turnkeeper.jsontypes import JsonObject

_ID_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePath:
    """The rows of a whole path, prompt and completion, which is all that an indexer can be asked for."""

    @property
    def payload_start(self) -> int:
        """The payload begins with the first row."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerPayload:
    """The payload of a reply."""

    rows: Payload | None
    """``meta_info.indexer_topk``; None when absent."""
    layers: int | None
    """``meta_info.indexer_topk_num_layers``; None when absent."""


class IndexerTopk(Channel):
    """The indexer's choices as a side channel."""

    name = "indexer_topk"
    label = "indexer"
    stored_as = "indexer_rows"
    stored_runs = ("indexer_topk",)
    members = ("indexer_topk",)
    payload_keys = ("indexer_topk",)
    fields = ("return_indexer_topk",)
    tensors = (
        SampleTensor(
            name="rollout_indexer_topk",
            dtype=np.dtype("<i4"),
            shape="[T-1, layers, topk]",
            null="no indexer replay",
            meaning="Sparse-attention choices, as the engine sent them.",
        ),
    )

    def render(self, wire: Wire, asked: WholePath) -> JsonObject:
        return {} if wire is Wire.VLLM else {"return_indexer_topk": True}

    def read(self, wire: Wire, holder: JsonObject, take: TakePayload) -> IndexerPayload:
        layers = holder.get("indexer_topk_num_layers")
        is_count = isinstance(layers, int) and not isinstance(layers, bool) and layers >= 0
        return IndexerPayload(rows=take("indexer_topk"), layers=layers if is_count else None)

    def is_on(self, options: Mapping[str, Any]) -> bool:
        return options["use_rollout_indexer_replay"]

    def open(self, settings: CaptureSettings) -> "IndexerCapture":
        return IndexerCapture(self)

    def check_added(
        self, items: ItemRun, parent_items: ItemRun | None, *, parent_tokens: int, path_tokens: int
    ) -> None:
        held_tokens = parent_tokens if parent_items is not None else 0
        added, whole = path_tokens - 1 - max(0, held_tokens - 1), path_tokens - 1
        if len(items) not in (added, whole):
            raise TokenIntegrityError(
                f"an indexer payload for {path_tokens} tokens has {whole} rows, not {len(items)}",
                index=0,
                expected=whole,
                found=len(items),
            )

    def assemble(self, turns: Sequence[PathTurn], *, tokens: int) -> Mapping[str, NDArray[Any]]:
        kept: list[ItemRun | None] = [turn.channels.get(self.name) for turn in turns]
        pieces = list_pieces(kept, [turn.stop for turn in turns])
        if pieces:
            rows = pieces[0].array if len(pieces) == 1 else join_arrays(pieces)
            return {"rollout_indexer_topk": rows[: tokens - 1]}
        if any(each is not None for each in kept):
            last = turns[-1].number
            raise AssemblyError(f"turn {last} has no indexer rows, earlier turns of its path have", turn=last)
        return {}

    def check_tensors(
        self, tensors: Mapping[str, NDArray[Any]], *, tokens: int, loss_mask: NDArray[Any], turns: Sequence[JsonObject]
    ) -> str | None:
        rows = tensors.get("rollout_indexer_topk")
        if rows is None or len(rows) == max(0, tokens - 1):
            return None
        return f"rollout_indexer_topk has {len(rows)} rows, {tokens} tokens need one less"


class IndexerCapture(Capture):
    """The indexer's choices as a server asks for them."""

    def __init__(self, channel: Channel) -> None:
        """Ask for them with every turn."""
        self.channel = channel

    def plan(self, turn: TurnPlan) -> WholePath:
        return WholePath()

    def list_held(self, asked: WholePath, find_path: Callable[[], HeldPath]) -> Sequence[ItemRun]:
        path = find_path()
        return list_pieces(path.items, path.path_tokens)

    def take(
        self,
        payload: IndexerPayload,
        asked: WholePath,
        call: CallFacts,
        *,
        held: Sequence[ItemRun],
        earlier: Sequence[Any],
    ) -> IndexerPayload:
        return payload  # that of the last part covers all parts, so nothing is decoded before

    def finish(self, taken: IndexerPayload, turn: CallFacts, *, held: Sequence[ItemRun]) -> Kept:
        if taken.rows is None or taken.layers is None:
            raise EngineProtocolError(
                f"indexer rows were asked for, the reply of {turn.url} has no indexer_topk",
                hint="the engine's build has no return_indexer_topk on this route",
                url=turn.url,
            )
        kept = turn.prompt_tokens + len(turn.ids) - 1
        decoded = decode_indexer(taken.rows, layers=taken.layers, rows=kept + turn.cut_tokens)
        return Kept(items=ItemRun(keep_added(decoded[:kept], held)))

    def probe(self, payload: IndexerPayload, asked: WholePath, call: CallFacts) -> IndexerPayload:
        if payload.rows is None:
            raise EngineProtocolError(
                "the reply has no indexer_topk: the engine's build does not serve it on this route", url=call.url
            )
        return payload

    def weigh_finish(self, taken: IndexerPayload) -> int:
        return 0 if taken.rows is None else len(taken.rows)


def decode_indexer(payload: Payload, *, layers: int, rows: int) -> NDArray[np.int32]:
    """Read ``meta_info.indexer_topk``, which is whole in every pause mode.

    Args:
        payload: base64 of raw little-endian int32.
        layers: ``meta_info.indexer_topk_num_layers``.
        rows: prompt + completion tokens - 1.

    Returns:
        Shape [rows, layers, topk], read-only; topk follows from the size.

    Raises:
        EngineProtocolError: not base64, or the size does not divide into the rows.
    """
    packed = pack_payload(payload, "indexer_topk")
    unit = rows * layers * _ID_BYTES
    size = packed.size_bytes
    if packed.npy is not None or layers < 1 or (size % unit if unit else size):
        raise EngineProtocolError(
            f"indexer_topk has {size} bytes, which do not divide into {rows} rows of {layers} layers",
            hint="indexer_topk covers the whole prompt and completion less the last token",
            expected_rows=rows,
        )
    ids = np.concatenate([np.empty(0, np.int32), *packed.iter_units(1)], dtype=np.int32)
    ids.setflags(write=False)
    return ids.reshape(rows, layers, size // unit if unit else 0)


def keep_added(payload_RLK: NDArray[np.int32], held: Sequence[ItemRun]) -> NDArray[np.int32]:
    """Cut a turn's payload to what the turn keeps of it.

    Args:
        payload_RLK: shape [rows, layers, topk]; the rows of the turn's whole path, read-only.
        held: the rows of the parent's path, in pieces; none where its turns hold none.

    Returns:
        The rows behind those held, or all of them where the payload has other rows in their place.
    """
    at = 0
    for piece in held:
        if not np.array_equal(payload_RLK[at : at + len(piece)], piece.array):
            return payload_RLK
        at += len(piece)
    if not at:
        return payload_RLK
    added = payload_RLK[at:].copy()  # a view would hold all of them
    added.setflags(write=False)
    return added


def list_pieces(kept: Sequence[ItemRun | None], path_tokens: Sequence[int]) -> tuple[ItemRun, ...]:
    """List the rows of a path in pieces.

    Args:
        kept: what each turn of the path keeps, from the root.
        path_tokens: the length of the path at the end of each of these turns; parallel to ``kept``.

    Returns:
        Pieces that together have ``path_tokens[-1] - 1`` rows; none where the last turn keeps none.

    Raises:
        AssemblyError: they do not come to so many rows.
    """
    if not kept or kept[-1] is None:
        return ()
    pieces: list[ItemRun] = []
    missing = path_tokens[-1] - 1
    for rows in reversed(kept):
        if rows is None or (pieces and not missing):
            break
        pieces.append(rows)
        missing -= len(rows)
    if missing:
        raise AssemblyError(
            f"the indexer rows that the turns of a path of {path_tokens[-1]} tokens hold leave {missing} out"
        )
    return tuple(reversed(pieces))
