"""The reference page of exported tables, rendered from their declaration."""

from turnkeeper.views.tables import TABLES, Column

_HEAD = """\
# Tables

`turnkeeper export STORE --parquet DIR` writes [a store](../concepts/store.md#tables) as four Parquet files, which
DuckDB and pandas read. It needs the extra `turnkeeper[export]`. Types are Arrow's; a column of JSON is a text.

What trains is told by the built-in rules, as `turnkeeper show` tells it: options of a server are not stored. Routing
rows are in no table; `turnkeeper collect` makes samples with them.
"""

_SAYS = {
    "sessions": "A row for each session whose records are there.",
    "turns": "A row for each turn: what it added to its parent, and what was sampled. The ids of a path are those of "
    "the parent's path less the last `trim`, then `prompt_ids`, then `completion_ids`.",
    "accounting": "Where the sampled tokens went: a row for each turn, fate and reason. The tokens of a session add up "
    "to what engines sampled for it, also for replies that were never recorded.",
    "forks": "A row for each turn that does not go on from the turn that it came nearest to, as `turnkeeper "
    "explain` says.",
}


def render_tables() -> str:
    """Render the page."""
    return "\n".join([_HEAD, *(_render_table(name) for name in TABLES)])


def _render_table(name: str) -> str:
    rows = "\n".join(map(_render_column, TABLES[name]))
    return f"## {name}\n\n{_SAYS[name]}\n\n| column | type | holds |\n|---|---|---|\n{rows}\n"


def _render_column(column: Column) -> str:
    return f"| `{column.name}` | `{column.type}` | {column.says} |"
