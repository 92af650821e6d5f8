"""An engine in memory whose every call is a small function of the test."""

from collections.abc import Awaitable, Callable
from typing import Any

from turnkeeper.engines import EngineState, EngineStatus, GenerateRequest, Generation, RelayReply, RelayRequest

Answer = Callable[[GenerateRequest], Awaitable[Generation]]
URL = "http://engine"


class FakeEngine:
    """Answers call by call; the last answer stays."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.streamed: list[bool] = []
        self.probes = 0
        self.state = EngineState.SERVING
        self.version: str | None = "1"
        self.can_abort = True

    async def generate(self, request: GenerateRequest, *, on_ids: Any = None) -> Generation:
        self.requests.append(request)
        self.streamed.append(on_ids is not None)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        generation = await answer(request)
        if on_ids is not None:
            on_ids(generation.ids)
        return generation

    async def relay(self, call: RelayRequest) -> RelayReply:
        raise NotImplementedError

    async def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        self.probes += 1
        return (EngineStatus(url=URL, state=self.state, weight_version=self.version, can_abort=self.can_abort),)

    async def close(self) -> None: ...
