"""A prefill and a decode worker behind a router, from two scripted engines.

::

    pair = ScriptedPair()
    async with running(pair.prefill) as one, running(pair.decode) as other, running(pair.router(one, other)) as url:
        ...                                        # point anything at url; script pair.decode

The reply is the decode worker's. That worker never forwards a prompt, so its rows of the prompt are what
its memory for them holds: zeros in a fresh one, rows of earlier requests later (``stale_rows``). The router joins the
prefill worker's rows to them on the routes of ``joins``; real ones do so on ``/generate`` or nowhere. Streams pass as
they are. Neither worker answers a request that a router did not give a room to meet in.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import aiohttp
import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from turnkeeper.jsontypes import JsonObject
from turnkeeper.testing.engine import ScriptedEngine
from turnkeeper.testing.exchange import RecordedRequest, ScriptedAnswer, read_request, send_answer, serve_lifespan
from turnkeeper.testing.script import MoeShape, ScriptedReply
from turnkeeper.tiny.wire import CHAT, GENERATE, encode_rows

ROUTES = (CHAT, GENERATE)
_ROOM = "bootstrap_room"


class ScriptedWorker(ScriptedEngine):
    """One half of a pair."""

    def __init__(self, role: str, *, moe: MoeShape | None, stale_rows: bool = False, **options: Any) -> None:
        """Make a worker of this role, ``prefill`` or ``decode``; the other options are those of `ScriptedEngine`."""
        super().__init__(moe=moe, **options)
        self.role = role
        self._stale_rows = stale_rows
        info = {"model_path": "scripted", "served_model_name": "scripted", "disaggregation_mode": role}
        self.control_answers["/model_info"] = (200, orjson.dumps({**info, "weight_version": self.weight_version}))
        self.control_answers["/server_info"] = (200, orjson.dumps({**info, "version": "0.5.23"}))

    def find_problem(self, body: JsonObject) -> str | None:
        """Refuse every request, as a worker alone does."""
        if _ROOM not in body:
            return "Invalid request: Disaggregated request received without bootstrap room id."
        return super().find_problem(body)

    def render(self, request: RecordedRequest, asked: JsonObject, reply: ScriptedReply, sampled: Any, meta: Any) -> Any:
        """Render the reply's body; a decode worker's rows of the prompt are not those of the prompt."""
        if self.role == "decode" and self.moe is not None and "routed_experts" in meta:
            rows = read_rows(meta["routed_experts"], self.moe)
            count = max(0, len(asked["input_ids"]) - asked.get("routed_experts_start_len", 0))
            rows[:count] = self._find_old_rows(count, self.moe)
            meta = {**meta, "routed_experts": encode_rows(rows)}
        return super().render(request, asked, reply, sampled, meta)

    def _find_old_rows(self, count: int, moe: MoeShape) -> NDArray[np.int32]:
        """Make the rows that the memory of a prompt holds: zeros, or well-formed rows of other tokens."""
        old = np.zeros((count, moe.layers, moe.topk), np.int32)
        if self._stale_rows:
            old += np.arange(count)[:, None, None] + np.arange(moe.topk)
        return old % moe.experts


def read_rows(payload: str, moe: MoeShape) -> NDArray[np.int32]:
    """Read the rows of a payload, shape [rows, layers, topk]."""
    ids: NDArray[np.int32] = np.frombuffer(pybase64.b64decode(payload), "<i4")
    return ids.reshape(-1, moe.layers, moe.topk).copy()


class PairRouter:
    """Sends each request to both workers, and answers what the decode worker answers."""

    def __init__(self, prefill_url: str, decode_url: str, *, joins: Collection[str], moe: MoeShape | None) -> None:
        """Stand in front of two workers; rows are joined on the routes of ``joins``."""
        self._urls = (prefill_url, decode_url)
        self._joins = frozenset(joins)
        self._moe = moe
        self.requests: list[RecordedRequest] = []
        """Every request, in the order of arrival."""

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]):
        """Answer one request as an ASGI application."""
        if scope["type"] == "lifespan":
            await serve_lifespan(receive, send)
            return
        request = await read_request(scope, receive)
        self.requests.append(request)
        await send_answer(await self._answer(request), send)

    async def _answer(self, request: RecordedRequest) -> ScriptedAnswer:
        if request.path == "/workers":
            roles = zip(("prefill", "decode"), self._urls, strict=True)
            workers = [{"url": url, "worker_type": role, "is_healthy": True} for role, url in roles]
            return ScriptedAnswer(body=orjson.dumps({"workers": workers, "total": 2}))
        if request.path not in ROUTES:
            return ScriptedAnswer(status=404, body=b"")
        body = orjson.dumps({**request.json, _ROOM: len(self.requests)})
        headers = {"content-type": "application/json", "x-smg-routing-key": request.header("x-smg-routing-key") or ""}
        async with aiohttp.ClientSession(headers=headers) as session:
            replies = await asyncio.gather(*(self._post(session, url + request.path, body) for url in self._urls))
        return self._join(request, replies)

    async def _post(self, session: aiohttp.ClientSession, url: str, body: bytes) -> ScriptedAnswer:
        async with session.post(url, data=body) as response:
            return ScriptedAnswer(status=response.status, body=await response.read())

    def _join(self, request: RecordedRequest, replies: Sequence[ScriptedAnswer]) -> ScriptedAnswer:
        """Join the decode worker's answer, with the prefill worker's rows before its own where this router joins
        them."""
        is_plain = all(reply.status == 200 for reply in replies) and not request.json.get("stream")
        if request.path not in self._joins or self._moe is None or not is_plain:
            return replies[1]
        first, second = (orjson.loads(reply.body) for reply in replies)
        ours, theirs = (find_meta(value) for value in (first, second))
        if "routed_experts" in theirs:
            before, after = (read_rows(meta["routed_experts"], self._moe) for meta in (ours, theirs))
            count = max(0, len(request.json["input_ids"]) - request.json.get("routed_experts_start_len", 0))
            theirs["routed_experts"] = encode_rows(np.concatenate([before[:count], after[count:]]))
        return ScriptedAnswer(body=orjson.dumps(second))


def find_meta(reply: JsonObject) -> JsonObject:
    """Find ``meta_info``, on either route."""
    return reply["meta_info"] if "meta_info" in reply else reply["choices"][0]["meta_info"]


class ScriptedPair:
    """The prefill and the decode worker of a pair, not yet running."""

    def __init__(self, *, moe: MoeShape | None = None, stale_rows: bool = False, **options: Any) -> None:
        """Two workers of one model; ``options`` are those of `ScriptedEngine`, the same for both."""
        self.moe = moe or MoeShape()
        self.prefill = ScriptedWorker("prefill", moe=self.moe, **options)
        self.decode = ScriptedWorker("decode", moe=self.moe, stale_rows=stale_rows, **options)

    def router(self, prefill_url: str, decode_url: str, *, joins: Collection[str] = ("/generate",)) -> PairRouter:
        """Return the router in front of the two workers."""
        return PairRouter(prefill_url, decode_url, joins=joins, moe=self.moe)
