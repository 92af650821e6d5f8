"""The engine's control and information routes: pauses, weights, cache, aborts, health."""

import asyncio
import time
import uuid
from pathlib import Path

import numpy as np
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from turnkeeper import __version__
from turnkeeper.choices import PauseMode
from turnkeeper.errors import RequestError
from turnkeeper.tiny import wire
from turnkeeper.tiny.engine import TinyEngine
from turnkeeper.tiny.scheduler import EngineRequest, SamplingParams
from turnkeeper.tiny.server.asgi import reply
from turnkeeper.tiny.server.fields import parse_body

MODEL_NAME = "turnkeeper-tiny"


class ControlRoutes:
    """The handlers, over one engine."""

    def __init__(self, engine: TinyEngine) -> None:
        self._engine = engine
        self._started_at = int(time.time())

    def build_routes(self) -> list[Route]:
        """Build the routing table."""
        get, post, either = ["GET"], ["POST"], ["GET", "POST"]
        return [
            Route(wire.PAUSE, self.pause, methods=post),
            Route(wire.CONTINUE, self.resume, methods=post),
            Route(wire.UPDATE_WEIGHTS, self.update_weights, methods=post),
            Route(wire.UPDATE_VERSION, self.update_version, methods=post),
            Route(wire.FLUSH_CACHE, self.flush, methods=either),
            Route(wire.ABORT, self.abort, methods=post),
            Route(wire.RELEASE_MEMORY, self.release_memory, methods=either),
            Route(wire.RESUME_MEMORY, self.resume_memory, methods=either),
            Route(wire.HEALTH, self.health, methods=get),
            Route("/health_generate", self.health, methods=get),
            Route(wire.READY, self.ready, methods=get),
            Route(wire.MODEL_INFO, self.model_info, methods=get),
            Route("/get_model_info", self.model_info, methods=get),
            Route("/server_info", self.server_info, methods=get),
            Route("/get_server_info", self.server_info, methods=get),
            Route("/get_weight_version", self.weight_version, methods=get),
            Route(wire.MODELS, self.models, methods=get),
        ]

    async def pause(self, request: Request) -> Response:
        """``{"mode": "abort" | "retract" | "in_place"}``, abort when left out."""
        name = parse_body(await request.body()).text("mode") or PauseMode.ABORT
        if name not in list(PauseMode):
            raise RequestError(f"mode must be one of {', '.join(PauseMode)}; got {name!r}", param="mode")
        await self._engine.call(lambda scheduler: scheduler.pause(PauseMode(name)))
        return reply(wire.build_pause_reply(f"generation is paused, mode {name}"))

    async def resume(self, request: Request) -> Response:
        """End a pause; without one, nothing happens."""
        await self._engine.call(lambda scheduler: scheduler.resume())
        return reply(wire.build_pause_reply("generation goes on"))

    async def update_weights(self, request: Request) -> Response:
        """``{"model_path", "weight_version", "flush_cache": true, "abort_all_requests": false}``.

        400 when the weights could not be changed, and also when they were but the cache could not be flushed.
        """
        fields = parse_body(await request.body())
        folder = fields.text("model_path")
        if not folder:
            raise RequestError("model_path must name a checkpoint folder", param="model_path")
        outcome = await self._engine.update_weights(
            Path(folder),
            version=fields.text("weight_version"),
            is_flushing=fields.flag("flush_cache", True),
            is_aborting=fields.flag("abort_all_requests"),
        )
        payload = wire.build_update_reply(outcome.message, is_done=outcome.is_done, num_paused_requests=0)
        return reply(payload, 200 if outcome.is_done else 400)

    async def update_version(self, request: Request) -> Response:
        """``{"new_version", "abort_all_requests": true}``: as on the real wire, the default aborts everything."""
        fields = parse_body(await request.body())
        version = fields.text("new_version")
        if not version:
            raise RequestError("new_version must be a string, not an empty one", param="new_version")
        is_aborting = fields.flag("abort_all_requests", True)
        await self._engine.relabel(version, is_aborting=is_aborting)
        return reply(wire.build_update_reply("the weight version was changed", new_version=version))

    async def flush(self, request: Request) -> Response:
        """Empty the prefix cache: 400 while a request runs."""
        if await self._engine.call(lambda scheduler: scheduler.flush()):
            return PlainTextResponse("Cache flushed.\n")
        return PlainTextResponse("Cache not flushed: requests are running.\n", status_code=400)

    async def abort(self, request: Request) -> Response:
        """``{"rid", "abort_all": false}``; a request that is not here is no error."""
        fields = parse_body(await request.body())
        rid, is_all = fields.text("rid"), fields.flag("abort_all")
        if not is_all and not rid:
            raise RequestError("give rid, or abort_all as true", param="rid")
        await self._engine.call(lambda scheduler: scheduler.abort_all() if is_all else scheduler.abort(rid or ""))
        return Response(status_code=200)

    async def release_memory(self, request: Request) -> Response:
        """Give memory back until `resume_memory`; only an idle engine can."""
        if await self._engine.call(lambda scheduler: scheduler.sleep()):
            return Response(status_code=200)
        raise RequestError("memory can only be released while no request is in the engine")

    async def resume_memory(self, request: Request) -> Response:
        """Take the memory again."""
        await self._engine.call(lambda scheduler: scheduler.wake())
        return Response(status_code=200)

    async def health(self, request: Request) -> Response:
        """Check that the engine computes: ask for one token, and wait for a step."""
        probe = EngineRequest(
            rid=f"HEALTH_CHECK_{uuid.uuid4().hex}",
            prompt_ids=np.zeros(1, np.int32),
            params=SamplingParams(max_new_tokens=1, temperature=0),
            is_probe=True,
        )
        generating = asyncio.ensure_future(self._engine.complete(probe))
        try:
            async with asyncio.timeout(self._engine.options.health_timeout_s):
                await self._engine.wait_for_step()
            return Response(status_code=200)
        except TimeoutError:
            return Response(status_code=503)
        finally:
            generating.cancel()
            await asyncio.gather(generating, return_exceptions=True)

    async def ready(self, request: Request) -> Response:
        """200, and 503 while paused."""
        is_paused = await self._engine.call(lambda scheduler: scheduler.pause_mode is not None)
        return Response(status_code=503 if is_paused else 200)

    async def model_info(self, request: Request) -> Response:
        """Answer with the model's folder and weight version."""
        payload = await self._engine.call(
            lambda scheduler: wire.build_model_info(
                model_path=scheduler.model_source,
                weight_version=scheduler.version,
                context_length=self._engine.shape.max_position_embeddings,
                tokenizer_path=str(self._engine.options.checkpoint),
                is_generation=True,
                preferred_sampling_params=None,
                model_type="turnkeeper_tiny",
            )
        )
        return reply(payload)

    async def weight_version(self, request: Request) -> Response:
        """Answer with the weight version alone."""
        return reply({"weight_version": await self._engine.call(lambda scheduler: scheduler.version)})

    async def server_info(self, request: Request) -> Response:
        """Describe how the engine was started, and how busy it is."""
        options = self._engine.options
        counts = await self._engine.call(
            lambda scheduler: {
                "num_running_reqs": scheduler.running_count,
                "num_waiting_reqs": scheduler.waiting_count,
                "pause_mode": scheduler.pause_mode,
                "weight_version": scheduler.version,
            }
        )
        return reply(
            {
                "engine": MODEL_NAME,
                "version": __version__,
                "model_path": str(options.checkpoint),
                "max_running_requests": options.max_batch,
                "context_length": self._engine.shape.max_position_embeddings,
                "random_seed": options.seed,
                "enable_return_routed_experts": options.has_routed_experts,
                "disaggregation_mode": "null",
                "internal_states": [counts],
            }
        )

    async def models(self, request: Request) -> Response:
        """Answer with a list of the one model."""
        served = wire.build_model_list(
            MODEL_NAME,
            created=self._started_at,
            owned_by="turnkeeper",
            root=str(self._engine.options.checkpoint),
            parent=None,
            max_model_len=self._engine.shape.max_position_embeddings,
        )
        return reply(served)
