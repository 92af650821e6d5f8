"""The options of the server: where it listens, how long it waits, how much it takes on."""

from typing import Annotated

from pydantic import ByteSize, Field

from turnkeeper.config.schema.section import (
    Bytes,
    Count,
    Duration,
    ForTests,
    Grace,
    Lines,
    Ports,
    SettingsSection,
    Version,
    Words,
)


class ServerSection(SettingsSection):
    """Server: where it listens, and whom it serves."""

    use_session_server: Version = None
    """Session server version: `v1` keeps one line of turns, `v2` a tree. Alone it means v1, and `serve` starts v1.

    Take `v2` where agents branch, compact their history or run sub-agents.
    """
    session_server_ip: str = "127.0.0.1"
    """Address to listen on.

    Set it to `0.0.0.0` where agents run on other machines.
    """
    session_server_port: Ports = (30100,)
    """First port to listen on; 0 takes a free one and prints it.

    Set it where the port is taken, or to 0 in tests and on shared machines.
    """
    session_server_workers: int = 1
    """Independent processes, on consecutive ports from the first.

    Raise it where one process has a whole core busy; agents then need the address of their session's worker.
    """
    session_server_instance_id: str | None = None
    """Name of this instance in /health. Unset: a random one.

    Set it where a trainer must tell its servers apart; it passes the name by itself.
    """
    api_key: Annotated[Words, Field(repr=False)] = ()
    """Key of the admin; repeat it for several. Agents send that of their session. Unset: anybody may do everything.

    Set it where others than your agents can reach the port; prefer the file: process lists show flags at first.
    """
    api_key_file: str | None = None
    """File with keys of the admin, one on a line.

    Set it where others than your agents can reach the port.
    """
    auto_create_sessions: bool = False
    """Create the session that a request names, if there is none.

    Turn it on for agents that can only be given an id and cannot create a session first.
    """
    allow_unrecorded: bool = False
    """Pass on requests to engine routes that generate tokens outside of any turn.

    Turn it on for harnesses that also call the engine for text that is never trained.
    """
    pass_through: Lines = ()
    """Method and path of an engine route that agents may call, such as `GET server_info`; repeat it for several.

    Set it for a route of the engine that agents need and the server refuses to pass on.
    """
    trace_endpoint: str | None = None
    """URL that takes traces as OTLP over HTTP, such as `http://collector:4318/v1/traces`. Unset: no traces.

    Set it to follow turns from an agent through here to the engine; needs the extra `turnkeeper[otel]`.
    """


class TimeoutsSection(SettingsSection):
    """Timeouts: each is longer than those that it contains."""

    engine_timeout_s: Duration = 1800.0
    """One engine call.

    Raise it where a single reply may take longer than half an hour.
    """
    request_timeout_s: Duration | None = None
    """One turn, with its waits and engine calls. Unset: twice the longer of engine and gate timeout.

    Set it where turns shall fail sooner than their engine calls and waits together might take.
    """
    drain_timeout_s: Grace = 120.0
    """How long a server that is told to stop waits for turns in flight and for its sessions to be collected.

    Raise it where a turn and the collect behind it take longer than two minutes; 0 stops at once.
    """
    read_timeout_s: Duration = 60.0
    """The head of a request, and each further 16 KiB of its body, however long the whole body takes.

    Raise it for clients whose network stalls for longer than a minute.
    """
    gate_timeout_s: Duration = 600.0
    """A new turn's wait while the engines are paused.

    Raise it where a weight update takes longer than ten minutes.
    """
    abort_grace_s: Grace = 2.0
    """How long after an abort the pause may become known for the abort to belong to that weight update.

    Raise it where turns end as aborted although a weight update was about to pause the engines.
    """
    reconnect_grace_s: Grace = 1.0
    """How long the engine call of a client that hung up is kept for its retry.

    Raise it for agents whose clients wait longer than a second before they send a lost request again.
    """
    replay_window_s: Grace = 120.0
    """How long a finished reply is repeated to a marked retry.

    Raise it for agents that repeat a request later than two minutes after its reply.
    """
    stream_header_delay_s: Grace = 5.0
    """How long a stream's status line is held for the first token or an error; heartbeats follow.

    Lower it where a client or proxy gives up on a stream without a first byte.
    """
    stream_heartbeat_s: Annotated[Duration, ForTests()] = 10.0
    """Time between a silent stream's heartbeats."""
    probe_interval_s: Duration = 5.0
    """Time between two polls of the engines.

    Lower it to notice a changed weight version sooner, raise it where there are hundreds of engines.
    """


class LimitsSection(SettingsSection):
    """Limits: what one server process takes on."""

    session_ttl_s: Duration = 7200.0
    """A session without a request for this long expires.

    Raise it where an agent's tool may run for more than two hours, lower it where agents often vanish.
    """
    max_sessions: Count = 65536
    """Sessions at a time.

    Raise it for larger batches, as far as memory allows.
    """
    max_session_turns: Count = 10000
    """Turns of one session.

    Lower it to stop agents that loop, raise it for the longest of tasks.
    """
    max_memory_bytes: Bytes = ByteSize(8 << 30)
    """Sessions in memory; beyond it the rows of idle sessions move to disk, and then new sessions are refused.

    Set it to what the machine can spare for each worker. With `--store` rows of recorded turns are in no memory.
    """
    spill_directory: str | None = None
    """Folder for rows that moved to disk, in files without a name. Unset: a temporary one.

    Set it to a fast local disk where the temporary folder is small or in memory. Without use where `--store` has rows.
    """
    max_body_bytes: Bytes = ByteSize(256 << 20)
    """Body of one request, whoever sends it.

    Raise it for trainers whose requests are refused with a 413.
    """
    max_turn_body_bytes: Bytes = ByteSize(64 << 20)
    """Body of what an agent sends: a turn, a count, a request that is passed through.

    Raise it, and the limit of all bodies where it is lower, for conversations whose requests are refused with a 413.
    """
    max_peer_connections: Count = 16384
    """Connections of one address at a time.

    Raise it where one proxy stands before more agents than this, lower it where agents are many and not trusted.
    """
    max_in_flight: Count = 8192
    """Requests at a time.

    Raise it where more agents than this ask at a time and the engines can take them.
    """
