"""Tool arguments between their two forms: the text that was sampled, and the object that some dialects carry.

::

    sampled text --parse_arguments--> object --(client)--> object --render_arguments--> text equal by value

A sampled text may spell no object that survives the journey: broken JSON, a repeated key, NaN, half a surrogate pair.
It travels whole under ``UNPARSED_KEY``, so that the client's replay is still recognised; no tool takes an argument of
that name, and the model is told so by the tool's own error.
"""

import json

from turnkeeper.jsontypes import JsonObject, is_object, parse_finite, parse_strict

UNPARSED_KEY = "unparsed_arguments"
"""The name of the one member of an object that stands for a text which spells no object."""


def parse_arguments(text: str) -> JsonObject:
    """Parse the arguments that were sampled into an object; an empty text is an empty object."""
    if not text:
        return {}
    value = _parse(text)
    if value is None or value.keys() == {UNPARSED_KEY}:
        return {UNPARSED_KEY: text}
    return value


def render_arguments(value: JsonObject) -> str:
    """Render the arguments that a client sent as an object."""
    if value.keys() == {UNPARSED_KEY} and isinstance(value[UNPARSED_KEY], str):
        return str(value[UNPARSED_KEY])
    return json.dumps(value, ensure_ascii=False)


def _parse(text: str) -> JsonObject | None:
    try:
        value = parse_strict(text, parse_float=parse_finite, with_unique_keys=True)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if is_object(value) else None
