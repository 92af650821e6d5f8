"""The rows to ask the engine for, by pause mode.

::

    mode       a running request at a weight update      rows asked for
    in_place   frozen, resumes on its KV cache           the new ones: start = min(len(parent) - 1, common prefix)
    abort      ends with partial tokens                  the new ones: rows already delivered are append-only
    retract    requeued, KV computed again               all: earlier rows may have been computed again

Knows no payload.
"""

from dataclasses import dataclass

from turnkeeper.errors import TokenIntegrityError


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRequest:
    """The rows that one engine call is asked for, and which of them are new."""

    start_len: int | None
    """``routed_experts_start_len`` to send; None: the field is not sent, and the payload is whole."""
    held_rows: int
    """Rows 0..held_rows of the prompt are stored already and stay; the call adds those from here on."""

    @property
    def payload_start(self) -> int:
        """The row that the payload begins with."""
        return self.start_len or 0


def plan_rows(*, parent_tokens: int, common_prefix: int, use_addition_r3: bool) -> RowsRequest:
    """Decide what to ask for on behalf of a turn, or of the next call of an interrupted one.

    Args:
        parent_tokens: length of the path that is stored: that of the parent (0 for a root), or for a resumed turn the
            tokens whose generation it continues.
        common_prefix: how many leading ids the new prompt shares with that path.
        use_addition_r3: the capability that follows from the pause mode: true unless it is ``retract``.

    Raises:
        TokenIntegrityError: the stored rows are not a causal prefix of the new prompt.
    """
    held_rows = max(0, parent_tokens - 1)
    if common_prefix < held_rows:
        raise TokenIntegrityError(
            f"the prompt shares {common_prefix} ids with its parent's path of {parent_tokens}: "
            f"{held_rows} stored routing rows need as many",
            index=common_prefix,
            expected=held_rows,
            found=common_prefix,
        )
    return RowsRequest(start_len=held_rows if use_addition_r3 else None, held_rows=held_rows)
