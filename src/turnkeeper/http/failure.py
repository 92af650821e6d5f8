"""Errors as responses: one place that turns an exception into status, headers and body.

The control plane says ``{"error": "<message>", "code": "<snake_case>"}``; a turn's dialect says it in its own form.
"""

import logging
from collections.abc import Awaitable, Callable

from turnkeeper.dialects.dialect import Dialect
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.disclosure import tell
from turnkeeper.errors import TurnkeeperError
from turnkeeper.headers import JSON_HEADERS
from turnkeeper.http.exchange import Exchange
from turnkeeper.http.headers import build_error_headers
from turnkeeper.service.turns import ClientGoneError

logger = logging.getLogger("turnkeeper.http")


def render_control_error(error: TurnkeeperError) -> bytes:
    """Render the error as the body that the control plane answers."""
    return encode_json({"error": str(error), "code": error.code})


def convert_error(error: Exception) -> TurnkeeperError:
    """Turn any exception into an error of turnkeeper; an unexpected one is logged, and its details are kept back."""
    if isinstance(error, TurnkeeperError):
        return error
    logger.error("unforeseen %s", type(error).__name__, exc_info=error)
    return TurnkeeperError(f"internal error: {type(error).__name__}", hint="the server's log has the details")


def tell_caller(error: TurnkeeperError, exchange: Exchange) -> TurnkeeperError:
    """Reduce an error to what its caller may know; the log has which engine it was and why."""
    return error if exchange.caller.is_admin else tell(error)


async def answer_or_explain(
    exchange: Exchange,
    handle: Callable[[Exchange], Awaitable[None]],
    dialect: Dialect | None = None,
    on_error: Callable[[TurnkeeperError], None] | None = None,
) -> None:
    """Run a handler; an error becomes the response, unless one was started or the client has left.

    Args:
        exchange: the request and its response.
        handle: answers it.
        dialect: whose form an error takes; None for the control plane's.
        on_error: told of every error.
    """
    try:
        await handle(exchange)
    except ClientGoneError:
        return
    except Exception as raised:
        error = convert_error(raised)
        if on_error is not None:
            on_error(error)
        if exchange.is_started:
            raise
        error = tell_caller(error, exchange)
        status = dialect.choose_status(error) if dialect else error.http_status
        body = dialect.render_error(error) if dialect else render_control_error(error)
        await exchange.respond(status, body, {**JSON_HEADERS, **build_error_headers(error)})
