"""Receipts over HTTP, with a store and without one.

1. The reply to a collect names its receipt, the digest of its body, in a header.
2. ``ack`` is a 200 for a receipt, as often as it is sent, also after a restart. Another receipt is a 404, and what is
   none a 400 that names the field.
3. Samples ``since`` a receipt leave out the loss of its turns.
4. The key of a session acknowledges with the scope ``collect``, in its own session.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from httpkit import Site, running_site
from servicekit import user
from storekit import FINGERPRINT, SECRET
from turnkeeper.samples import compute_receipt, decode_samples
from turnkeeper.service.sessions.keeping.storing import StoreKeeper
from turnkeeper.store import RetentionRules, SessionStore
from turnkeeper.testing import ManualClock

HEADER = "x-turnkeeper-receipt"
Serve = Callable[..., AbstractAsyncContextManager[Site]]


@asynccontextmanager
async def serving_from_store(folder: Path, **options: Any) -> AsyncGenerator[Site]:
    """A server with its store in this folder."""
    store = SessionStore.open(folder, fingerprint=FINGERPRINT, secret=SECRET)
    store.start()
    retention = RetentionRules(keep_s=86400.0, tombstone_s=3600.0)
    build_keeper = partial(StoreKeeper, store, clock=ManualClock(), retention=retention)
    async with running_site(build_keeper=build_keeper, **options) as site:
        yield site


@asynccontextmanager
async def serving_from_memory(_: Path, **options: Any) -> AsyncGenerator[Site]:
    """A server without a store."""
    async with running_site(**options) as site:
        yield site


SERVERS: dict[str, Serve] = {"store": serving_from_store, "memory": serving_from_memory}


@pytest.fixture(params=SERVERS)
def serve(request: pytest.FixtureRequest) -> Serve:
    """Serves with a store in a folder, or without one."""
    return SERVERS[request.param]


async def collect(site: Site, session: str, **body: Any) -> tuple[str, Any]:
    """The receipt, and the samples."""
    reply = await site.call("POST", f"{session}/samples", body)
    assert reply.status == 200, reply.body
    receipt = reply.headers[HEADER]
    batch = decode_samples(reply.body)
    assert receipt == compute_receipt(reply.body) == batch.receipt
    return receipt, batch


REFUSED: dict[str, tuple[str, Any, int, str, str]] = {
    "no body": ("ack", None, 400, "request", "receipt must be"),
    "no receipt": ("ack", {}, 400, "request", "receipt must be"),
    "null": ("ack", {"receipt": None}, 400, "request", "receipt must be"),
    "a number": ("ack", {"receipt": 7}, 400, "request", "receipt must be"),
    "another field": ("ack", {"receipt": "x", "turns": 1}, 400, "request", "turns is not a field of ack"),
    "an unknown one": ("ack", {"receipt": "0" * 32}, 404, "receipt_unknown", "no collect of session"),
    "an empty one": ("ack", {"receipt": ""}, 404, "receipt_unknown", "no collect of session"),
    "since a number": ("samples", {"since": 7}, 400, "request", "since must be"),
    "since an unknown one": ("samples", {"since": "0" * 32}, 404, "receipt_unknown", "no collect of session"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
async def test_what_is_no_receipt_is_refused(
    tmp_path: Path, serve: Serve, case: tuple[str, Any, int, str, str]
) -> None:
    path, body, status, code, said = case
    async with serve(tmp_path) as site:
        session = await site.create()
        await site.chat(session, [user("a")])
        await collect(site, session)
        reply = await site.call("POST", f"{session}/{path}", body)
        assert (reply.status, reply.json()["code"]) == (status, code)
        assert said in reply.json()["error"]
        assert HEADER not in reply.headers


async def test_a_receipt_is_acknowledged_again_and_again(tmp_path: Path, serve: Serve) -> None:
    async with serve(tmp_path) as site:
        session = await site.create()
        await site.chat(session, [user("a")])
        receipt, before = await collect(site, session)
        unsaid = await site.call("POST", f"{session}/samples", {"since": receipt})
        assert (unsaid.status, unsaid.json()["code"]) == (400, "request")
        for _ in range(2):
            reply = await site.call("POST", f"{session}/ack", {"receipt": receipt})
            assert (reply.status, reply.json()) == (200, {"receipt": receipt, "turns": [0]})
        _, after = await collect(site, session, since=receipt)
        assert [int(sample.loss_mask.sum()) > 0 for sample in (*before.samples, *after.samples)] == [True, False]
        assert after.session_metadata["turnkeeper"]["acknowledged"] == reply.json()
        shown = (await site.call("GET", session)).json()["metadata"]["turnkeeper"]
        assert shown["acknowledged"] == reply.json()
        assert (await site.call("POST", f"/sessions/{'0' * 32}/ack", {"receipt": receipt})).status == 404


async def test_a_receipt_is_known_after_a_restart(tmp_path: Path) -> None:
    async with serving_from_store(tmp_path) as site:
        session = await site.create()
        await site.chat(session, [user("a")])
        receipt, _ = await collect(site, session)
    for _ in range(2):
        async with serving_from_store(tmp_path) as site:
            reply = await site.call("POST", f"{session}/ack", {"receipt": receipt})
            assert (reply.status, reply.json()) == (200, {"receipt": receipt, "turns": [0]})
            assert (await site.call("POST", f"{session}/ack", {"receipt": "0" * 32})).status == 404


@pytest.mark.parametrize(("scopes", "status"), [([], 403), (["read", "delete"], 403), (["collect"], 200)])
async def test_a_session_key_acknowledges_with_the_scope_collect(scopes: list[str], status: int) -> None:
    async with running_site(api_key="admin") as site:
        made = (await site.call("POST", "/sessions", {"scopes": scopes}, x_api_key="admin")).json()
        session = f"/sessions/{made['session_id']}"
        collected = await site.call("POST", f"{session}/samples", x_api_key="admin")
        body = {"receipt": collected.headers[HEADER]}
        assert (await site.call("POST", f"{session}/ack", body, x_api_key=made["key"])).status == status
        assert (await site.call("POST", f"{session}/ack", body)).status == 401
