"""Keys and passwords among the options: read from files, taken out of URLs, hidden where options are shown."""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from turnkeeper.errors import ConfigError
from turnkeeper.texts import USERINFO

HIDDEN = "***"
"""Stands for a secret where options are shown."""


@dataclass(frozen=True, slots=True)
class Address:
    """An engine's URL, apart from who calls it."""

    url: str
    """Without user and password."""
    authorization: str | None
    """The value of the header that user and password make; None where the URL had none."""


def split_address(url: str) -> Address:
    """Take user and password out of a URL; percent-encoding in them is undone."""
    parts = urlsplit(url)
    userinfo, _, place = parts.netloc.rpartition("@")
    if not userinfo:
        return Address(urlunsplit(parts._replace(netloc=place)) if "@" in parts.netloc else url, None)
    user, _, password = userinfo.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    return Address(urlunsplit(parts._replace(netloc=place)), f"Basic {b64encode(pair).decode()}")


def build_authorizations(urls: Iterable[str]) -> Mapping[str, str]:
    """Build the value of the header for each URL that names a user."""
    addresses = [split_address(url) for url in urls]
    return {each.url.rstrip("/"): each.authorization for each in addresses if each.authorization is not None}


def hide_userinfo(text: str) -> str:
    """Hide the user and password of every URL in a text."""
    return USERINFO.sub(f"{HIDDEN}@", text)


def read_keys(path: str) -> tuple[str, ...]:
    """Read the keys in a file, one on a line; empty lines and those that begin with ``#`` are left out.

    Raises:
        ConfigError: the file cannot be read, or holds no key.
    """
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the key file {path} is not text") from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"the key file {path} holds no key", hint="write one key on a line")
    return keys


def is_sendable(key: str) -> bool:
    """Return True if a key can stand in a header: printable ASCII without spaces."""
    return key.isascii() and key.isprintable() and bool(key) and " " not in key
