"""How a command ends: its exit status, and what went wrong in one form on stderr.

::

    turnkeeper: error: turnkeeper engine has no option --prt
      hint: did you mean --port?

====  =====================================================================================
0     it did what was asked
1     it ran and failed, or found what it looks for (`verify`, `demo`)
2     an option, or what it names, cannot be used
130   Ctrl-C (SIGINT); the process ends by that signal, which a shell shows as 130
143   SIGTERM, in the same way
====  =====================================================================================
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from turnkeeper.errors import ConfigError, TurnkeeperError, describe_failure
from turnkeeper.texts import guess_name

FAILED, UNUSABLE = 1, 2

_ENDING_SIGNALS = {128 + number: number for number in (signal.SIGINT, signal.SIGTERM)}
"""The signals that end a process, by the status that a shell shows for them."""


class CommandGroup(TyperGroup):
    """A group of commands that end as this module says, and that says which name a misspelt one may stand for."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line, and end the process unless ``standalone_mode`` is off."""
        call = partial(super().main, *args, standalone_mode=False, **extra)
        return end_process(run_command(call)) if standalone_mode else call()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help, on stderr, where no command is given."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(UNUSABLE)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands, each with the first sentences of its help, whole."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _summarize(command.help)) for name, command in commands if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command.

        Raises:
            ConfigError: there is none of this name.
        """
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            guess = guess_name(args[0], names)
            listed = f"`{ctx.command_path} --help` lists the commands"
            raise ConfigError(
                f"{ctx.command_path} has no command {args[0]!r}", hint=f"did you mean {guess}?" if guess else listed
            )
        return super().resolve_command(ctx, args)


def run_command(call: Callable[[], object]) -> int:
    """Run a command, and say on stderr why it fails where it does.

    Args:
        call: returns an exit status, or something else for 0.

    Returns:
        The exit status.
    """
    try:
        status = call()
        sys.stdout.flush()
    except typer.TyperException as error:
        print_failure(_explain_usage(error))
        return error.exit_code
    except TurnkeeperError as error:
        print_failure(error)
        return UNUSABLE if isinstance(error, ConfigError) else FAILED
    except BrokenPipeError:  # such as `| head`: nobody reads on
        _discard_output()
        return FAILED
    except OSError as error:
        if error.filename is None:
            raise
        print_failure(TurnkeeperError(f"{error.filename}: {error.strerror}"))
        return FAILED
    return status if isinstance(status, int) else 0


def print_failure(error: TurnkeeperError) -> None:
    """Print an error on stderr, a line for each of its lines."""
    typer.echo(describe_failure(error), err=True)


def fail(error: TurnkeeperError) -> NoReturn:
    """Print an error on stderr and end the command, with 2 where an option cannot be used, else with 1."""
    print_failure(error)
    raise typer.Exit(UNUSABLE if isinstance(error, ConfigError) else FAILED)


def end_at_ctrl_c() -> None:
    """End this process at once on Ctrl-C from now on, without a traceback: for commands that have nothing to undo.

    A server answers the signal itself while it serves. A process that ignores it, as behind ``nohup``, goes on to.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def end_process(status: int) -> NoReturn:
    """End the process with an exit status; with that of a signal, by the signal.

    What waits for the process then sees what ended it: a shell stops its script, and systemd counts it as a success.
    """
    number = _ENDING_SIGNALS.get(status)
    if number is not None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # without effect on the first process of a container
    sys.exit(status)


def _summarize(help_text: str | None) -> str:
    """The first paragraph, on one line."""
    return " ".join((help_text or "").partition("\n\n")[0].split())


def _explain_usage(error: typer.TyperException) -> ConfigError:
    """Bring an error of Typer's into the form of ours. Its classes have no public names, their attributes do."""
    context: Any = getattr(error, "ctx", None)
    path = "turnkeeper" if context is None else context.command_path
    hint = f"`{path} --help` lists the options"
    if not hasattr(error, "possibilities"):
        text = error.format_message().rstrip(".")
        return ConfigError(text[:1].lower() + text[1:], hint=hint)
    name: str = getattr(error, "option_name")  # noqa: B009 - unknown to the type checker
    known = () if context is None else [flag for each in context.command.get_params(context) for flag in each.opts]
    guess = guess_name(name, known)
    return ConfigError(f"{path} has no option {name}", hint=f"did you mean {guess}?" if guess else hint)


def _discard_output() -> None:
    """Send what is still to be written nowhere, so that the interpreter does not fail at it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
