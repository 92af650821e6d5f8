"""The values that labels of metrics have: those of the code, where an enumeration or a list of them exists.

Some lists stand here because their owner is a package further down; tests compare them with its own.
"""

import inspect

from turnkeeper import errors
from turnkeeper.core import Cause, DropReason
from turnkeeper.errors import EngineError, TurnkeeperError
from turnkeeper.fields import TABLE, is_reaching
from turnkeeper.samples.collect import UNTRAINED

OTHER = "other"
"""The value of a label for whatever is on no list, such as the names of fields that agents invent."""

ANSWERED, GIVEN_UP = "answered", "given_up"
"""The outcomes of engine calls that are no error: a reply, and a call that was given up before its reply."""

OBSERVED = "observed"
"""The mode of a pause that no trainer requested here: an engine was seen paused."""


def _list_codes(root: type[TurnkeeperError]) -> tuple[str, ...]:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    return tuple(sorted({each.code for each in classes if issubclass(each, root)}))


ERROR_CODES = _list_codes(TurnkeeperError)
"""The code of every error."""

CALL_OUTCOMES = (ANSWERED, GIVEN_UP, *_list_codes(EngineError), OTHER)
"""The outcomes of engine calls."""

LEAF_CAUSES = (
    *Cause,
    DropReason.SUPERSEDED,
    DropReason.UNDELIVERED,
    DropReason.OVER_MAX_SEQ_LEN,
    DropReason.NOT_PICKED,
    UNTRAINED,
)
"""The causes for which a turn without children ends no sample."""

FIELD_NAMES = (*sorted(row.name for row in TABLE if is_reaching(row)), OTHER)
"""The fields that some engine wire takes, and all others together."""

TASKS = (
    "engine_aborts",
    "engine_looks",
    "engine_routes",
    "engine_watch",
    "hang_up_watches",
    "loop_delay",
    "memory_relief",
    "reconnect_grace",
    "session_sweep",
    "store_retention",
    "tokenizer",
    "turn_delays",
    "turns",
)
"""The background tasks of a server, by the names that ``GET /health`` shows."""
