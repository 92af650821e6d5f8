"""The path of a request as the log shows it."""

from turnkeeper.ids import parse_session_id

LONGEST_PATH = 200
"""So many characters of a path are shown."""

_SESSIONS = "/sessions/"
_NO_SESSION = "*"
"""Stands where a session id belongs and something else stood, such as a key of the client."""


def shorten_path(path: str) -> str:
    """Shorten a path, which has no query, to what the log shows."""
    if path.startswith(_SESSIONS):
        session_id, slash, rest = path[len(_SESSIONS) :].partition("/")
        if parse_session_id(session_id) is None:
            path = f"{_SESSIONS}{_NO_SESSION}{slash}{rest}"
    return path[:LONGEST_PATH]
