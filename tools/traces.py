"""The reference page of traces, rendered from the table of span attributes."""

from tools.members import read_members
from turnkeeper.tracing.attribute import CALL_SPAN, CONVENTIONS, TURN_SPAN, SpanAttribute

_HEAD = f"""\
# Traces

With [`--trace-endpoint`](options.md) each turn is a span `{TURN_SPAN}` (kind: server) below the span that `traceparent`
of the agent's request names, and each of its engine calls a span `{CALL_SPAN}` (kind: client) below the turn's. The
engine is sent the `traceparent` of its call. Without a valid `traceparent` a trace begins with the turn. How to turn it
on is in [operating a server](../guides/operating.md#traces).

Names under `gen_ai`, `server` and `error` are those of OpenTelemetry's semantic conventions {CONVENTIONS}, where
`gen_ai` is in development; the others are turnkeeper's own. No attribute holds a text: of an error it is the
[code](http.md#errors). What has no value is left out.
"""


def render_traces() -> str:
    """Render the page."""
    rows = "\n".join(f"| `{name}` | {text} |" for name, text in read_members(SpanAttribute))
    return f"{_HEAD}\n| attribute | value |\n|---|---|\n{rows}\n"
