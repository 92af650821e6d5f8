"""Passes requests that are no turns through to the engine of their session."""

import logging
from collections.abc import Sequence

from turnkeeper.disclosure import list_hosts
from turnkeeper.engines import Engine, RelayReply, RelayRequest
from turnkeeper.engines.refusal import redact_reply
from turnkeeper.logs import LogEvent
from turnkeeper.service.service import SessionService

logger = logging.getLogger("turnkeeper.sessions")


class Relay:
    """The pass-through of one server."""

    def __init__(self, sessions: SessionService, engine: Engine, *, urls: Sequence[str]) -> None:
        """Pass requests through to an engine.

        Args:
            sessions: a session does not expire while one of its requests is passed through.
            engine: answers the requests.
            urls: the URLs of the engines, which replies to others than the admin do not name.
        """
        self._sessions = sessions
        self._engine = engine
        self._hosts = list_hosts(urls)

    async def send(self, session_id: str, call: RelayRequest, *, is_admin: bool = True) -> RelayReply:
        """Pass one request of a session through to its engine.

        Raises:
            SessionNotFoundError: there is no such session.
            EngineError: no connection or a broken reply.
        """
        with self._sessions.use(session_id):
            reply = await self._engine.relay(call)
        if is_admin:
            return reply
        told = redact_reply(reply, self._hosts)
        if told.body is not reply.body:
            logger.warning(
                LogEvent("relay_refused", session=session_id, method=call.method, path=call.path, status=reply.status)
            )
        return told
