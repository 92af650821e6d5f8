"""The store: sessions on disk, so that they outlive their process.

An event becomes a record of bytes (``codec``, by the table in ``schema``); records go to SQLite, and the rows of turns
to one file a session. ``SessionStore`` is the slot of one server process, ``SlotReader`` reads a slot beside it.
"""

from turnkeeper.choices import Durability, StoredState
from turnkeeper.store.codec import SessionDecoder, SessionEncoder, StoredEvent
from turnkeeper.store.folder import StoreManifest
from turnkeeper.store.opening import SessionOpening
from turnkeeper.store.payload import PayloadPlace
from turnkeeper.store.reading import (
    ListedSession,
    LoadedSession,
    RowReading,
    SlotReader,
    StoredLine,
    StoredOrder,
    StoredReceipt,
)
from turnkeeper.store.retention import RetentionRules, choose_removals
from turnkeeper.store.slot import SessionStore, StoredSession, StoreMeasures, StoreRules

__all__ = [
    "Durability",
    "ListedSession",
    "LoadedSession",
    "PayloadPlace",
    "RetentionRules",
    "RowReading",
    "SessionDecoder",
    "SessionEncoder",
    "SessionOpening",
    "SessionStore",
    "SlotReader",
    "StoreManifest",
    "StoreMeasures",
    "StoreRules",
    "StoredEvent",
    "StoredLine",
    "StoredOrder",
    "StoredReceipt",
    "StoredSession",
    "StoredState",
    "choose_removals",
]
