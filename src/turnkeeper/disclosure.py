"""Errors as callers other than the admin get them: without addresses of engines or of other servers. Pure.

* An error whose text holds what an engine or the operator's own code said, and that its caller can do nothing about,
  has a sentence in its place (``TurnkeeperError.public_message``): no pattern knows every name that a text may hold.
* An engine's refusal is about the caller's own request. Its text is passed on, without URLs, IP addresses, names with
ports,
  names of private domains, and names of the engines that the server knows.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from turnkeeper.errors import TurnkeeperError
from turnkeeper.jsontypes import is_array, is_object

_LOG = "the server's log says more"
_ENGINE_AT = re.compile(r"\bthe engine at [a-z]+://[^\s'\"<>]*[^\s'\"<>.,:;!?)\]}]")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*(?:://|%3A%2F%2F)[^\s'\"<>]*[^\s'\"<>.,:;!?)\]}]", re.IGNORECASE)
_PAIR = re.compile(r"\('[^']*', \d+(?:, \d+)*\)")
_HOST_AND_PORT = re.compile(r"(?<![\w.-])(?=[\w.-]*[a-z.])[a-z0-9][a-z0-9._-]*:\d{2,5}(?!\w|[.:]\w)", re.IGNORECASE)
_PRIVATE = re.compile(
    r"(?<![\w.-])(?:localhost|(?:[a-z0-9_-]+\.)+(?:local|localdomain|internal|intranet|lan|corp|svc|home|consul))"
    r"(?![\w-])(?::\d+)?",
    re.IGNORECASE,
)
_IP = re.compile(r"(?<![\w.:])(?:\[[0-9a-f.:]+\](?::\d+)?|[0-9a-f]*[.:][0-9a-f.:]*[0-9a-f:])(?!\w)", re.IGNORECASE)
_HIDDEN = "[address]"


def tell(error: TurnkeeperError) -> TurnkeeperError:
    """Make the error that a caller other than the admin gets: same class, status and code, no address."""
    facts = {name: value for name, value in error.facts.items() if name != "url"}
    if error.public_message:
        return type(error)(error.public_message, hint=_LOG, **facts)
    if len(facts) == len(error.facts):
        return error  # no engine had a part in it: it quotes the caller's own words, if anybody's
    hosts = list_hosts([str(error.facts["url"])])
    return type(error)(hide_addresses(error.message, hosts), hint=hide_addresses(error.hint, hosts), **facts)


def hide_addresses(text: str, hosts: Iterable[str] = ()) -> str:
    """Take the addresses out of a text.

    Args:
        text: of an engine, or of an error of ours about one.
        hosts: names that are hidden wherever they stand.
    """
    text = _ENGINE_AT.sub("the engine", text)
    text = _URL.sub("the engine", text)
    text = _PAIR.sub(_HIDDEN, text)
    for host in sorted({each for each in hosts if each}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?::\d+)?(?![\w-])", _HIDDEN, text, flags=re.IGNORECASE)
    text = _HOST_AND_PORT.sub(_HIDDEN, text)
    text = _PRIVATE.sub(_HIDDEN, text)
    return _IP.sub(_hide_ip, text)


def hide_addresses_in(value: Any, hosts: Iterable[str] = ()) -> Any:
    """Take the addresses out of every text of a JSON value."""
    if isinstance(value, str):
        return hide_addresses(value, hosts)
    if is_object(value):
        return {hide_addresses(key, hosts): hide_addresses_in(item, hosts) for key, item in value.items()}
    return [hide_addresses_in(item, hosts) for item in value] if is_array(value) else value


def list_hosts(urls: Iterable[str]) -> list[str]:
    """List the names of the hosts in URLs."""
    found: list[str] = []
    for url in urls:
        with suppress(ValueError):
            found += filter(None, [urlsplit(url).hostname])
    return found


def _hide_ip(match: re.Match[str]) -> str:
    """Hides what is an IP address, alone or with a port, and leaves times, versions, numbers and names of code."""
    whole = match[0]
    if any(letter.isdecimal() for letter in whole):
        for candidate in (whole, whole.rpartition(":")[0]):
            with suppress(ValueError):
                ip_address(candidate.strip("[]"))
                return _HIDDEN
    return whole
