"""The tables of families as a page shows them, so that the page cannot say something else than the rows."""

import json

from turnkeeper.rendering import FAMILIES, Family, Role

HEADER = (
    "| `--tito-model` | models | behind a reply | stop tokens | trim | pinned arguments "
    "| history written by | facts from |\n|---|---|---|---|---|---|---|---|"
)


def render_families_table() -> str:
    """Every family, one row each, in Markdown."""
    return "\n".join([HEADER, *(_render_row(family) for family in FAMILIES.values())])


PLACES_HEADER = (
    "| `--tito-model` | system and developer messages that lead | system behind other messages "
    "| developer behind other messages |\n|---|---|---|---|"
)


def render_places_table() -> str:
    """Where every family writes system and developer messages, in Markdown."""
    return "\n".join([PLACES_HEADER, *(_render_place(family) for family in FAMILIES.values())])


def _render_row(family: Family) -> str:
    cells = (
        f"`{family.name}`",
        family.models,
        "as the template says" if family.turn_end is None else _code(family.turn_end) if family.turn_end else "nothing",
        ", ".join(_code(marker) for marker in family.stop_markers) or "as the checkpoint says",
        str(family.max_trim),
        ", ".join(f"`{name}={json.dumps(value)}`" for name, value in family.pinned.items()) or "none",
        _render_author(family),
        family.source,
    )
    return f"| {' | '.join(cells)} |"


def _render_place(family: Family) -> str:
    place = family.placement
    if place is None:
        return f"| `{family.name}` | {' | '.join(['as the template takes them, found out by trying'] * 3)} |"
    head = "one system message, their texts an empty line apart" if place.is_head_joined else "each in its place"
    renamed = "" if place.head_developer is Role.DEVELOPER else "; developer as system"
    cells = (f"{head}{renamed}", _render_later(place.later_system), _render_later(place.later_developer))
    return f"| `{family.name}` | {' | '.join(cells)} |"


def _render_later(role: Role) -> str:
    """Where a message behind the head goes: USER stands for the reminder tags."""
    return "user message in reminder tags" if role is Role.USER else f"in place, as {role.value}"


def _render_author(family: Family) -> str:
    if family.message_encoder is not None:
        return "message encoder of our own, no template needed"
    return (
        "the checkpoint's template"
        if family.history_format is None
        else "own history format behind the template's head"
    )


def _code(text: str) -> str:
    """Code in a table cell: a bar would end the cell, a newline is shown."""
    return f"`{text.replace('|', chr(92) + '|').replace(chr(10), chr(92) + 'n')}`"
