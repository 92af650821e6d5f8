"""The SQLite database of a slot: opened for its one writer or for readers, checked at the start.

The writer's connection is the only one that writes and the only one that checkpoints: SQLite before 3.51.3 may corrupt
a database that two connections checkpoint at once.
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from turnkeeper.choices import Durability
from turnkeeper.errors import ConfigError, StoreWriteError
from turnkeeper.store.folder import ROWS
from turnkeeper.store.tables import FACTS, METADATA

logger = logging.getLogger("turnkeeper.store")

DATABASE = "sessions.db"
SQLITE_VERSION = sqlite3.sqlite_version
"""The version of SQLite that runs, for ``/health``."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PAGE_BYTES = 4096
_BEGIN = "BEGIN IMMEDIATE"
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def open_database(folder: Path, durability: Durability, *, moves_aside: bool = True) -> tuple[Connection, str]:
    """Open the database of a slot, or a new one in place of one that is broken.

    Args:
        folder: the slot's.
        durability: what a commit survives.
        moves_aside: False leaves a broken database where it is, and refuses it.

    Returns:
        The writer's connection, and the name under which a broken database is kept; empty where it was sound.

    Raises:
        ConfigError: the folder cannot be written, or its database is broken and to stay where it is.
    """
    moved_aside = ""
    for _ in range(2):
        try:
            connection = open_writer(folder, durability)
            if is_sound(connection):
                write_facts(connection, closed="0", boot=find_boot_id())
                return connection, moved_aside
            connection.close()
        except (OSError, DBAPIError) as error:
            if not is_corrupt(error):
                raise ConfigError(f"--store: {explain_failure(error).message}", hint="look at the folder") from error
        if not moves_aside:
            raise ConfigError(
                f"the database of {folder} is broken", hint="a server that is started on it moves it aside, and says so"
            )
        moved_aside = _move_aside(folder)
        logger.error("the database of %s is broken; it is kept as %s, and a new one is begun", folder, moved_aside)
    raise ConfigError(f"--store {folder}: no database can be made there")


def open_writer(folder: Path, durability: Durability) -> Connection:
    """Open the writer's connection, and make the tables where there are none.

    Raises:
        DBAPIError: the file is no database, is broken or cannot be written.
        OSError: the file cannot be made.
    """
    synchronous = "FULL" if durability is Durability.SYNC else "OFF"

    def prepare(connection: sqlite3.Connection) -> None:
        connection.isolation_level = None  # transactions begin where they are said to
        for pragma in (
            f"page_size={_PAGE_BYTES}",
            "auto_vacuum=INCREMENTAL",
            "journal_mode=WAL",
            f"synchronous={synchronous}",
            "wal_autocheckpoint=0",
            "busy_timeout=5000",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()

    os.close(os.open(folder / DATABASE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # its log gets this mode too
    engine = _create_engine(f"file:{quote(str(folder / DATABASE))}?mode=rw", prepare)
    event.listen(engine, "begin", _begin)
    connection = engine.connect()
    with connection.begin():
        METADATA.create_all(connection)
    return connection


def open_reader(folder: Path) -> Engine:
    """An engine whose connections only read, each for one short transaction; it never checkpoints.

    A database in a folder that cannot be written is read as it stands, provided that its log was copied into it.
    """
    path, log = folder / DATABASE, folder / f"{DATABASE}-wal"
    is_quiet = not log.exists() or not log.stat().st_size  # an earlier reader leaves an empty one
    mode = "mode=ro&immutable=1" if is_quiet and not _is_writable(folder) else "mode=ro"

    def prepare(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA query_only=1")
        connection.execute("PRAGMA busy_timeout=5000")

    return _create_engine(f"file:{quote(str(path))}?{mode}", prepare)


def get_driver(connection: Connection) -> sqlite3.Connection:
    """The driver's own connection, for what is said a thousand times a second, and for what no transaction may hold."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


@contextmanager
def writing(connection: Connection) -> Generator[None]:
    """Write in one transaction, which is rolled back where the block fails.

    The driver begins and ends it: through SQLAlchemy that is an eighth of all instructions that storing a turn takes.
    SQLAlchemy joins in with the first statement that goes through it.
    """
    driver = get_driver(connection)
    driver.execute(_BEGIN)
    try:
        yield
        connection.commit() if connection.in_transaction() else driver.commit()
    except BaseException:
        connection.rollback() if connection.in_transaction() else driver.rollback()
        raise


def is_sound(connection: Connection) -> bool:
    """Whether a database that was not closed in order can be trusted; only the machine's end can have broken it.

    While the machine runs, what was written is read back, synced or not. So the whole file is looked through only where
    the machine was started since, or nobody can tell.
    """
    with connection.begin():
        facts = read_facts(connection)
    if facts.get("closed") == "1" or (facts and facts.get("boot") == find_boot_id() != ""):
        return True
    with connection.begin():
        return connection.exec_driver_sql("PRAGMA quick_check(1)").scalar() == "ok"


def read_facts(connection: Connection) -> dict[str, str]:
    """Read the facts about the database itself: whether it was closed in order, and in which run of the machine."""
    return {row.name: row.value for row in connection.execute(select(FACTS))}


def write_facts(connection: Connection, **facts: str) -> None:
    """Note what is known of the database itself."""
    with connection.begin():
        for name, value in facts.items():
            connection.execute(FACTS.delete().where(FACTS.c.name == name))
            connection.execute(FACTS.insert().values(name=name, value=value))


def find_boot_id() -> str:
    """What names this run of the machine; empty where the system does not say."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def is_corrupt(error: BaseException) -> bool:
    """Whether an error says that the file is broken or no database."""
    return _get_code(error) & 0xFF in _CORRUPT


def explain_failure(error: BaseException) -> StoreWriteError:
    """Build the error of a write that failed."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    number = error.errno if isinstance(error, OSError) else None
    facts: dict[str, Any] = {} if number is None else {"errno": number}
    return StoreWriteError(
        f"the store could not be written: {cause}", hint="free space on the disk of --store, or look at it", **facts
    )


def _get_code(error: BaseException) -> int:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return int(getattr(cause, "sqlite_errorcode", None) or 0)


def _begin(connection: Connection) -> None:
    driver = get_driver(connection)
    if not driver.in_transaction:
        driver.execute(_BEGIN)


def _create_engine(address: str, prepare: Callable[[sqlite3.Connection], None]) -> Engine:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        try:
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    return create_engine("sqlite://", creator=connect, poolclass=NullPool)


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK)


def _move_aside(folder: Path) -> str:
    """Move the database and its rows to names that say when."""
    suffix = f"broken-{int(time())}"
    while (folder / f"{DATABASE}.{suffix}").exists():
        suffix += "x"
    for name in (DATABASE, f"{DATABASE}-wal", ROWS):
        if (folder / name).exists():
            (folder / name).rename(folder / f"{name}.{suffix}")
    (folder / f"{DATABASE}-shm").unlink(missing_ok=True)
    (folder / ROWS).mkdir(mode=0o700)
    return f"{DATABASE}.{suffix}"
