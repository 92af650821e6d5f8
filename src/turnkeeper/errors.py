"""Every error that turnkeeper raises on purpose.

::

    TurnkeeperError                        500
    |- ConfigError                         exit status 2
    |  |- ArgumentErrors                   all violated rules at once
    |  |- StoreVersionError                a newer version wrote the store, or a record of it
    |  |- StoreMismatchError               the store was made for other slots, or for another tokenizer or template
    |  `- StoreLockedError                 another process has the slot
    |- RequestError                        400  a body or field is malformed, or asks for what is refused
    |  |- HistoryDivergedError             400  the messages contradict the stored path beyond the allowed rollback
    |  |- RoleNotAppendableError           400  the family has no place for a message of this role
    |  |- TruncatedTurnError               400  extends a turn that ended by length
    |  |- AssistantLastError               400  ends with an assistant message, behind which nothing is asked
    |  |- TemplateError                    400  the chat template refuses these messages
    |  |- TurnLimitError                   400  the session has all the turns it may have
    |  |- ContextLengthError               400  the prompt, or the session, is over its token limit
    |  |- FieldNotAllowedError             400  a field that chooses weights, addresses or priority
    |  `- UnrecordedGenerationError        400  a pass-through route would generate without a record
    |- AuthenticationError                 401  no key, or none that is known
    |- PermissionDeniedError               403  the key is known, and does not open this
    |- SessionNotFoundError                404
    |  |- SessionExpiredError              404
    |  `- SessionClosedError               404  deleted, or takes no further turns
    |- RouteNotServedError                 404  a route that is not for agents
    |- MethodNotAllowedError               405  the route has other methods
    |- RequestTimeoutError                 408  the request did not come in
    |- BodyTooLargeError                   413
    |- UnsupportedEncodingError            415  the body is compressed
    |- AssemblyError                       422  turns do not make a sample
    |  `- HookError                        422  a picker or postprocessor failed or broke its contract
    |- HeaderTooLargeError                 431
    |- CapacityError                       429  a limit of the server, named
    |- ServerUnreachableError              503  the client found no session server
    |- ServerReplyError                    502  what answered the client is no session server, or something between
    |- ServerDrainingError                 503  the server is stopping and takes no new sessions and turns
    |- ProcessError                        exit status 1  a command that was started did not get ready
    |- TokenIntegrityError                 500  a prompt does not start with its parent's path
    |- PayloadError                      500  a samples payload has another form (raised where it is read)
    |- StoreRecordError                    500  a stored record is torn or corrupt
    |- StoreWriteError                     503  a turn could not be written: the disk is full or fails
    |- StoreFullError                      503  the store has all the bytes it may have; refuses new sessions
    |- MatcherError                        500  a message matcher given by import path broke its contract
    `- EngineError                         502  no connection, reset or broken reply
       |- RequestHookError                 500  the operator's hook on engine calls failed
       |- EngineProtocolError              502  the reply lacks or contradicts what a turn needs
       |- EngineRefusedError               400, 413 or 429, the engine's own
       |- EnginePausedError                503  the gate's deadline passed; retryable
       |- TurnAbortedError                 503  an abort that belongs to no weight update; not retryable
       `- EngineTimeoutError               504

A class fixes ``status``, ``code`` (its name in snake case), ``is_retryable`` and ``public_message``. An instance
carries one sentence that says what was expected, what came and where, an optional ``hint`` that says what to
do, and ``facts``, JSON-ready values for programs. To add one: derive from the nearest parent, set the class
attributes that differ, add the line above. Instances pickle, since they cross processes.
"""

import re
from typing import Any, ClassVar


