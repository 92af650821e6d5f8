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


_BYTES = _list_bytes()


def spell_token(token: str, text: str) -> bytes:
    """Return the bytes for which a token of the vocabulary stands.

    Args:
        token: as the vocabulary writes it.
        text: what the token decodes to, for one that is written in neither way.
    """
    if found := _BYTE.fullmatch(token):
        return bytes([int(found[1], 16)])
    if all(char in _BYTES for char in token):
        return bytes(_BYTES[char] for char in token)
    return text.encode()
