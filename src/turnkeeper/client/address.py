"""The address of a session: what an agent is given, whichever client opened the session."""

from turnkeeper.errors import RequestError


class SessionAddress:
    """Where a session is served, and the key that opens it to its agent."""

    def __init__(self, server_url: str, session_id: str, key: str | None) -> None:
        self.session_id = session_id
        """32 hexadecimal digits."""
        self.url = f"{server_url}/sessions/{session_id}"
        """The session's own URL, at the worker that it lives in."""
        self.server_url = server_url
        """The address of that worker."""
        self.known_key = key
        """The key of the session's agent; None where the server has keys and this client was not told it."""

    @property
    def key(self) -> str:
        """The API key of the session's agent, which opens the session and nothing else; on a server without keys the
        session's id. Whoever has it may take turns: keep it out of logs.

        Raises:
            RequestError: the session was found by its id on a server with keys, which tells a key only when it opens
                the session.
        """
        if self.known_key is None:
            raise RequestError(
                f"the key of session {self.session_id} is known only to the client that opened it",
                hint="hand it on together with the id: open(session_id, key=...)",
                param="key",
            )
        return self.known_key

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI clients; it ends in ``/v1``."""
        return f"{self.url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """The base URL for Anthropic clients, which add ``/v1`` themselves."""
        return self.url

    def __repr__(self) -> str:
        """The session without its key."""
        return f"<{type(self).__name__} {self.url}>"
