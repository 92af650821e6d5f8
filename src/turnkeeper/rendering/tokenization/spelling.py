"""The bytes behind tokens that are parts of characters. Pure.

Byte-level vocabularies write each byte as one printable character; vocabularies with byte fallback as ``<0xF0>``.
"""

import re

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _list_bytes() -> dict[str, int]:
    """Return the byte for which each character of a vocabulary stands: printable bytes are written as themselves, the
    others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_NO_BYTE = "\uffff"
_TABLE = str.maketrans(dict.fromkeys(map(chr, range(256)), _NO_BYTE) | {c: chr(b) for c, b in _list_bytes().items()})
"""Turns each character of a vocabulary into the one with the number of its byte."""


def spell_token(token: str, text: str) -> bytes:
    """Return the bytes for which a token of the vocabulary stands.

    Args:
        token: as the vocabulary writes it.
        text: what the token decodes to, for one that is written in neither way.
    """
    if found := _BYTE.fullmatch(token):
        return bytes([int(found[1], 16)])
    return spell_bytes(token, text)


def spell_bytes(token: str, text: str) -> bytes:
    """Return the bytes for which a token of a byte-level vocabulary stands; those of ``text`` for one that holds a
    character that stands for no byte."""
    try:
        return token.translate(_TABLE).encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()
