"""The embedded engine over HTTP, on SGLang's wire."""

from turnkeeper.tiny.server.app import build_app

__all__ = ["build_app"]
