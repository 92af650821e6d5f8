"""HTTP/1.1 on a connection: uvicorn's protocol, which also reads requests that offer an upgrade.

Java's own HTTP client, and with it agents on the JVM, offers HTTP/2 in its requests (``Upgrade: h2c``). A server may
ignore the offer (RFC 9110, 7.8) and answer in HTTP/1.1, but httptools ends such a message behind its head and never
gives its body out. So the head is put to a new parser without the offer, and the rest of the bytes behind it.

This stands on names that uvicorn promises to nobody (`UVICORN_NAMES`). ``pyproject.toml`` bounds its version, and the
tests hold the names.
"""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

UVICORN_NAMES = ("_unset_keepalive_if_required", "_should_upgrade", "send_400_response", "parser", "url", "headers")
"""The methods and attributes of uvicorn's protocol that are called, overridden or set here."""

_OFFERED = frozenset({b"upgrade", b"http2-settings"})
"""The headers, and the names in ``Connection``, by which a client offers an upgrade."""


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    def data_received(self, data: bytes) -> None:
        """Parse bytes that arrived on the connection."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _should_upgrade(self) -> bool:
        """Answer yes, so that uvicorn does not take the message for complete: its body comes with the next parser."""
        return True

    def _decline(self, rest: bytes) -> None:
        """Parse the message again as one without an offer, and then the bytes that came behind its head."""
        method = self.parser.get_method()
        if method == b"CONNECT":  # it makes a tunnel, and names no path
            self.send_400_response("CONNECT is not served.")
            return
        version = self.parser.get_http_version().encode()
        head = [
            b"%s %s HTTP/%s" % (method, self.url, version),
            *map(_render_header, drop_offer(self.headers)),
            b"",
            b"",
        ]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self.data_received(b"\r\n".join(head) + rest)


def _render_header(pair: tuple[bytes, bytes]) -> bytes:
    return b"%s: %s" % pair


def drop_offer(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of a message less what offers an upgrade; names are in lower case."""
    kept: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if name == b"connection":
            value = b", ".join(part for each in value.split(b",") if (part := each.strip()).lower() not in _OFFERED)
        if name not in _OFFERED and (value or name != b"connection"):
            kept.append((name, value))
    return kept
