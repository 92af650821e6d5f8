"""Signatures of thinking blocks and sealed reasoning: opaque to clients, checked when they come back.

Nothing here is a secret: the marks tell what this server said from what another did, and carry reasoning through
clients that keep nothing but the opaque field. A signature is base64, as Anthropic's are: some clients keep the bytes
that it stands for and encode them again.
"""

import base64
import binascii
from hashlib import blake2b

_PREFIX = "turnkeeper."
_SIGNATURE_PREFIX = b"turnkeeper: "
"""12 bytes, and 18 of digest: base64 of both needs no padding, which some clients take away."""


def sign_thinking(text: str) -> str:
    """The signature under which a thinking block goes out."""
    return base64.b64encode(_SIGNATURE_PREFIX + _hash(text, size=18)).decode()


def is_signed(text: str, signature: str) -> bool:
    """Whether the signature is the one this server gave to this text."""
    return signature == sign_thinking(text)


def encode_reasoning(text: str) -> str:
    """The reasoning as an opaque string that ``decode_reasoning`` reads back."""
    return f"{_PREFIX}{_digest(text)}.{base64.b64encode(text.encode('utf-8', 'surrogatepass')).decode()}"


def decode_reasoning(encoded: str) -> str | None:
    """The sealed reasoning; None for what this server did not seal."""
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
