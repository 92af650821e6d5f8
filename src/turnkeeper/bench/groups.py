"""The options that are compared with each other; see `turnkeeper.bench.comparison` for how.

A new group is a `Comparison` in ``COMPARISONS``: a base, and variants with the flags that set each apart from it, and
with the limits that the budget judges it by.
"""

from dataclasses import replace
from importlib.util import find_spec

from turnkeeper.bench.comparison import Comparison, Measure, Variant
from turnkeeper.bench.scenario import Case, Rows
from turnkeeper.choices import TokenizerBackend

_QUIET = ("--log-level", "error")
_PLAIN = Variant(name="as little as can be", flags=_QUIET)
_LOG_LIMITS = {Measure.SPEED: 2.0}
_SPAN_LIMITS = {Measure.LOOP_YARDSTICKS: 0.03}
"""0.1 ms on a machine where a yardstick takes 3.5 ms."""

TELEMETRY = Comparison(
    name="telemetry",
    case=Case(sessions=16),
    base=_PLAIN,
    variants=(
        replace(_PLAIN, name="the same again: the noise of this run"),
        Variant(name="log at info, text", limits=_LOG_LIMITS),
        Variant(name="log at info, JSON", flags=("--log-format", "json"), limits=_LOG_LIMITS),
        replace(_PLAIN, name="metrics, scraped each second", is_scraped=True, limits={Measure.SPEED: 2.0}),
        Variant(name="traces of all turns", flags=(*_QUIET, "--trace-endpoint", "{collector}"), limits=_SPAN_LIMITS),
    ),
)
"""What a turn costs more with each way of telling what the server does."""

LOGS = Comparison(
    name="detailed logs",
    case=Case(sessions=16),
    base=_PLAIN,
    variants=(
        Variant(name="log at info, JSON, access log", flags=("--log-format", "json", "--access-log")),
        Variant(name="log at debug, JSON", flags=("--log-format", "json", "--log-level", "debug")),
    ),
)
"""Logs that are turned on to look into something: no limit is set to what they cost."""


_KEPT = Variant(name="kept in a store", flags=("--store", "{folder}"))
_SYNCED = replace(_KEPT, name="on the medium", flags=(*_KEPT.flags, "--durability", "sync", "--row-durability", "sync"))
_AGAIN = Variant(name="in memory again: the noise of this run")

STORE = Comparison(
    name="store",
    case=Case(sessions=16),
    base=Variant(name="in memory"),
    variants=(
        _AGAIN,
        replace(_KEPT, limits={Measure.CPU_YARDSTICKS: 0.09, Measure.SPEED: 10.0}),
        _SYNCED,
    ),
)
"""What a turn costs more that outlives the process. 0.09 yardsticks are 0.3 ms where a yardstick takes 3.5 ms."""

STORE_THINKING = replace(
    STORE,
    name="store, thinking agents",
    case=Case(sessions=16, turns=12, delay_s=0.5, think_s=0.5),
    variants=(_AGAIN, replace(_KEPT, limits={Measure.P99: 0.85}), _SYNCED),
    rounds=6,
)
"""How much later the slowest replies come, at a load that leaves the server time. 0.85 yardsticks are 3 ms."""

STORE_ROWS = replace(
    STORE,
    name="store with rows",
    case=Case(sessions=16, turns=10, rows=Rows.INCREMENTAL),
    variants=(_AGAIN, replace(_KEPT, limits={Measure.CPU_YARDSTICKS: 0.22, Measure.SPEED: 10.0}), _SYNCED),
)
"""Servers with and without a store, for sessions with routing rows. A yardstick with rows takes 5.5 ms, so that the
limit of 0.22 yardsticks is 1.2 ms."""


def _add_fast(comparison: Comparison) -> tuple[Comparison, ...]:
    """Add the comparison with the fast tokenizer, in a turn of which every option takes a larger share."""
    if not find_spec("fastokens"):
        return (comparison,)
    fast = replace(comparison.case, tokenizer=TokenizerBackend.FASTOKENS)
    return (comparison, replace(comparison, name=f"{comparison.name}, {TokenizerBackend.FASTOKENS}", case=fast))


COMPARISONS: tuple[Comparison, ...] = (*_add_fast(TELEMETRY), LOGS, STORE, STORE_THINKING, STORE_ROWS)
"""All groups."""
