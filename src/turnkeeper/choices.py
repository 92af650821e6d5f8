"""The closed choices that an operator makes, each word once.

An option's value, a row of the docs and a branch in the code use the same member. Knows no defaults: those stand
with the options.
"""

from enum import StrEnum


class HistoryKind(StrEnum):
    """How a session's forest of turns is read."""

    LINEAR = "linear"
    """One live path; a small step back is a retry; one sample."""
    TREE = "tree"
    """Every path is live; each picked leaf is a sample."""


class OnToolsChange(StrEnum):
    """A request that continues a path with other tools or template arguments than its root."""

    FORK = "fork"
    """Starts a new root."""
    KEEP = "keep"
    """Goes on with the stored ids, and the turn is flagged."""
    REFUSE = "refuse"
    """Is a 400."""


class OnTruncated(StrEnum):
    """A request that extends a turn which ended by length."""

    CLOSE = "close"
    """Is a 400."""
    BRIDGE = "bridge"
    """Goes on behind the closing ids that the model never sampled, with loss 0 on them."""


class OnImage(StrEnum):
    """An image in what an agent sends."""

    REFUSE = "refuse"
    """Is a 400."""
    OMIT = "omit"
    """Is left out, with one fixed text in its place."""


class OnRewrittenCalls(StrEnum):
    """A stored reply that comes back under its own call ids with other tool arguments, or without its text."""

    FORK = "fork"
    """Is not the stored reply: the request branches off or starts a root."""
    FIRST = "first"
    """Is the stored reply in the form that the first request to go on from it brings; any later form forks."""
    ALWAYS = "always"
    """Is the stored reply in every form."""


class PauseMode(StrEnum):
    """What a weight update does to generation in flight."""

    ABORT = "abort"
    """It ends with the tokens it has."""
    RETRACT = "retract"
    """It is queued again, and its KV cache is computed again under the new weights."""
    IN_PLACE = "in_place"
    """It is frozen and resumes on its KV cache."""


class OnAbort(StrEnum):
    """A turn that a weight update aborted."""

    RESTART = "restart"
    """Is generated again: one version for all its tokens."""
    RESUME = "resume"
    """Goes on from its partial tokens."""
    FAIL = "fail"
    """Is answered 503 with Retry-After."""


class RowsKept(StrEnum):
    """Which routing rows a sample carries where a later payload differs from an earlier one."""

    DECODE = "decode"
    """Those of the forward that sampled the token."""
    LATEST = "latest"
    """Those of the newest payload."""


class OnRecomputed(StrEnum):
    """A turn whose rows were computed again inside the engine after tokens had been sampled."""

    KEEP = "keep"
    """Is marked, and trains."""
    MASK = "mask"
    """Is marked, and does not train."""
    FAIL = "fail"
    """Is a 502."""


class OnNotReplayable(StrEnum):
    """A turn whose weights were changed in a way that no sampling mask explains: penalties, biases, grammars."""

    KEEP = "keep"
    """Is marked, and trains."""
    MASK = "mask"
    """Is marked, and does not train."""
    REFUSE = "refuse"
    """Is a 400."""


class OnBadRows(StrEnum):
    """A reply whose routing rows cannot be true, and a sample whose routing rows the store has lost."""

    FAIL = "fail"
    """The reply is a 502 that names the likely cause; the sample is refused."""
    MASK = "mask"
    """The reply is recorded, and the sample made, without loss from the first bad row on."""


class TokenizerBackend(StrEnum):
    """Which library makes ids of text; both give the same ids, or the fast one is not used."""

    AUTO = "auto"
    """`fastokens` where it is installed and its ids are those of `tokenizers`; `tokenizers` until that is known."""
    TOKENIZERS = "tokenizers"
    """Hugging Face's library."""
    FASTOKENS = "fastokens"
    """The fast one from the first turn on; nothing starts where it is missing or gives other ids."""


class RenderTools(StrEnum):
    """In which form tools are rendered into a prompt."""

    AS_SENT = "as_sent"
    """As the client sent them: its keys in its order, nothing added."""
    ENGINE = "engine"
    """As SGLang's chat route renders them: description, name, parameters and strict of each function, in that order."""


class EngineKind(StrEnum):
    """Whose wire the engine speaks."""

    AUTO = "auto"
    """Found out by asking it."""
    SGLANG = "sglang"
    """SGLang, or anything that speaks its wire."""
    VLLM = "vllm"
    """vLLM."""


class EngineWire(StrEnum):
    """Which route of the engine generates."""

    CHAT = "chat"
    """Chat completions with prompt ids: the engine parses the reply."""
    GENERATE = "generate"
    """Ids in and ids out: the reply is parsed here."""


class LogLevel(StrEnum):
    """The least severe lines of the log."""

    ERROR = "error"
    """Faults of the server alone."""
    WARNING = "warning"
    """Also what an operator should look at, such as an engine that is out of reach."""
    INFO = "info"
    """Also a line for each turn, refused request, session and change."""
    DEBUG = "debug"
    """Also how each turn came about: matching, rendering, engine calls."""


class LogFormat(StrEnum):
    """The form of the log's lines."""

    TEXT = "text"
    """Time, level, name and ``key=value`` pairs."""
    JSON = "json"
    """One JSON object a line, with the same keys."""


class Durability(StrEnum):
    """What a stored turn survives."""

    PROCESS = "process"
    """The death of the process: the kernel holds what was written, and nothing is ever synced."""
    SYNC = "sync"
    """That of the machine as well: each group of writes is on the medium before anyone is told."""


class StoredState(StrEnum):
    """The state of a stored session."""

    OPEN = "open"
    """The session takes turns, or would, if its server asked for it."""
    CLOSED = "closed"
    """The session takes no further turns, and can still be read and collected at its server."""
    EXPIRED = "expired"
    """The session was idle for longer than its time to live; its records stay until retention removes them."""
    DELETED = "deleted"
    """The session was deleted. Its line stays, so that nothing brings it back; its records may be gone."""

    @property
    def is_served(self) -> bool:
        """True while a server answers requests for the session."""
        return self in (StoredState.OPEN, StoredState.CLOSED)
