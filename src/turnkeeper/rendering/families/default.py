"""The family for any other model, which relies on the checkpoint's own chat template.

The turn end and the roles that can be appended are found out by rendering small conversations. ``turnkeeper verify``
tells which appends hold on a given checkpoint.
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