class TurnkeeperError(Exception):
    """The root of all errors that turnkeeper raises on purpose."""

    status: ClassVar[int] = 500
    is_retryable: ClassVar[bool] = False
    public_message: ClassVar[str] = ""
    """The text that callers other than the admin get in place of the message, where it may hold what an engine or the
    operator's own code said; empty where the message holds none."""

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        """Say what happened.

        Args:
            message: expected, found and where, in one sentence.
            hint: what the reader can do about it.
            facts: JSON-ready values behind the message.
        """
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts: dict[str, Any] = facts

    def __init_subclass__(cls) -> None:
        """Give each class its code."""
        super().__init_subclass__()
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).lower()

    code: ClassVar[str] = "internal"

    @property
    def http_status(self) -> int:
        """The status that goes on the wire."""
        return self.status

    @property
    def retry_after_s(self) -> int | None:
        """Seconds after which a retry makes sense; None when it never does or the time is unknown."""
        value = self.facts.get("retry_after_s")
        if isinstance(value, int):
            return value
        return 1 if self.is_retryable and self.http_status in (429, 503) else None

    def __str__(self) -> str:
        """Return the message, with its hint behind it."""
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message, hint and facts."""
        return _rebuild, (type(self), self.message, self.hint, self.facts)


def _rebuild(cls: type[TurnkeeperError], message: str, hint: str, facts: dict[str, Any]) -> TurnkeeperError:
    return cls(message, hint=hint, **facts)


def describe_failure(error: TurnkeeperError) -> str:
    """Describe an error to somebody at a terminal: a line for each line of the message, then the hint."""
    lines = [f"turnkeeper: error: {line}" for line in error.message.splitlines()]
    return "\n".join([*lines, f"  hint: {error.hint}"] if error.hint else lines)


class ConfigError(TurnkeeperError):
    """An option, a file it names, or a combination of options cannot work."""


class ArgumentErrors(ConfigError, ValueError, AssertionError):  # noqa: N818 - it holds several
    """All violated argument rules at once; the text is the messages joined by newlines."""


class StoreVersionError(ConfigError):
    """A newer version wrote the store, or a record in it; facts: ``found``, ``known``."""


class StoreMismatchError(ConfigError):
    """The store was made for another number of slots, tokenizer, family or template; the message names which."""


class StoreLockedError(ConfigError):
    """Another process has the slot of the store."""


class RequestError(TurnkeeperError):
    """A body or field is malformed for its dialect, or asks for something that is refused."""

    status = 400


class HistoryDivergedError(RequestError):
    """The messages contradict the stored path by more than the allowed rollback."""


class RoleNotAppendableError(RequestError):
    """The family has no place for a message of this role; facts: ``role``, ``family``."""


class TruncatedTurnError(RequestError):
    """The request extends a turn that ended by length, and the server closes those."""


class AssistantLastError(RequestError):
    """The request ends with an assistant message: a reply is not continued from a given beginning."""


class TemplateError(RequestError):
    """The checkpoint's chat template refuses these messages."""


class TurnLimitError(RequestError):
    """The session has all the turns it may have."""


class ContextLengthError(RequestError):
    """The prompt does not fit; facts: ``prompt_tokens``, ``limit_tokens``."""


class FieldNotAllowedError(RequestError):
    """A field chooses weights, addresses or priority, which is not for agents; facts: ``param``."""


class UnrecordedGenerationError(RequestError):
    """A pass-through route would generate tokens that no turn records."""


class AuthenticationError(TurnkeeperError):
    """The key is missing, unknown, or that of a session that has ended."""

    status = 401


class PermissionDeniedError(TurnkeeperError):
    """The key is known, and lacks a scope or is another session's; facts: ``scope``."""

    status = 403


class SessionNotFoundError(TurnkeeperError):
    """No session has this id."""

    status = 404


class SessionExpiredError(SessionNotFoundError):
    """The session was idle for longer than its time to live."""


class SessionClosedError(SessionNotFoundError):
    """The session was deleted while the request ran, or takes no further turns."""


class ReceiptUnknownError(TurnkeeperError):
    """No collect of the session has this receipt."""

    status = 404


class RouteNotServedError(TurnkeeperError):
    """The route is not for agents."""

    status = 404


