"""Which rows a turn adds, and the whole rows of a path.

::

    parent path   t0 t1 t2 t3          rows  r0 r1 r2        (3 = 4 tokens - 1)
    child path    t0 t1 t2 t3 p p c c        .. .. .. r3 r4 r5 r6
                                             held     patch: row 3 is that of the parent's last token, as the
                                                      child fed it; where the edge trims that token, it is the
                                                      row of the marker at its place

Patches of a path follow one another without gap: each begins where the rows before it end. Rows that are held stay,
since they are those of the forward that sampled their token; a payload that covers them again is only compared
(``--r3-rows decode``), or taken whole (``latest``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels.routing.check import BadRow, RowFault, find_repeated, narrow_rows
from turnkeeper.channels.routing.codec import ENGINE_FLAG, OpenPayload, Payload, WrongLength, open_payload
from turnkeeper.channels.routing.held import HeldRows
from turnkeeper.channels.routing.request import RowsRequest
from turnkeeper.channels.routing.rows import RoutingRows, choose_dtype, join_rows
from turnkeeper.channels.routing.shape import RoutingShape
from turnkeeper.choices import OnBadRows, RowsKept
from turnkeeper.errors import AssemblyError, EngineProtocolError

RUN_ROWS = 32
"""The number of equal rows in a row that count as a run: an engine that captures nothing repeats its last row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The rows that one engine call adds to its path."""

    rows: RoutingRows
    """The rows from ``start`` to the end of the path."""
    start: int
    """The row of the path that ``rows`` begins with."""
    bad: BadRow | None
    """The first row that cannot be right, counted in the path; only under ``OnBadRows.MASK``."""
    equal_rows: int = 0
    """The number of rows that repeat the row before them in a run of `RUN_ROWS` equal rows or more: hardly a model's
    own choices."""
    changed_rows: int
    """The number of held rows for which the payload has other ids; 0 for an increment, which covers none of them."""


def take_patch(
    payload: Payload | None,
    *,
    request: RowsRequest,
    shape: RoutingShape,
    prompt_tokens: int,
    completion_tokens: int,
    held: Sequence[RoutingRows] = (),
    on_bad_rows: OnBadRows = OnBadRows.FAIL,
    kept: RowsKept = RowsKept.DECODE,
) -> Patch:
    """Decode a payload, cut the new rows out of it, check them.

    Args:
        payload: ``meta_info.routed_experts`` of the reply.
        request: what the call asked for.
        shape: what a row of the model looks like.
        prompt_tokens: length of the whole prompt.
        completion_tokens: how many ids the reply holds; at least 1.
        held: the stored rows of the path's turns in order; only compared, so they may be left out where nobody
            counts changes. Where a turn holds all rows of its path, those before it are passed over.
        on_bad_rows: fail, or go on and name the first bad row.
        kept: says whether a whole payload replaces the rows that are held.

    Raises:
        EngineProtocolError: no payload, not base64; or bad rows under ``OnBadRows.FAIL``, with the likely cause.
        ValueError: ``held`` does not come to ``request.held_rows`` rows.
    """
    first, stop = request.payload_start, prompt_tokens + completion_tokens - 1
    start = first if kept is RowsKept.LATEST else request.held_rows
    opened = open_payload(payload, shape=shape, start=first, stop=stop)
    if isinstance(opened, WrongLength):
        fault = BadRow(row=start, fault=RowFault.WRONG_LENGTH, detail=opened.detail)
        _refuse(fault, opened.hint, on_bad_rows)
        return Patch(rows=_build_zeros(shape, stop - start), start=start, bad=fault, changed_rows=0)
    read = _read_rows(opened, first, start, HeldRows(held, request.held_rows))
    if read.bad:
        _refuse(read.bad, _guess_cause(read.bad, prompt_tokens), on_bad_rows)
    return read


def _read_rows(opened: OpenPayload, first: int, start: int, held: HeldRows) -> Patch:
    """Decode the rows from ``first`` on: those before ``start`` are only compared with what is held."""
    shape = opened.shape
    experts_RLK = np.empty((first + opened.rows - start, shape.layers, shape.topk), dtype=choose_dtype(shape.experts))
    changed, row = 0, first
    bad: BadRow | None = None
    for block in opened.iter_blocks():
        changed += held.count_changed(block, row)
        since = max(start, row)
        fresh = block[since - row :]
        stray = narrow_rows(fresh, experts_RLK[since - start : since - start + len(fresh)], shape)
        if stray and not bad:
            bad = replace(stray, row=since + stray.row)
        row += len(block)
    # Behind a row with foreign ids nothing is looked at: the first bad row is what counts.
    repeated = find_repeated(experts_RLK[: bad.row - start if bad else None])
    if repeated:
        bad = replace(repeated, row=start + repeated.row)
    return Patch(
        rows=RoutingRows(experts_RLK=experts_RLK),
        start=start,
        bad=bad,
        changed_rows=changed,
        equal_rows=count_equal(experts_RLK),
    )


def count_equal(experts_RLK: NDArray[np.integer[Any]]) -> int:
    """Count the rows that repeat the row before them, in runs of at least `RUN_ROWS` equal rows."""
    rows = len(experts_RLK)
    if rows < RUN_ROWS:
        return 0
    flat = np.ascontiguousarray(experts_RLK).reshape(rows, -1)
    whole = flat.view(np.dtype((np.void, flat.shape[1] * flat.itemsize)))[:, 0]
    repeats = np.flatnonzero(whole[1:] == whole[:-1])
    if len(repeats) < RUN_ROWS - 1:
        return 0
    runs = np.split(repeats, np.flatnonzero(np.diff(repeats) > 1) + 1)
    return sum(len(run) for run in runs if len(run) >= RUN_ROWS - 1)


def join_patches(patches: Sequence[Patch]) -> Patch:
    """Join the patches of the reply parts of one turn, which was aborted and resumed.

    Raises:
        EngineProtocolError: a patch does not begin where the one before it ends.
    """
    for before, after in pairwise(patches):
        if after.start != before.start + len(before.rows):
            raise EngineProtocolError(
                f"the rows of a resumed call begin at {after.start}, those before end at "
                f"{before.start + len(before.rows)}"
            )
    return Patch(
        rows=join_rows([patch.rows for patch in patches]),
        start=patches[0].start,
        bad=next((patch.bad for patch in patches if patch.bad), None),
        changed_rows=sum(patch.changed_rows for patch in patches),
        equal_rows=sum(patch.equal_rows for patch in patches),
    )


def assemble_rows(patches: Sequence[RoutingRows], path_tokens: Sequence[int]) -> RoutingRows:
    """Join the patches of a path to all of its rows.

    Args:
        patches: one for each turn from the root: its own patch, or all rows of its path (``RowsKept.LATEST``).
        path_tokens: the length of the path at the end of each of these turns; parallel to ``patches``.

    Returns:
        ``path_tokens[-1] - 1`` rows.

    Raises:
        AssemblyError: a turn has neither its own rows nor all of them.
    """
    pieces: list[RoutingRows] = []
    held = 0
    for turn, (patch, tokens) in enumerate(zip(patches, path_tokens, strict=True)):
        start = tokens - 1 - len(patch)
        if start == 0:
            pieces = []
        elif start != held:
            raise AssemblyError(
                f"turn {turn} of the path holds {len(patch)} routing rows; its {tokens} tokens need rows "
                f"{held}..{tokens - 1}, or all {tokens - 1}",
                turn=turn,
            )
        pieces.append(patch)
        held = tokens - 1
    return pieces[0] if len(pieces) == 1 else join_rows(pieces)


def _build_zeros(shape: RoutingShape, rows: int) -> RoutingRows:
    return RoutingRows(experts_RLK=np.zeros((rows, shape.layers, shape.topk), dtype=choose_dtype(shape.experts)))


def _refuse(bad: BadRow, hint: str, on_bad_rows: OnBadRows) -> None:
    if on_bad_rows is OnBadRows.FAIL:
        raise EngineProtocolError(
            f"routed_experts has bad rows ({bad.fault}) from row {bad.row}: {bad.detail}",
            hint=hint,
            row=bad.row,
            fault=str(bad.fault),
        )


def _guess_cause(bad: BadRow, prompt_tokens: int) -> str:
    if bad.fault is RowFault.ALL_ZERO:
        return f"start the engine with {ENGINE_FLAG}; under prefill/decode disaggregation use the /generate wire"
    if bad.fault is RowFault.OUT_OF_RANGE:
        return "the checkpoint's config.json or --num-experts does not describe the model that the engine serves"
    if bad.row < prompt_tokens - 1:
        return (
            "prompt rows like these come from a prefill/decode disaggregated engine behind a router that does not "
            "merge them; use the /generate wire there"
        )
    return "the engine failed to capture these rows, or padded them"
