"""Receipts, in both forms of the client.

1. What is collected has its receipt, from the server, from a payload and from a payload's file alike.
2. ``ack`` says that the trainer has it, as often as it is called; ``since`` leaves the loss of its turns out.
3. What is no receipt of the session is an error that says so.
"""

from pathlib import Path

import pytest

from client.forms import FORMS, LossyTransport, MakeClient
from httpkit import running_site
from servicekit import user
from turnkeeper.client import SessionClient, read_payloads, write_payload
from turnkeeper.client.transports import AiohttpTransport
from turnkeeper.errors import ReceiptUnknownError, RequestError
from turnkeeper.samples import compute_receipt


@pytest.fixture(params=FORMS)
def make(request: pytest.FixtureRequest) -> MakeClient:
    """Makes a client of one form."""
    return FORMS[request.param]


async def test_a_trainer_acknowledges_and_goes_on_from_there(make: MakeClient, tmp_path: Path) -> None:
    async with running_site(use_session_server="v2") as site:
        session = await make(site.url).create()
        await site.chat(f"/sessions/{session.session_id}", [user("a")])
        payload = await session.samples_payload()
        write_payload(tmp_path / "a.safetensors", payload)
        (stored,) = read_payloads(tmp_path)
        batch = await session.samples()
        assert batch.receipt == compute_receipt(payload) == stored.batch.receipt
        with pytest.raises(RequestError, match="was not acknowledged"):
            await session.samples(since=batch.receipt)
        for _ in range(2):
            assert await session.ack(batch.receipt) == [0]
        (sample,) = (await session.samples(since=batch.receipt)).samples
        assert not sample.loss_mask.any()
        (again,) = (await session.samples()).samples
        assert again.loss_mask.any()
        with pytest.raises(ReceiptUnknownError, match="no collect of session"):
            await session.ack("0" * 32)
        with pytest.raises(ReceiptUnknownError):
            await session.samples_payload(since="0" * 32)


async def test_an_acknowledgement_whose_reply_got_lost_is_sent_again() -> None:
    async with running_site() as site:
        session = await SessionClient(site.url).create()
        receipt = (await session.samples()).receipt
        transport = LossyTransport(AiohttpTransport(timeout_s=10.0), losses=0)
        found = await SessionClient(site.url, transport=transport).open(session.session_id)
        transport.losses, transport.sent = 1, []
        assert await found.ack(receipt) == []
        assert [method for method, _ in transport.sent] == ["POST", "POST"]
