"""One session of a server, as whoever opened or found it holds it: its samples, its record, its end."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from turnkeeper.client.address import SessionAddress
from turnkeeper.client.body import drop_none
from turnkeeper.client.requester import Requester
from turnkeeper.client.retry import Retry
from turnkeeper.errors import SessionNotFoundError
from turnkeeper.jsontypes import JsonObject

if TYPE_CHECKING:
    from turnkeeper.samples import SampleBatch


class SessionHandle(SessionAddress):
    """A session of a server."""

    def __init__(self, requester: Requester, server_url: str, session_id: str, key: str | None) -> None:
        super().__init__(server_url, session_id, key)
        self._requester = requester

    async def samples(
        self,
        *,
        max_seq_len: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        rewards: Mapping[str, Any] | None = None,
        since: str | None = None,
    ) -> "SampleBatch":
        """Collect the session's training samples; the session stays open and repeating this gives the same.

        Numbers may be those of numpy or torch.

        Args:
            max_seq_len: cut every sample to so many tokens.
            metadata: comes back with the samples; its ``reward`` becomes the reward of each.
            rewards: rewards of single turns, a number or an object each, by the id of the reply that the agent got.
                That of a sample's last turn is the sample's own, in place of ``metadata["reward"]``.
            since: a receipt that was acknowledged, whose turns come along without loss.

        Returns:
            The samples, and the ``receipt`` by which `ack` says that they arrived.

        Raises:
            RequestError: a reward or another number is not finite, or a reward names no turn of the session.
            ReceiptUnknownError: ``since`` is no receipt of the session.
            AssemblyError: the turns do not make samples.
            SessionNotFoundError: the session is gone.
        """
        from turnkeeper.samples import decode_samples

        payload = await self.samples_payload(max_seq_len=max_seq_len, metadata=metadata, rewards=rewards, since=since)
        return decode_samples(payload)

    async def samples_payload(
        self,
        *,
        max_seq_len: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        rewards: Mapping[str, Any] | None = None,
        since: str | None = None,
    ) -> bytes:
        """Collect the session's training samples as the safetensors payload of the server, for files, queues and
        `decode_samples` later. Arguments and errors are those of `samples`.
        """
        body = drop_none({"max_seq_len": max_seq_len, "metadata": metadata, "rewards": rewards, "since": since})
        return (await self._requester.call("POST", f"{self.url}/samples", body)).body

    async def ack(self, receipt: str) -> list[int]:
        """Say that the trainer has the samples of a receipt for good; saying it again changes nothing.

        Args:
            receipt: that of a `SampleBatch`; `compute_receipt` computes it for a payload.

        Returns:
            The ids of the turns that the receipt stands for, in or out of samples.

        Raises:
            ReceiptUnknownError: the session has no such receipt.
            SessionNotFoundError: the session is gone.
        """
        reply = await self._requester.call("POST", f"{self.url}/ack", {"receipt": receipt})
        return reply.read_object("turns")["turns"]

    async def info(self) -> JsonObject:
        """Return the session as ``GET /sessions/{id}`` shows it: ``session_id``, ``records``, ``metadata``."""
        return (await self._requester.call("GET", self.url)).read_object()

    async def delete(self, *, retry: Retry | None = None) -> None:
        """End the session.

        Args:
            retry: how often the call is made again, in place of what the client was told.

        Raises:
            SessionNotFoundError: the session is gone already.
        """
        await self._requester.call("DELETE", self.url, done=SessionNotFoundError, retry=retry)
