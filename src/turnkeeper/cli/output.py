"""What commands print with rich: in the width of a terminal, and uncut and without wrapped cells anywhere else."""

import os
import sys

from rich.console import Console

_FILE_WIDTH = 10_000
"""More columns than a table of ours takes."""


def build_console(*, stderr: bool = False) -> Console:
    """Build the console of a command; ``COLUMNS`` sets its width, ``NO_COLOR`` leaves colours out."""
    stream = sys.stderr if stderr else sys.stdout
    is_fitted = stream.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_fitted else _FILE_WIDTH, highlight=False, stderr=stderr)
