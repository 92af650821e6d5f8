"""Connections to engines: the HTTP client, large replies, server-sent events."""
