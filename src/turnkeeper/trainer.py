"""The interface for trainers that own the command line and start the session server themselves.

Every function takes the trainer's own namespace; `turnkeeper.config.namespace` says what it must have.

``python -m turnkeeper.trainer --config-json JSON`` serves what the JSON object configures, for trainers that start a
session server by its command.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from types import SimpleNamespace

from turnkeeper.config.namespace import miles_validate_args, resolve_namespace, validate_args
from turnkeeper.config.parser import add_arguments
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.errors import ConfigError, describe_failure
from turnkeeper.http.app import build_app
from turnkeeper.server.build import build_parts
from turnkeeper.server.workers import serve_workers

logger = logging.getLogger("turnkeeper")


class SessionServer:
    """A session server as an ASGI application, to be served by any ASGI server."""

    def __init__(self, args: object, backend_url: str | None = None) -> None:
        """Build the application, and log the warnings about its configuration.

        Args:
            args: the trainer's namespace, or without ``backend_url`` the configuration of one session server.
            backend_url: the address of the engine or router that generates; several are separated by spaces.

        Raises:
            ConfigError: `ArgumentErrors` with everything that cannot work, or a checkpoint that cannot be read.
        """
        self.config = _resolve(args, backend_url)
        for warning in self.config.warnings:
            logger.warning("%s", warning)
        self.backend_url = " ".join(self.config.engine.backend_url)
        self.app = build_app(build_parts(self.config).backend)

    @property
    def use_addition_r3(self) -> bool:
        """True if turns ask for the routing rows that they add, and not for all rows."""
        return self.config.use_addition_r3


def run_session_server(args: object, backend_url: str | None = None) -> None:
    """Serve until the process is stopped; this is the target of a spawned process.

    Args:
        args: the trainer's namespace, or without ``backend_url`` the configuration of one session server.
        backend_url: the address of the engine or router that generates; several are separated by spaces.

    Raises:
        ConfigError: `ArgumentErrors` with everything that cannot work, or a checkpoint that cannot be read.
        OSError: the address cannot be bound.
        SystemExit: one of several processes failed; the exit status is that of the process.
    """
    status = serve_workers(_resolve(args, backend_url))
    if status:
        raise SystemExit(status)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve as a command until the process is stopped.

    Args:
        arguments: the words behind the command's name; None reads the process's own.

    Raises:
        SystemExit: the configuration cannot work (status 2).
    """
    parser = argparse.ArgumentParser(prog="python -m turnkeeper.trainer", allow_abbrev=False)
    parser.add_argument("--config-json", required=True, type=_parse_config, metavar="JSON")
    try:
        run_session_server(parser.parse_args(arguments).config_json)
    except ConfigError as error:
        sys.stderr.write(f"{describe_failure(error)}\n")
        raise SystemExit(2) from error


def _parse_config(text: str) -> SimpleNamespace:
    try:
        return SimpleNamespace(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"not a JSON object: {error}") from error


def _resolve(args: object, backend_url: str | None) -> ResolvedConfig:
    return resolve_namespace(args, None if backend_url is None else tuple(backend_url.split()))


__all__ = ["SessionServer", "add_arguments", "miles_validate_args", "run_session_server", "validate_args"]

if __name__ == "__main__":
    main()
