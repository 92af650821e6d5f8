"""For trainers that own the command line and start the session server themselves.

Everything here takes the trainer's own namespace; `turnkeeper.config.namespace` says what it must have.
"""

import logging

from turnkeeper.config.namespace import miles_validate_args, resolve_namespace, validate_args
from turnkeeper.config.parser import add_arguments
from turnkeeper.http.app import build_app
from turnkeeper.server.build import build_service
from turnkeeper.server.workers import serve_workers

logger = logging.getLogger("turnkeeper")


class SessionServer:
    """A session server as an ASGI application, for whoever serves it."""

    def __init__(self, args: object, backend_url: str) -> None:
        """Build the application, and log what is risky.

        Args:
            args: the trainer's namespace.
            backend_url: the engine or router that generates; several stand with spaces between.

        Raises:
            ConfigError: `ArgumentErrors` with everything that cannot work, or a checkpoint that cannot be read.
        """
        self.config = resolve_namespace(args, tuple(backend_url.split()))
        for warning in self.config.warnings:
            logger.warning("%s", warning)
        self.backend_url = backend_url
        self.app = build_app(build_service(self.config))

    @property
    def use_addition_r3(self) -> bool:
        """Whether turns ask for the routing rows they add, not for all rows."""
        return self.config.use_addition_r3


def run_session_server(args: object, backend_url: str) -> None:
    """Serve until this process is told to end; the target of a spawned process.

    Args:
        args: the trainer's namespace.
        backend_url: the engine or router that generates; several stand with spaces between.

    Raises:
        ConfigError: `ArgumentErrors` with everything that cannot work, or a checkpoint that cannot be read.
        OSError: the address cannot be bound.
        SystemExit: one of several processes failed; with its status.
    """
    status = serve_workers(resolve_namespace(args, tuple(backend_url.split())))
    if status:
        raise SystemExit(status)


__all__ = ["SessionServer", "add_arguments", "miles_validate_args", "run_session_server", "validate_args"]
