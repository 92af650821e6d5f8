"""Opaque fields beside reasoning: the signature of a thinking block, and ``encrypted_content`` of a reasoning item.

Clients send both back as they came. Neither is a secret: a signature tells reasoning of this server from that of
another one, and ``encrypted_content`` carries the text through clients that keep nothing but this field. A signature is
base64, as Anthropic's are: some clients keep the bytes that it encodes, and encode them again.
"""

import base64
import binascii
from hashlib import blake2b

_PREFIX = "turnkeeper."
_SIGNATURE_PREFIX = b"turnkeeper: "
"""12 bytes, which with 18 bytes of digest need no padding in base64: some clients take padding away."""


def sign_thinking(text: str) -> str:
    """Build the signature of a thinking block with this text."""
    return base64.b64encode(_SIGNATURE_PREFIX + _hash(text, size=18)).decode()


def is_signed(text: str, signature: str) -> bool:
    """Tell whether a signature is the one that this server gives to this text."""
    return signature == sign_thinking(text)


def encode_reasoning(text: str) -> str:
    """Encode reasoning as an opaque string, which `decode_reasoning` decodes."""
    return f"{_PREFIX}{_digest(text)}.{base64.b64encode(text.encode('utf-8', 'surrogatepass')).decode()}"


def decode_reasoning(encoded: str) -> str | None:
    """Decode reasoning; None for a string that this server did not encode."""
    digest, _, payload = encoded.removeprefix(_PREFIX).partition(".")
    if not encoded.startswith(_PREFIX):
        return None
    try:
        text = base64.b64decode(payload, validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return text if _digest(text) == digest else None


def _digest(text: str) -> str:
    return _hash(text, size=16).hex()


def _hash(text: str, *, size: int) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size, person=b"reasoning").digest()
