"""Rules about the server itself: its version, addresses, ports, times."""

from urllib.parse import urlsplit

from turnkeeper.config.credentials import hide_userinfo, is_sendable, read_keys, split_address
from turnkeeper.config.option import OPTIONS
from turnkeeper.config.rule import Entry, Situation, rule
from turnkeeper.config.rules.run import JUDGED
from turnkeeper.errors import ConfigError
from turnkeeper.fields import Use, find_field, is_reaching
from turnkeeper.passthrough import parse_open_route

_HIGHEST_PORT = 65535

_FORWARDED_ALREADY = "the field reaches the engines as it is, leave the option out"
_NEVER_FORWARDED = {
    Use.FIXED: "the server fixes the value of this field, leave the option out",
    Use.PLACEMENT: "agents never choose weights, addresses or priority, leave the option out",
    Use.TOKENS: "the field would take the tokens of a turn out of the server's hands, leave the option out",
}


@rule(when="`--use-session-server` is given", must="its value is v1 or v2")
def version_known(at: Situation) -> str | None:
    """There are two kinds of session server: v1 keeps one line of turns, v2 a tree."""
    version = at.settings.server.use_session_server
    if version in (None, "v1", "v2"):
        return None
    return (
        f"--use-session-server {version} is no session server version: write v1 (or the flag alone) for one line "
        "of turns, v2 for a tree"
    )


@rule(when="on `turnkeeper serve`", must="no option is given that only steers a trainer")
def trainer_option(at: Situation) -> str | None:
    """Such an option has no effect on a session server and would be believed to have one."""
    if at.entry is not Entry.SERVE:
        return None
    given = [
        f"{option.flag} belongs to the trainer: leave it out here and give it to the trainer"
        for option in OPTIONS
        if option.section == "trainer" and option.attribute not in JUDGED and at.is_given(option.attribute)
    ]
    return "\n".join(given) or None


@rule(when="on `turnkeeper serve`", must="there is a `--backend-url`")
def engine_given(at: Situation) -> str | None:
    """A session server generates nothing itself."""
    if at.entry is not Entry.SERVE or at.settings.engine.backend_url:
        return None
    return "no engine to generate with: set --backend-url, for example --backend-url http://127.0.0.1:30000"


@rule(when="`--backend-url` is given", must="each is an http or https address")
def engine_address(at: Situation) -> str | None:
    """Engines and routers are called over HTTP."""
    bad = [url for url in at.settings.engine.backend_url if not _is_address(url)]
    if not bad:
        return None
    return f"--backend-url {hide_userinfo(' '.join(bad))} is no engine's address: write http://HOST:PORT"


@rule(when="`--trace-endpoint` is given", must="it is an http or https address without user and password")
def trace_endpoint(at: Situation) -> str | None:
    """Traces are sent over HTTP, and the address is shown; credentials are OTEL_EXPORTER_OTLP_HEADERS's."""
    url = at.settings.server.trace_endpoint
    if url is None:
        return None
    if not _is_address(url):
        return f"--trace-endpoint {hide_userinfo(url)} is no collector's address: write http://HOST:4318/v1/traces"
    if split_address(url).authorization is None:
        return None
    return (
        f"--trace-endpoint {hide_userinfo(url)} holds a user and a password: set OTEL_EXPORTER_OTLP_HEADERS in the "
        "environment instead, for example authorization=Basic%20..."
    )


@rule(when="`--engine-api-key` or `--engine-api-key-file` is given", must="there is one key that a header can hold")
def engine_key(at: Situation) -> str | None:
    """Every engine is sent one key, in a header that holds printable ASCII characters without spaces."""
    engine = at.settings.engine
    if engine.engine_api_key is not None and engine.engine_api_key_file is not None:
        return "--engine-api-key and --engine-api-key-file both give the key for the engines: leave one out"
    try:
        keys = () if engine.engine_api_key_file is None else read_keys(engine.engine_api_key_file)
    except ConfigError as error:
        return f"--engine-api-key-file: {error}"
    if len(keys) > 1:
        return f"--engine-api-key-file {engine.engine_api_key_file} holds {len(keys)} keys: leave one"
    keys = keys if engine.engine_api_key is None else (engine.engine_api_key,)
    if all(map(is_sendable, keys)):
        return None
    return "--engine-api-key: a key has printable ASCII characters and no spaces"


