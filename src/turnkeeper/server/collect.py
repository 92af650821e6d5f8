"""Collects sessions of a store without their server: there is no engine, no port, and nothing is written."""

from collections.abc import Iterable
from pathlib import Path

from turnkeeper.clock import SystemClock
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.errors import StoreMismatchError
from turnkeeper.matching import TOLERANT
from turnkeeper.rendering import Renderer
from turnkeeper.samples import Collection
from turnkeeper.server.engines import load_checkpoint
from turnkeeper.server.options import build_collect_options, build_model_renderer
from turnkeeper.server.store import describe_model
from turnkeeper.service.sessions import EventStream, MemoryAccount, SessionReader
from turnkeeper.service.sessions.factory import build_entry
from turnkeeper.service.sessions.keeping.storing import restore_session
from turnkeeper.store import LoadedSession, StoredReceipt, StoreManifest
from turnkeeper.telemetry import ReportStream


class StoredCollector:
    """Collects loaded sessions as a server with these options would."""

    def __init__(self, config: ResolvedConfig, renderer: Renderer) -> None:
        """Load the hooks.

        Args:
            config: the options, of which those of samples matter; what a session was opened with is its own.
            renderer: the tokenizer and the template that the stored ids belong to.

        Raises:
            ConfigError: a hook cannot be imported.
        """
        self._reader = SessionReader(
            renderer=renderer, options=build_collect_options(config), config=config, find_engine=lambda _: ""
        )

    async def collect(
        self, loaded: LoadedSession, receipts: Iterable[StoredReceipt], *, max_seq_len: int | None = None
    ) -> Collection:
        """Collect a session.

        Args:
            loaded: its records, the rows where they are.
            receipts: its collects, of which acknowledged ones are named in the metadata.
            max_seq_len: the budget of one sample in tokens; None takes that of the session.

        Raises:
            AssemblyError: the turns do not make samples.
        """
        entry = build_entry(
            loaded.line.id,
            restore_session(loaded, receipts, matcher=TOLERANT),  # one that takes no turns never asks its matcher
            clock=SystemClock(),
            event_stream=EventStream(),
            memory=MemoryAccount(),
            reports=ReportStream(),
        )
        return await self._reader.collect(entry, max_seq_len=max_seq_len, agent_metadata=None, rewards=None)


def open_collector(config: ResolvedConfig, folder: Path, manifest: StoreManifest) -> StoredCollector:
    """Load the model of a store.

    Args:
        config: the options; ``--hf-checkpoint`` and ``--tito-model`` name the model.
        folder: the store's.
        manifest: what the store was made for.

    Raises:
        ConfigError: the checkpoint or a hook cannot be loaded.
        StoreMismatchError: the store was made for another model.
    """
    checkpoint = load_checkpoint(config)
    asked = describe_model(config, checkpoint)
    for name, made_for in sorted(manifest.fingerprint.items()):
        if asked.get(name) != made_for:
            raise StoreMismatchError(
                f"{folder} was made for {name} {made_for}, and {asked.get(name) or 'none'} is asked for",
                hint="name the checkpoint, family and template of the server that wrote it",
            )
    return StoredCollector(config, build_model_renderer(config, checkpoint))
