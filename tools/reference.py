"""The reference pages of options, rules, samples, tables, metrics and traces, rendered from their declarations.

``python -m tools.reference docs/reference`` writes the pages; a test compares the files with what is rendered.
"""

import inspect
import sys
from pathlib import Path

from tools.members import read_members
from tools.metrics import render_metrics
from tools.samples import render_samples
from tools.tables import render_tables
from tools.traces import render_traces
from turnkeeper.config.option import SECTIONS, SHOWN_OPTIONS, Option, get_section_summary, get_section_title
from turnkeeper.config.rule import Rule, Severity
from turnkeeper.config.rules import RULES

_OPTIONS_HEAD = """\
# Options

Three options must be set; everything else has a default that works.

```
turnkeeper serve --hf-checkpoint DIR --tito-model NAME --backend-url URL
```

An option is a flag, an environment variable and a key of the TOML file that `--config` (or `TURNKEEPER_CONFIG`) names.
Flags win over the environment, that over the file, that over the defaults. `turnkeeper config show` prints each value
with the place it came from, `turnkeeper config check` says whether they go together ([rules](rules.md)).

```toml
# turnkeeper.toml: keys are flags without the dashes in front
hf-checkpoint = "/models/Qwen3-30B-A3B"
tito-model = "qwen3"
backend-url = ["http://10.0.0.1:30000", "http://10.0.0.2:30000"]
gate-timeout = 900
```

A switch that is on elsewhere is turned off by `--no-...`. Durations are seconds; sizes are bytes, or a number with a
unit (`512MiB`). In a trainer's namespace an option is the flag's name with underscores.
"""

_RULES_HEAD = """\
# Rules

Options that are fine alone may not go together. All rules are checked before anything starts, and all that are broken
are reported at once, each with its remedy: an error keeps the server from starting, a warning is logged.
"""


def render_options() -> str:
    """Render the page of options."""
    parts = [_OPTIONS_HEAD]
    for section in SECTIONS:
        parts += [f"## {get_section_title(section)}\n", f"{get_section_summary(section)}\n"]
        rows = "\n".join(_render_option(option) for option in SHOWN_OPTIONS if option.section == section)
        parts.append(f"| option | default | meaning | when to change it |\n|---|---|---|---|\n{rows}\n")
        parts += [_render_choices(option) for option in SHOWN_OPTIONS if option.section == section and option.kind]
    return "\n".join(parts)


def render_rules() -> str:
    """Render the page of rules."""
    rows = "\n".join(_render_rule(rule) for rule in RULES)
    return f"{_RULES_HEAD}\n| rule | kind | when | must hold | why |\n|---|---|---|---|---|\n{rows}\n"


PAGES = {
    "options.md": render_options,
    "rules.md": render_rules,
    "samples.md": render_samples,
    "tables.md": render_tables,
    "metrics.md": render_metrics,
    "traces.md": render_traces,
}
"""The generated pages by file name."""


def _render_rule(rule: Rule) -> str:
    kind = "error" if rule.severity is Severity.ERROR else "warning"
    return f"| `{rule.name}` | {kind} | {rule.when} | {rule.must} | {rule.why} |"


def _render_option(option: Option) -> str:
    value = f" {option.metavar}".replace("|", "\\|") if option.metavar else ""
    default = f"`{option.default_text}`" if option.default_text else ""
    names = f"`{option.flag}{value}`<br>`{option.environment}`"
    return f"| {names} | {default} | {option.help} | {option.when_to_change} |"


def _render_choices(option: Option) -> str:
    assert option.kind is not None
    lines = "\n".join(f"- `{value}`: {text}" for value, text in read_members(option.kind))
    return f"`{option.flag}`: {inspect.getdoc(option.kind)}\n\n{lines}\n"


def main() -> None:
    """Write the pages into the folder that the command line names."""
    for name, render in PAGES.items():
        Path(sys.argv[1], name).write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
