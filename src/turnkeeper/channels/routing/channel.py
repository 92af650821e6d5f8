"""Routing rows as a side channel: which of a turn's rows are asked for, kept, masked, stored and put into samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
    MaskedSpan,
    PathTurn,
    SampleTensor,
    TakePayload,
    TurnPlan,
)
from turnkeeper.channels.packed import Payload
from turnkeeper.channels.routing.codec import encode_rows
from turnkeeper.channels.routing.patch import Patch, assemble_rows, join_patches, take_patch
from turnkeeper.channels.routing.request import RowsRequest, plan_rows
from turnkeeper.channels.routing.rows import RoutingRows
from turnkeeper.channels.routing.shape import RoutingShape, read_routing_shape
from turnkeeper.channels.run import ItemRun
from turnkeeper.choices import OnBadRows, OnRecomputed, RowsKept
from turnkeeper.errors import AssemblyError, ConfigError, EngineProtocolError, TokenIntegrityError
from turnkeeper.fields import Wire
from turnkeeper.jsontypes import JsonObject

_INLINE_TEXT = 1 << 24
"""The length of payload text up to which rows are checked in the event loop: they are decoded by then, and checked in 2
ms. In a thread they would first wait for others, beside large ones 10 ms and more."""

RECOMPUTED = "rows_recomputed"
"""The mark of a turn whose rows the engine computed again, and the reason why its tokens carry no loss."""
BAD_FROM = "bad_rows_from"
"""The mark that names the first row of a turn that cannot be right."""


class RoutedExperts(Channel):
    """The experts that each token was routed to."""

    name = "routed_experts"
    label = "experts"
    stored_as = "rows"
    stored_runs = ("routed_experts",)
    members = ("routed_experts", "prompt_routed_experts")
    payload_keys = ("routed_experts", "prompt_routed_experts")
    fields = ("return_routed_experts", "routed_experts_start_len")
    needs_prompt_count = True
    needs_checkpoint = True
    lossy_streams = frozenset({"/v1/completions"})
    tensors = (
        SampleTensor(
            name="rollout_routed_experts",
            dtype=np.dtype("<i4"),
            shape="[T-1, layers, topk]",
            null="no routing replay",
            meaning="Row i: the experts of token i as input.",
        ),
    )

    def render(self, wire: Wire, asked: RowsRequest) -> JsonObject:
        is_vllm = wire is Wire.VLLM  # whose server sends rows with every reply, by its own flag
        fields: JsonObject = {} if is_vllm else {"return_routed_experts": True}
        if asked.start_len is not None:
            fields["routed_experts_prompt_start" if is_vllm else "routed_experts_start_len"] = asked.start_len
        return fields

    def read(self, wire: Wire, holder: JsonObject, take: TakePayload) -> Payload | None:
        return take("routed_experts")

    def is_on(self, options: Mapping[str, Any]) -> bool:
        return options["use_rollout_routing_replay"]

    def open(self, settings: CaptureSettings) -> "RowsCapture":
        options = settings.options
        shape = read_routing_shape(
            settings.checkpoint,
            layers=options["num_layers"],
            topk=options["moe_router_topk"],
            experts=options["num_experts"],
        )
        if shape is None:
            raise ConfigError(
                "--use-rollout-routing-replay needs a mixture of experts, and config.json describes none",
                hint="--num-layers, --moe-router-topk and --num-experts say what config.json does not",
            )
        return RowsCapture(
            self,
            shape,
            use_increments=settings.use_increments,
            on_bad_rows=options["on_bad_rows"],
            kept=options["r3_rows"],
            on_recomputed=options["r3_recomputed"],
        )

    def restore(self, runs: Sequence[ItemRun]) -> RoutingRows:
        (run,) = runs
        return RoutingRows.over(run)

    def check_added(
        self, items: RoutingRows, parent_items: RoutingRows | None, *, parent_tokens: int, path_tokens: int
    ) -> None:
        expected, whole = path_tokens - 1 - max(0, parent_tokens - 1), path_tokens - 1
        if len(items) not in (expected, whole):
            raise TokenIntegrityError(
                f"a turn that grows a path of {parent_tokens} tokens to {path_tokens} adds {expected} rows "
                f"(all of its path: {whole}), not {len(items)}",
                index=max(0, parent_tokens - 1),
                expected=expected,
                found=len(items),
            )

    def show(self, items: RoutingRows) -> JsonObject:
        return {"routed_experts": encode_rows(items)}

    def show_asked(self, items: RoutingRows, *, parent_tokens: int, use_increments: bool) -> JsonObject:
        start: JsonObject = {"routed_experts_start_len": max(0, parent_tokens - 1)} if use_increments else {}
        return {"return_routed_experts": True, **start}

    def tell(self, asked: RowsRequest) -> JsonObject:
        return {"rows_from": asked.payload_start}

    def assemble(self, turns: Sequence[PathTurn], *, tokens: int) -> Mapping[str, NDArray[Any]]:
        present: list[RoutingRows] = [turn.channels[self.name] for turn in turns if self.name in turn.channels]
        if not present:
            return {}
        if len(present) != len(turns):
            missing = next(turn.number for turn in turns if self.name not in turn.channels)
            raise AssemblyError(f"turn {missing} has no routing rows, other turns of its path have", turn=missing)
        rows = assemble_rows(present, [turn.stop for turn in turns])
        return {"rollout_routed_experts": rows.cut(0, tokens - 1).experts_RLK}

    def check_tensors(
        self, tensors: Mapping[str, NDArray[Any]], *, tokens: int, loss_mask: NDArray[Any], turns: Sequence[JsonObject]
    ) -> str | None:
        rows = tensors.get("rollout_routed_experts")
        if rows is None or len(rows) == max(0, tokens - 1):
            return None
        return f"rollout_routed_experts has {len(rows)} rows, {tokens} tokens need one less"

    def list_masked_marks(self, options: Mapping[str, Any]) -> Sequence[str]:
        return (RECOMPUTED,) if options["r3_recomputed"] is OnRecomputed.MASK else ()

    def find_masked(self, turns: Sequence[PathTurn], masked_marks: frozenset[str]) -> Sequence[MaskedSpan]:
        spans: list[MaskedSpan] = []
        if RECOMPUTED in masked_marks:
            spans = [
                MaskedSpan(reason=RECOMPUTED, start=turn.sampled, stop=turn.kept)
                for turn in turns
                if turn.marks.get(RECOMPUTED)
            ]
        bad_from = _find_bad_from(turns)
        if bad_from is not None:
            # Row r is the forward that samples token r + 1; every later token stands on it.
            spans.append(MaskedSpan(reason="bad_rows", start=bad_from + 1, stop=turns[-1].kept, wins_over_hook=True))
        return spans


def _find_bad_from(turns: Sequence[PathTurn]) -> int | None:
    """Find the first bad row of the path. A payload that replaced all earlier rows replaced their faults as well."""
    bad: int | None = None
    for turn in turns:
        rows = turn.channels.get(RoutedExperts.name)
        if rows is not None and len(rows) == turn.stop - 1:
            bad = None
        own = turn.marks.get(BAD_FROM)
        if own is not None:
            bad = own if bad is None else min(bad, own)
    return bad


class RowsCapture(Capture):
    """Routing rows as a server asks for them."""

    def __init__(
        self,
        channel: Channel,
        shape: RoutingShape,
        *,
        use_increments: bool,
        on_bad_rows: OnBadRows = OnBadRows.FAIL,
        kept: RowsKept = RowsKept.DECODE,
        on_recomputed: OnRecomputed = OnRecomputed.KEEP,
    ) -> None:
        """Ask for rows with every turn.

        Args:
            channel: the declaration.
            shape: what a row of the model looks like.
            use_increments: True to ask for the rows that a turn adds; False for all rows of its path.
            on_bad_rows: what becomes of a reply whose rows cannot be true.
            kept: says whether a whole payload replaces the rows that are held.
            on_recomputed: what becomes of a turn whose rows the engine computed again.
        """
        self.channel = channel
        self.shape = shape
        self._use_increments = use_increments
        self._on_bad_rows = on_bad_rows
        self._kept = kept
        self._on_recomputed = on_recomputed

    def plan(self, turn: TurnPlan) -> RowsRequest:
        return plan_rows(
            parent_tokens=turn.parent_tokens, common_prefix=turn.common_prefix, use_addition_r3=self._use_increments
        )

    def list_held(self, asked: RowsRequest, find_path: Callable[[], HeldPath]) -> Sequence[RoutingRows]:
        return () if asked.start_len is not None else tuple(rows for rows in find_path().items if rows is not None)

    def plan_next(self, asked: RowsRequest, taken: Patch, prompt_tokens: int) -> RowsRequest:
        """Ask for the rows behind those that are held and checked; their start is never taken from the next part."""
        verified = taken.start + len(taken.rows)
        return plan_rows(
            parent_tokens=verified + 1, common_prefix=prompt_tokens, use_addition_r3=asked.start_len is not None
        )

    def take(
        self,
        payload: Payload | None,
        asked: RowsRequest,
        call: CallFacts,
        *,
        held: Sequence[RoutingRows],
        earlier: Sequence[Patch],
    ) -> Patch:
        # Only a whole payload repeats earlier rows, and they are compared only where all of them are at hand.
        stored = (*held, *(patch.rows for patch in earlier)) if asked.start_len is None else ()
        return take_patch(
            payload,
            request=asked,
            shape=self.shape,
            prompt_tokens=call.prompt_tokens,
            completion_tokens=len(call.ids),
            held=stored if sum(map(len, stored)) >= asked.held_rows else (),
            on_bad_rows=self._on_bad_rows,
            kept=self._kept,
        )

    def weigh_take(self, payload: Payload | None) -> int:
        size = len(payload or b"")
        return size if size > _INLINE_TEXT else 0

    def join(self, taken: Sequence[Patch], *, prompt_tokens: int, counts: Sequence[int], count: int) -> Patch:
        # A payload that begins where the first one does, or before, was taken whole: it replaces all earlier ones.
        since = max((index for index, patch in enumerate(taken) if patch.start <= taken[0].start), default=0)
        joined = join_patches(taken[since:])
        rows = joined.rows.cut(0, prompt_tokens + count - 1 - joined.start)
        return replace(joined, rows=rows, changed_rows=sum(patch.changed_rows for patch in taken))

    def finish(self, taken: Patch, turn: CallFacts, *, held: Sequence[RoutingRows]) -> Kept:
        return Kept(items=taken.rows, marks=self._collect_marks(taken, turn))

    def _collect_marks(self, patch: Patch, turn: CallFacts) -> dict[str, Any]:
        marks: dict[str, Any] = {}
        if patch.changed_rows:
            marks["rows_changed"] = patch.changed_rows
        if patch.equal_rows:
            marks["rows_equal"] = patch.equal_rows
        if patch.bad is not None:
            marks |= {BAD_FROM: patch.bad.row, "bad_rows": f"{patch.bad.fault}: {patch.bad.detail}"}
        if turn.num_retractions and turn.has_mixed_versions:
            marks[RECOMPUTED] = True
            if self._on_recomputed is OnRecomputed.FAIL:
                raise EngineProtocolError(
                    f"the engine computed routing rows of the turn again ({turn.num_retractions} "
                    "retractions), so they are not those that sampled its tokens",
                    hint="--r3-recomputed keep or mask records such turns",
                    url=turn.url,
                )
        return marks

    foreign_items = "the routing rows of a prompt do not depend on its tokens"

    def probe(self, payload: Payload | None, asked: RowsRequest, call: CallFacts) -> Patch:
        return take_patch(
            payload,
            request=asked,
            shape=self.shape,
            prompt_tokens=call.prompt_tokens,
            completion_tokens=len(call.ids),
        )

    def find_prompt_items(self, taken: Patch, prompt_tokens: int) -> NDArray[np.unsignedinteger]:
        return taken.rows.experts_RLK[: prompt_tokens - taken.start]

    def measure_likeness(self, one: NDArray[np.unsignedinteger], other: NDArray[np.unsignedinteger]) -> float:
        """Return the share of rows and layers with the same experts in both; layers without experts do not count."""
        has_experts_L = (one.any(axis=(0, 2))) | (other.any(axis=(0, 2)))
        if not has_experts_L.any():
            return 1.0
        same_RL = (np.sort(one, axis=-1) == np.sort(other, axis=-1)).all(axis=-1)
        return float(same_RL[:, has_experts_L].mean())
