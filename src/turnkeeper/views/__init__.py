"""Sessions as people read them: from a server, a store or payload files; as a tree, as text, explained in sentences."""

from turnkeeper.views.explain import SessionExplanation, explain_session
from turnkeeper.views.session import ShownSession, ShownTurn
from turnkeeper.views.source import SessionSource, open_source

__all__ = ["SessionExplanation", "SessionSource", "ShownSession", "ShownTurn", "explain_session", "open_source"]
