"""Any other model: the checkpoint's own template, as far as it carries.

Nothing is known, so everything is read off the template: the text behind an assistant message, the roles it takes in
the middle of a session. ``turnkeeper verify`` says how far that holds.
"""

from turnkeeper.rendering.family import Family, Thinking
from turnkeeper.rendering.tool_calls import JsonToolFormat

DEFAULT = Family(
    name="default",
    models="any other model, best effort",
    source="the checkpoint's own chat template",
    turn_end=None,
    placement=None,
    thinking=Thinking(),
    tools=JsonToolFormat(),
)
