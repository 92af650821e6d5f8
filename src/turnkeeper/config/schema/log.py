"""The options of the log."""

from turnkeeper.choices import LogFormat, LogLevel
from turnkeeper.config.schema.section import Duration, SessionIds, SettingsSection


class LogSection(SettingsSection):
    """Log: what is written to standard error while the server runs."""

    log_level: LogLevel = LogLevel.INFO
    """Least severe lines of the log; `info` has one for each turn, refusal, session and change.

    Take `debug` to see how turns came about, `warning` where only what goes wrong is wanted.
    """
    log_format: LogFormat = LogFormat.TEXT
    """Form of the log's lines: `text` for people, `json` with one object a line for programs.

    Take `json` where the log is collected, searched with jq or loaded into a table.
    """
    log_session: SessionIds = ()
    """Id of a session that is logged at debug whatever the level; repeat it for several.

    Set it to follow one session closely on a busy server.
    """
    access_log: bool = False
    """Write a line for each HTTP request too, with its status, size and time.

    Turn it on to look for requests that reach no turn, or for a client that polls too often.
    """
    slow_turn_s: Duration = 300.0
    """A turn in flight for this long is named in the log, with what it waits for; again when its age has doubled.

    Lower it where turns are short, so that one that is stuck is named sooner.
    """
