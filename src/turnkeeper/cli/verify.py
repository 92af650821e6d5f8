"""``turnkeeper verify``: whether a checkpoint folder can be served under a family without breaking a prefix."""

import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Checkpoint folder, as --hf-checkpoint takes it.")],
    # Three options of the server, written out: the declaration of all of them takes as long to import as Typer.
    tito_model: Annotated[
        str | None,
        typer.Option(
            "--tito-model",
            metavar="NAME",
            help="Family of the model's chat format; "
            "`default` renders with the checkpoint's own template as well as it can.",
            show_default="default",
        ),
    ] = None,
    chat_template_path: Annotated[
        str | None,
        typer.Option(
            "--chat-template-path",
            metavar="FILE",
            help="Jinja file in place of the checkpoint's template; for the family `default` only.",
        ),
    ] = None,
    apply_chat_template_kwargs: Annotated[
        str | None,
        typer.Option(
            "--apply-chat-template-kwargs",
            metavar="JSON",
            help="Template arguments of every conversation, as a JSON object.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say which appends to a session a checkpoint holds under a family.

    Exit status 0: the family holds what it promises. 1: it does not; what would fix it is shown. 2: the folder or an
    option cannot be used.
    """
    from turnkeeper.cli.output import build_console
    from turnkeeper.cli.verify_report import print_report
    from turnkeeper.config.checkpoint import read_checkpoint
    from turnkeeper.config.load import load
    from turnkeeper.rendering.checks import verify as run_cases

    given = {
        "tito_model": tito_model,
        "chat_template_path": chat_template_path,
        "apply_chat_template_kwargs": apply_chat_template_kwargs,
    }
    model = load(given, environment=os.environ).settings.model
    template = model.chat_template_path
    report = run_cases(
        read_checkpoint(directory, chat_template_path=None if template is None else Path(template)),
        model.tito_model,
        chat_template_kwargs=model.apply_chat_template_kwargs,
        format_time=time.strftime,
    )
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        print_report(build_console(), report, directory)
    return 0 if report.is_sound else 1
