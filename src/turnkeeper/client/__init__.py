"""The client of a session server."""
