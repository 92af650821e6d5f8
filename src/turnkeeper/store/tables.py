"""The tables of a slot's database, and the statements of the hot path, compiled once."""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    bindparam,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.expression import Executable

METADATA = MetaData()

FACTS = Table("facts", METADATA, Column("name", String, primary_key=True), Column("value", String, nullable=False))
"""What is known of the database itself: whether it was closed in order, and in which run of the machine it was open."""

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("id", String, nullable=False, unique=True),
    Column("state", String, nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("changed_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("ttl_s", Float, nullable=False),
    Column("events", Integer, nullable=False),
    Column("turns", Integer, nullable=False),
    Column("sampled_tokens", Integer, nullable=False),
    Column("record_bytes", BigInteger, nullable=False),
    Column("row_bytes", BigInteger, nullable=False),
    Column("collected_turns", Integer, nullable=False, default=0),
    Column("acknowledged_turns", Integer, nullable=False, default=0),
)
"""One line a session: all that a list shows, and where its next record goes. Times are Unix seconds."""

EVENTS = Table(
    "events",
    METADATA,
    Column("session", Integer, nullable=False),
    Column("place", Integer, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("payloads", LargeBinary, nullable=False),
    PrimaryKeyConstraint("session", "place"),
)
"""The records of all sessions, each by its place in its session, and where the payloads of each stand."""

RECEIPTS = Table(
    "receipts",
    METADATA,
    Column("session", Integer, nullable=False),
    Column("receipt", String, nullable=False),
    Column("turns", Integer, nullable=False),
    Column("collected_at", Float, nullable=False),
    Column("acknowledged_at", Float),
    PrimaryKeyConstraint("session", "receipt"),
)
"""What was collected: the digest of a payload, and how many turns, from the first on, there were."""

SET_ASIDE = Table(
    "set_aside",
    METADATA,
    Column("session", Integer, nullable=False),
    Column("place", Integer, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("payloads", LargeBinary, nullable=False),
    Column("reason", String, nullable=False),
)
"""Records that cannot be read, and those behind them, which nothing can refer to any more."""


def compile_statement(statement: Executable) -> str:
    """Compile a statement whose parameters are given by position, in the order of its columns."""
    dialect = sqlite.dialect(paramstyle="qmark")
    return str(statement.compile(dialect=dialect))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


INSERT_EVENT = compile_statement(EVENTS.insert())
"""Parameters: session, place, record, payloads."""

UPDATE_TAIL = compile_statement(
    SESSIONS.update()
    .where(SESSIONS.c.number == bindparam("which"))
    .values(
        {
            name: bindparam(name)
            for name in ("changed_at", "events", "turns", "sampled_tokens", "record_bytes", "row_bytes")
        }
    )
)
"""Parameters: changed_at, events, turns, sampled_tokens, record_bytes, row_bytes, number."""
