"""The store: sessions on disk, so that they outlive their process.

An event becomes a record of bytes (``codec``, by the table in ``schema``).
"""

from turnkeeper.store.codec import SessionDecoder, SessionEncoder
from turnkeeper.store.opening import SessionOpening

__all__ = ["SessionDecoder", "SessionEncoder", "SessionOpening"]
