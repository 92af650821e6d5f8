"""The options of the store: where sessions are kept so that they outlive their process."""

from turnkeeper.choices import Durability
from turnkeeper.config.schema.section import Age, Bytes, SettingsSection


class StoreSection(SettingsSection):
    """Store: where sessions are kept, and for how long."""

    store: str | None = None
    """Folder in which sessions are kept, so that they outlive the process. Unset, or `none`: in memory alone.

    Set it where a run shall survive the end of the server, or sessions shall be collected again later.
    """
    durability: Durability = Durability.PROCESS
    """What a stored turn survives: `process` the end of the server's process, `sync` that of the machine too.

    Take `sync` where the machine itself may lose power; each group of turns then waits for the disk.
    """
    row_durability: Durability = Durability.PROCESS
    """What the routing rows of a stored turn survive, as for the turn itself.

    Take `sync` where rows must survive the machine too; without them a sample follows `--on-bad-rows`.
    """
    store_max_bytes: Bytes | None = None
    """Most that the store takes on disk: new sessions are refused above it, and the oldest ended sessions go.

    Set it where the disk is shared.
    """
    store_keep_s: Age = 7 * 86400.0
    """How long an ended session is kept behind its last event, such as `12h` or `7d`.

    Raise it to collect sessions again that are older than a week.
    """
    store_keep_deleted: bool = False
    """Keep the records of deleted sessions too, for as long as those of others.

    Turn it on where trainers delete sessions that you want to look at or to collect again.
    """