@rule(when="`--api-key` or `--api-key-file` is given", must="each key is one that a header can hold")
def server_keys(at: Situation) -> str | None:
    """Clients send a key in a header, which holds printable ASCII characters without spaces."""
    server = at.settings.server
    try:
        keys = () if server.api_key_file is None else read_keys(server.api_key_file)
    except ConfigError as error:
        return f"--api-key-file: {error}"
    if all(map(is_sendable, (*server.api_key, *keys))):
        return None
    return "--api-key: a key has printable ASCII characters and no spaces"


@rule(when="`--forward-field` is given", must="each is a field on no list")
def forwarded_fields(at: Situation) -> str | None:
    """The server already forwards, fixes or refuses the fields on its list, so the option could only contradict it."""
    problems = [
        f"--forward-field {name}: {_FORWARDED_ALREADY if is_reaching(row) else _NEVER_FORWARDED[row.use]}"
        for name in at.settings.engine.forward_field
        if (row := find_field(name)) is not None and (is_reaching(row) or row.use in _NEVER_FORWARDED)
    ]
    return "\n".join(problems) or None


@rule(when="`--pass-through` is given", must="each is a GET or POST route that neither generates nor controls")
def passed_through(at: Situation) -> str | None:
    """Through other routes agents could generate tokens that no turn records, or steer the engines of everybody."""
    problems = [
        f"--pass-through {route!r}: {problem}"
        for route in at.settings.server.pass_through
        if (problem := _explain_route(route))
    ]
    return "\n".join(problems) or None


def _explain_route(route: str) -> str | None:
    try:
        parse_open_route(route)
    except ValueError as error:
        return str(error)
    return None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(split_address(url).url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


@rule(when="always", must="`--session-server-port` has one value")
def one_port(at: Situation) -> str | None:
    """The processes of a server listen on consecutive ports from one start port."""
    ports = at.settings.server.session_server_port
    if len(ports) == 1:
        return None
    return (
        f"--session-server-port takes one start port, got {' '.join(map(str, ports))}: give the first, and "
        "--session-server-workers N for N processes on consecutive ports"
    )


@rule(when="always", must="`--session-server-workers` is at least 1")
def some_workers(at: Situation) -> str | None:
    """Without a process nobody serves."""
    workers = at.settings.server.session_server_workers
    return f"--session-server-workers {workers}: at least 1 process must serve" if workers < 1 else None


@rule(when="always", must="the last worker's port is at most 65535")
def ports_exist(at: Situation) -> str | None:
    """Every process needs a port of its own, and there is none above 65535."""
    first, workers = at.settings.server.session_server_port[0], at.settings.server.session_server_workers
    last = first + workers - 1
    if first == 0 or last <= _HIGHEST_PORT:
        return None
    return (
        f"--session-server-port {first} with --session-server-workers {workers} ends at port {last}, behind "
        f"{_HIGHEST_PORT}: start lower"
    )


@rule(when="`--request-timeout` is given", must="`--engine-timeout` and `--gate-timeout` < `--request-timeout`")
def timeouts_nest(at: Situation) -> str | None:
    """An outer timeout must be longer than those it encloses."""
    timeouts = at.settings.timeouts
    outer = timeouts.request_timeout_s
    if outer is None:
        return None
    inner = {"engine_timeout": timeouts.engine_timeout_s, "gate_timeout": timeouts.gate_timeout_s}
    broken = [
        f"{at.describe(name)} must be shorter than {at.describe('request_timeout')}"
        for name, value in inner.items()
        if value >= outer
    ]
    if not broken:
        return None
    return (
        f"timeouts do not nest: {', and '.join(broken)} (seconds); raise the outer one, lower the inner one, or leave "
        "--request-timeout out"
    )
