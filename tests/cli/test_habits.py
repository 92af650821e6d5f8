"""What every command has in common.

1. ``-h`` and ``--help`` show the whole help on stdout and end with 0; ``-V`` and ``--version`` show the version. A
   group without a command shows its help on stderr and ends with 2.
2. What is wrong is told in one form on stderr, ``turnkeeper: error: ...`` with a hint below it, never by a traceback:
   status 2 where an option, or what it names, cannot be used, and 1 where the command failed.
3. A misspelt flag or command is answered with the one that is near.
4. Output that is piped has no colours, and a reader that leaves ends a command silently.
5. A status of 130 or 143 is an end by that signal.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import turnkeeper
from tablekit import checking_table
from turnkeeper.cli.ending import run_command
from turnkeeper.cli.main import app
from turnkeeper.config.option import BY_ATTRIBUTE
from turnkeeper.config.parser import OTHER_NAMES
from turnkeeper.errors import ConfigError, EngineError

SOURCE = str(Path(turnkeeper.__file__).parent.parent)
COMMANDS = [
    (),
    ("serve",),
    ("engine",),
    ("verify",),
    ("sessions",),
    ("show",),
    ("explain",),
    ("collect",),
    ("delete",),
    ("export",),
    ("vacuum",),
    ("config",),
    ("config", "show"),
    ("config", "check"),
    ("demo",),
    ("bench",),
]


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), prog_name="turnkeeper", env={"COLUMNS": "90"})


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "turnkeeper", *words],
        env={**os.environ, "PYTHONPATH": SOURCE, "NO_COLOR": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# 1: help and version.


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_both_flags_show_the_same_help(command: tuple[str, ...]) -> None:
    short, long = (invoke(*command, flag) for flag in ("-h", "--help"))
    assert (short.exit_code, short.stderr) == (0, "")
    assert short.stdout == long.stdout
    assert short.stdout.startswith(f"Usage: {' '.join(('turnkeeper', *command))} ")
    assert "..." not in short.stdout.replace("[ARGS]...", "").replace("ID}...", "").replace("ID]...", "")


def test_every_command_is_listed_with_what_it_does() -> None:
    shown = invoke("--help").stdout
    listed = [line.split()[0] for line in shown.partition("Commands:\n")[2].splitlines() if line.startswith("  s")]
    assert "serve" in listed
    assert {words[0] for words in COMMANDS if words} <= set(re.findall(r"^  (\w+) ", shown, re.MULTILINE))


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_one_line(flag: str) -> None:
    assert invoke(flag).stdout == f"{turnkeeper.__version__}\n"


@pytest.mark.parametrize("command", [(), ("config",)], ids=["turnkeeper", "config"])
def test_a_group_without_a_command_shows_its_help(command: tuple[str, ...]) -> None:
    shown = invoke(*command)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr == invoke(*command, "-h").stdout


# 2 and 3: errors.


@pytest.mark.parametrize(
    ("words", "status", "message", "hint"),
    [
        ("serv", 2, "turnkeeper has no command 'serv'", "did you mean serve?"),
        ("xyzzy", 2, "turnkeeper has no command 'xyzzy'", "`turnkeeper --help` lists the commands"),
        ("config shw", 2, "turnkeeper config has no command 'shw'", "did you mean show?"),
        ("--versoin", 2, "turnkeeper has no option --versoin", "did you mean --version?"),
        ("engine --prt 3", 2, "turnkeeper engine has no option --prt", "did you mean --port?"),
        (
            "engine --no-return-routed-expert",
            2,
            "turnkeeper engine has no option --no-return-routed-expert",
            "experts?",
        ),
        ("demo --xyzzy", 2, "turnkeeper demo has no option --xyzzy", "`turnkeeper demo --help` lists the options"),
        ("verify --jsn DIR", 2, "turnkeeper verify has no option --jsn", "did you mean --json?"),
        ("serve --backend-ulr=x", 2, "turnkeeper serve has no option --backend-ulr", "did you mean --backend-url?"),
        ("serve --no-fork-on-replay", 2, "turnkeeper serve has no option --no-fork-on-replay", "lists the options"),
        ("serve --host ::1", 2, "turnkeeper serve has no option --host", "did you mean --session-server-ip?"),
        ("serve stray", 2, "stray belongs to no option", "`turnkeeper serve --help` says how"),
        ("config check --gate-timeot 3", 2, "turnkeeper config check has no option --gate-timeot", "--gate-timeout?"),
        ("serve --gate-timeout", 2, "argument --gate-timeout: expected one argument", "lists the options"),
        ("engine --port x", 2, "invalid value for '--port': ", "`turnkeeper engine --help` lists the options"),
        ("verify", 2, "missing argument 'DIR'", "`turnkeeper verify --help` lists the options"),
        ("verify /nowhere", 2, "/nowhere is no folder", "--hf-checkpoint takes a local checkpoint folder"),
        ("engine --weights /nowhere", 2, "cannot read /nowhere/config.json", "--write-checkpoint"),
        ("engine --write-checkpoint /dev/null/x", 2, "cannot write a checkpoint to /dev/null/x", ""),
        ("demo --audit /nowhere", 2, "/nowhere holds no finished run", "run `turnkeeper demo` first"),
        ("bench --only nothing", 2, "--only 'nothing' is in no case's name", "--full has more cases"),
        ("serve --config /nowhere.toml", 2, "--config /nowhere.toml: No such file or directory", ""),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_what_is_wrong_is_told_in_one_form(words: str, status: int, message: str, hint: str) -> None:
    told = invoke(*words.split())
    assert (told.exit_code, told.stdout) == (status, "")
    first, *rest = told.stderr.splitlines()
    assert first.startswith(f"turnkeeper: error: {message}")
    assert all(line.startswith("  hint: ") for line in rest)
    assert hint in "".join(rest)


def test_every_unknown_flag_is_named() -> None:
    told = invoke("serve", "--gate-timeot", "3", "--hf-checkpiont", "x")
    assert told.stderr.splitlines() == [
        "turnkeeper: error: turnkeeper serve has no option --gate-timeot",
        "turnkeeper: error: turnkeeper serve has no option --hf-checkpiont",
        "  hint: did you mean --gate-timeout and --hf-checkpoint?",
    ]


def test_a_slip_in_any_option_finds_it() -> None:
    with checking_table() as table:
        for option in BY_ATTRIBUTE.values():
            flag = option.flag
            with table.case(flag):
                slip = flag[:-2] + flag[-1] + flag[-2] + "x"
                hints = [line for line in invoke("serve", slip, "1").stderr.splitlines() if line.startswith("  hint: ")]
                assert hints == [f"  hint: did you mean {flag}?"]


def test_other_servers_names_lead_to_options_that_there_are() -> None:
    flags = {option.flag for option in BY_ATTRIBUTE.values()}
    assert set(OTHER_NAMES.values()) <= flags
    assert not set(OTHER_NAMES) & flags


def raise_error(error: BaseException) -> object:
    raise error


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (ConfigError("a", hint="b"), 2, "turnkeeper: error: a\n  hint: b\n"),
        (EngineError("gone"), 1, "turnkeeper: error: gone\n"),
        (ConfigError("one\ntwo"), 2, "turnkeeper: error: one\nturnkeeper: error: two\n"),
        (FileNotFoundError(2, "No such file", "/a"), 1, "turnkeeper: error: /a: No such file\n"),
    ],
    ids=["unusable", "failed", "several", "of a file"],
)
def test_an_error_is_printed_with_its_hint(
    error: Exception, status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(lambda: raise_error(error)) == status
    assert capsys.readouterr() == ("", told)


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: 1 // 0)
    with pytest.raises(OSError, match="no file"):
        run_command(lambda: raise_error(OSError("no file")))


@pytest.mark.parametrize(("returned", "status"), [(None, 0), ("x", 0), (0, 0), (3, 3)])
def test_a_number_that_a_command_returns_is_its_status(returned: object, status: int) -> None:
    assert run_command(lambda: returned) == status


# 4: pipes.


def test_what_is_piped_has_no_colours() -> None:
    with start("config", "show") as process:
        shown, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")
    assert "\x1b" not in shown
    assert "gate-timeout" in shown


def test_a_reader_that_leaves_ends_a_command_silently() -> None:
    with start("config", "show") as process:
        assert process.stdout is not None
        process.stdout.close()
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (1, "")


# 5: signals.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_status_of_a_signal_is_an_end_by_it(number: signal.Signals) -> None:
    program = f"from turnkeeper.cli.ending import end_process; end_process({128 + number})"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": SOURCE}, check=False)
    assert done.returncode == -number
