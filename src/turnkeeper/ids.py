"""The identifiers of sessions and turns. Knows no clock and no source of randomness."""

import re
from typing import NewType

SessionId = NewType("SessionId", str)
"""32 lower-case hexadecimal digits."""

TurnId = NewType("TurnId", int)
"""The place of a turn in its session's commit order, from 0."""

_SESSION_ID = re.compile(r"[0-9a-f]{32}")
SESSION_KEY = re.compile(r"tk-([0-9a-f]{32})-[0-9a-f]{32}")
"""The form of the key of a session."""
SESSION_KEY_LENGTH = len("tk--") + 64
"""The length of such a key."""


def build_session_id(random_bytes: bytes) -> SessionId:
    """Spell 16 random bytes as a session id.

    Raises:
        ValueError: not 16 bytes.
    """
    if len(random_bytes) != 16:
        raise ValueError(f"a session id is made of 16 bytes, got {len(random_bytes)}")
    return SessionId(random_bytes.hex())


def parse_session_id(text: str) -> SessionId | None:
    """Read a session id; None when the text has another form."""
    return SessionId(text) if _SESSION_ID.fullmatch(text) else None


def build_session_key(session_id: SessionId, random_bytes: bytes) -> str:
    """Spell the key of a session: ``tk-<session id>-<32 hexadecimal digits>``.

    Raises:
        ValueError: not 16 bytes.
    """
    if len(random_bytes) != 16:
        raise ValueError(f"the secret of a key is made of 16 bytes, got {len(random_bytes)}")
    return f"tk-{session_id}-{random_bytes.hex()}"


def find_key_session(key: str) -> SessionId | None:
    """The session that a key says it is for; None when it has another form. It may be forged."""
    match = SESSION_KEY.fullmatch(key)
    return SessionId(match[1]) if match else None