class MethodNotAllowedError(TurnkeeperError):
    """The route does not have this method; the header ``Allow`` lists those that it has."""

    status = 405


class BodyTooLargeError(TurnkeeperError):
    """The body is over the limit."""

    status = 413


class HeaderTooLargeError(TurnkeeperError):
    """Request line and headers are over the limit."""

    status = 431


class RequestTimeoutError(TurnkeeperError):
    """The request did not come in: its head in time, or its body at any pace."""

    status = 408
    is_retryable = True


class UnsupportedEncodingError(TurnkeeperError):
    """The body is compressed, or encoded in another way, and bodies are read as they come; facts: ``encoding``."""

    status = 415


class AssemblyError(TurnkeeperError):
    """Turns do not make a sample; the message names the turn and the invariant."""

    status = 422


class HookError(AssemblyError):
    """A picker or postprocessor raised or broke its contract; the message names it."""

    public_message = "a hook of the server failed on the session's samples"


class CapacityError(TurnkeeperError):
    """A limit of the server is reached; the message names it."""

    status = 429
    is_retryable = True


class ServerUnreachableError(TurnkeeperError):
    """The client found no session server, or got no answer in time; facts: ``url``."""

    status = 503
    is_retryable = True


class ServerReplyError(TurnkeeperError):
    """The client got an answer that no session server gives: of another server, or of a proxy; facts: ``status``."""

    status = 502


class ServerDrainingError(TurnkeeperError):
    """The server was told to stop, and takes no new sessions and turns; facts: ``retry_after_s``."""

    status = 503
    is_retryable = True


class ProcessError(TurnkeeperError):
    """A command that was started as a process did not get ready; facts: ``exit_status``."""


class TokenIntegrityError(TurnkeeperError):
    """A prompt does not start with its parent's path; facts: ``index``, ``expected``, ``found``."""


class StoreRecordError(TurnkeeperError):
    """A stored record is torn or corrupt, or it makes no event."""

    public_message = "a part of the session cannot be read from the store"


class StoreWriteError(TurnkeeperError):
    """A write to the store failed; facts: ``errno``, where the system gave one."""

    status = 503
    is_retryable = True
    public_message = "the store could not be written"


class StoreFullError(TurnkeeperError):
    """The store has all the bytes that it may have, so that no new session is opened; facts: ``retry_after_s``."""

    status = 503
    is_retryable = True


class MatcherError(TurnkeeperError):
    """A message matcher given by import path raised or returned no bool; facts: ``matcher``."""

    public_message = "the server's message matcher failed"


class PayloadError(TurnkeeperError, ValueError):
    """A samples payload has another form than the wire's."""


class EngineError(TurnkeeperError):
    """No connection, a reset or a broken reply; facts: ``url``."""

    status = 502
    is_retryable = True
    public_message = "the engine could not be reached, or failed"


class EngineProtocolError(EngineError):
    """The reply lacks or contradicts what a turn needs: logprobs, lengths, rows."""

    is_retryable = False
    public_message = "the engine's reply lacks or contradicts what a turn needs"


class RequestHookError(EngineError):
    """The operator's hook on engine calls raised or broke its contract; the message names it."""

    status = 500
    is_retryable = False
    public_message = "a hook of the server failed on the engine call"


class EngineRefusedError(EngineError):
    """The engine answered 400, 413 or 429 itself; facts: ``engine_status``, ``retry_after_s``."""

    @property
    def http_status(self) -> int:
        """The engine's own status."""
        return int(self.facts.get("engine_status", 400))

    is_retryable = False
    public_message = ""


class EnginePausedError(EngineError):
    """The engines are paused for longer than a turn waits."""

    status = 503
    public_message = ""


class TurnAbortedError(EngineError):
    """The engine aborted the turn, and no weight update explains it."""

    status = 503
    is_retryable = False
    public_message = ""


class EngineTimeoutError(EngineError):
    """The engine gave no answer in time."""

    status = 504
    public_message = "the engine gave no answer in time"
