"""Serve sessions from one process, or from several that end together.

``python -m turnkeeper.server.workers`` is one of several: it gets its options from the process that started it.
"""

import asyncio
import dataclasses
import ipaddress
import logging
import pickle
import signal
import sys

from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.errors import ConfigError, describe_failure
from turnkeeper.logs import LogOptions, logging_to
from turnkeeper.server.engines import build_client, check_routes
from turnkeeper.server.group import read_task, run_group
from turnkeeper.server.serve import serve

logger = logging.getLogger("turnkeeper")

_KILL_MARGIN_S = 10.0
"""How long a process may take behind its drain before it is killed."""


def serve_workers(config: ResolvedConfig, *, is_whole_process: bool = False) -> int:
    """Serve from as many processes as the options say, until this one is told to end.

    Args:
        config: the options.
        is_whole_process: True where this process does nothing else, and its log is that of the server.

    Returns:
        The exit status: 0, or that of the process that ended by itself. A signal to end is raised again behind the end,
        so that this process ends by it unless it is handled.

    Raises:
        ConfigError: one process alone cannot start, or the engines fail a strict probe; several report their
            errors on stderr and end with status 2.
    """
    with logging_to(build_log_options(config), is_whole_process=is_whole_process):
        status = _serve_workers(config)
    if status in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        signal.raise_signal(status - 128)
    return status


def _serve_workers(config: ResolvedConfig) -> int:
    if not config.server.api_key and not is_loopback(config.server.session_server_ip):
        logger.warning("anybody who reaches %s may do everything here: set --api-key", config.server.session_server_ip)
    if config.engine.strict_probe:
        asyncio.run(check_engines(config))
    workers = split_workers(config)
    if len(workers) == 1:
        serve(workers[0])
        return 0
    return run_group(
        [sys.executable, "-m", "turnkeeper.server.workers"],
        [pickle.dumps(worker) for worker in workers],
        grace_s=config.timeouts.drain_timeout_s + _KILL_MARGIN_S,
    )


async def check_engines(config: ResolvedConfig) -> None:
    """Ask every engine once, with a generation of two tokens.

    Raises:
        ConfigError: one does not answer, or is unfit for what is asked of it; names all of them.
    """
    client = build_client(config)
    try:
        reports = await check_routes(config, client)
    finally:
        await client.close()
    problems = [f"{each.engine.url}: {each.result.reason}" for each in reports if each.result.reason]
    if problems:
        raise ConfigError("\n".join(["--strict-probe found engines that cannot serve", *problems]))


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split_workers(config: ResolvedConfig) -> tuple[ResolvedConfig, ...]:
    """Give each process its number and a name of its own; the first keeps the warnings."""
    if len(config.ports) == 1:
        return (config,)
    return tuple(
        dataclasses.replace(
            config,
            instance_id=f"{config.instance_id}-{number}",
            worker=number,
            warnings=() if number else config.warnings,
        )
        for number in range(len(config.ports))
    )


def build_log_options(config: ResolvedConfig) -> LogOptions:
    """Gather how a process logs; no line shows a key of the configuration."""
    engine = config.engine
    authorizations = (value for each in config.engine_authorizations.values() for value in (each, each.split()[-1]))
    return LogOptions(
        level=config.log.log_level,
        form=config.log.log_format,
        sessions=config.log.log_session,
        secrets=(*config.server.api_key, engine.engine_api_key or "", *authorizations),
        worker=config.worker,
    )


def main() -> None:
    """Serve as one of several processes."""
    config: ResolvedConfig = pickle.loads(read_task())
    try:
        with logging_to(build_log_options(config), is_whole_process=True):
            serve(config)
    except ConfigError as error:
        sys.stderr.write(f"{describe_failure(error)}\n")
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
