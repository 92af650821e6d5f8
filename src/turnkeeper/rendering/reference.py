"""The table of families as a page shows it, so that the page cannot say something else than the rows."""

import json

from turnkeeper.rendering.families import FAMILIES
from turnkeeper.rendering.family import Family, Role

HEADER = (
    "| `--tito-model` | models | behind a reply | stop tokens | trim | appended in place | pinned arguments "
    "| history written by | facts from |\n|---|---|---|---|---|---|---|---|---|"
)


def write_families_table() -> str:
    """Every family, one row each, in Markdown."""
    return "\n".join([HEADER, *(_write_row(family) for family in FAMILIES.values())])


def _write_row(family: Family) -> str:
    cells = (
        f"`{family.name}`",
        family.models,
        "as the template says" if family.close is None else _code(family.close) if family.close else "nothing",
        ", ".join(_code(marker) for marker in family.stop_markers) or "as the checkpoint says",
        str(family.max_trim),
        _write_roles(family),
        ", ".join(f"`{name}={json.dumps(value)}`" for name, value in family.pinned.items()) or "none",
        _write_author(family),
        family.source,
    )
    return f"| {' | '.join(cells)} |"


def _write_roles(family: Family) -> str:
    if family.roles is None:
        return "each role is tried on the template"
    names = [role.value for role in Role if role in family.roles]
    return ", ".join(names)


def _write_author(family: Family) -> str:
    if family.encoder is not None:
        return "encoder of our own, no template needed"
    return "the checkpoint's template" if family.rule is None else "own rule behind the template's head"


def _code(text: str) -> str:
    """Code in a table cell: a bar would end the cell, a newline is shown."""
    return f"`{text.replace('|', chr(92) + '|').replace(chr(10), chr(92) + 'n')}`"
