"""Keys: those of the admin, and the one that each session is given. Keeps hashes alone, and never what was hashed.

The key of a session is ``tk-<session id>-<secret>``. It is said once, when the session is created. One fast keyed hash
is enough to keep it: a slow one protects passwords, which can be guessed, and here nobody guesses 128 random bits. The
hash's own key is drawn anew by each process, so that a hash that leaks is of no use elsewhere. Hashes are compared in
constant time, and a key whose session there is not takes as long as a wrong one.
"""

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from turnkeeper.access import Caller, Grant
from turnkeeper.ids import SessionId, build_session_key, find_key_session

_SECRET_BYTES = 16
_HASH_BYTES = 32
_NO_HASH = bytes(_HASH_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptKey:
    """The stored form of a session's key."""

    hash: bytes = field(repr=False)
    grant: Grant
    """The session and the rights that the key opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedKey:
    """A session's key, in the one moment in which it is known."""

    text: str = field(repr=False)
    kept: KeptKey


class KeyRing:
    """The keys of a server: who sends a key, and what the key opens."""

    def __init__(
        self, admin_keys: Iterable[str], token_bytes: Callable[[int], bytes], *, hash_key: bytes | None = None
    ) -> None:
        """Take the admin's keys; where there is none, everybody is the admin.

        Args:
            admin_keys: in plain text.
            token_bytes: a source of randomness that nobody can guess.
            hash_key: the key of the hashes where they outlive the process, 32 bytes; None draws one.
        """
        self._token_bytes = token_bytes
        self._hash_key = hash_key or token_bytes(_HASH_BYTES)
        self._admins = tuple(map(self._hash, admin_keys))

    @property
    def has_admin_keys(self) -> bool:
        """True where the server has admin keys, so that every caller needs a key."""
        return bool(self._admins)

    def issue(self, grant: Grant) -> IssuedKey:
        """Make a key for a session."""
        text = build_session_key(grant.session_id, self._token_bytes(_SECRET_BYTES))
        return IssuedKey(text=text, kept=KeptKey(hash=self._hash(text), grant=grant))

    def identify(self, keys: Iterable[str], find: Callable[[SessionId], KeptKey | None]) -> Caller:
        """Identify the caller that sends these keys.

        Args:
            keys: in plain text, as they came.
            find: what is kept of a session's key; None where there is no such session.
        """
        if not self._admins:
            return Caller(is_admin=True, other_keys=tuple(keys))
        is_admin, grants, others = False, list[Grant](), list[str]()
        for key in keys:
            found = self._hash(key)
            if sum(hmac.compare_digest(each, found) for each in self._admins):
                is_admin = True
            elif grant := _find_grant(key, found, find):
                grants.append(grant)
            else:
                others.append(key)
        return Caller(is_admin=is_admin, grants=tuple(grants), other_keys=tuple(others))

    def _hash(self, key: str) -> bytes:
        return blake2b(key.encode(), digest_size=_HASH_BYTES, key=self._hash_key).digest()


def _find_grant(key: str, found: bytes, find: Callable[[SessionId], KeptKey | None]) -> Grant | None:
    session_id = find_key_session(key)
    kept = None if session_id is None else find(session_id)
    is_equal = hmac.compare_digest(_NO_HASH if kept is None else kept.hash, found)
    return kept.grant if kept is not None and is_equal else None
