"""Opens the store that the options name, and keeps the server's sessions in it."""

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from turnkeeper.clock import Clock
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.matching import Matcher
from turnkeeper.rendering import Checkpoint
from turnkeeper.service.sessions import MemoryKeeper, SessionKeeper

BuildKeeper: TypeAlias = Callable[[Matcher], SessionKeeper]
"""Makes what keeps the sessions of a server, for the matcher that its sessions have."""

_SECRET_BYTES = 32


def keep_in_memory(_: Matcher) -> SessionKeeper:
    """Keep sessions in memory alone."""
    return MemoryKeeper()


def open_store(
    config: ResolvedConfig, checkpoint: Checkpoint, clock: Clock, token_bytes: Callable[[int], bytes]
) -> BuildKeeper:
    """Open the slot of this process, where a store is named.

    Args:
        config: the options.
        checkpoint: the tokenizer and the template that stored ids belong to.
        clock: for the times between two looks at what is kept no longer.
        token_bytes: a source of randomness, from which a new store gets its secret.

    Raises:
        ConfigError: the store is that of another model, of a newer version, in use, or cannot be written.
    """
    folder = config.store_folder
    return keep_in_memory if folder is None else _open(folder, config, checkpoint, clock, token_bytes)


def _open(
    folder: Path,
    config: ResolvedConfig,
    checkpoint: Checkpoint,
    clock: Clock,
    token_bytes: Callable[[int], bytes],
) -> BuildKeeper:
    # Imported here: a server without a store needs no database library.
    from turnkeeper.service.sessions.keeping.storing import StoreKeeper
    from turnkeeper.store import RetentionRules, SessionStore, StoreRules

    options = config.store
    max_bytes = None if options.store_max_bytes is None else int(options.store_max_bytes)
    slots = config.server.session_server_workers
    store = SessionStore.open(
        folder,
        fingerprint=describe_model(config, checkpoint),
        secret=token_bytes(_SECRET_BYTES).hex(),
        slot=config.worker or 0,
        slots=slots,
        rules=StoreRules(
            durability=options.durability,
            row_durability=options.row_durability,
            max_bytes=None if max_bytes is None else max_bytes // slots,
        ),
    )
    store.start()
    retention = RetentionRules(
        keep_s=options.store_keep_s,
        max_bytes=None if max_bytes is None else max_bytes // slots,
        tombstone_s=max(config.timeouts.engine_timeout_s, config.request_timeout_s),
    )
    return partial(StoreKeeper, store, clock=clock, retention=retention, keeps_deleted=options.store_keep_deleted)


def describe_model(config: ResolvedConfig, checkpoint: Checkpoint) -> Mapping[str, str]:
    """Describe what the ids of this server mean: digests of the tokenizer and the template, and the family's name."""
    template = (checkpoint.template or "").encode()
    return {
        "tokenizer": sha256(checkpoint.tokenizer_json).hexdigest(),
        "template": sha256(template).hexdigest(),
        "family": str(config.model.tito_model),
    }
