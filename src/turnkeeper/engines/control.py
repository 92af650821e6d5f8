"""The control routes of each kind of engine.

Pure: a control action in, HTTP calls out. Every default that could do harm is sent explicitly: SGLang's own would abort
all requests when a version label is published, and would refuse an in-place update half-way because it cannot flush.

::

                 SGLang                            vLLM (in development mode)
    pause        /pause_generation                 /pause?mode=abort|keep
      retract    the same                          ... then /reset_prefix_cache?reset_running_requests=true
    flush        /flush_cache                      /reset_prefix_cache
    load         /update_weights_from_disk         /collective_rpc reload_weights, then /update_weight_version
    publish      /update_weight_version            the same
    continue     /continue_generation              /resume
    release      /release_memory_occupation        not driven

vLLM keeps frozen turns with their KV (``keep``), which is `in_place`. Its cache reset moves them back to the waiting
queue on demand, so that they are prefilled again: that is `retract`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlencode

from turnkeeper.choices import EngineKind, PauseMode
from turnkeeper.errors import ConfigError
from turnkeeper.jsontypes import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCall:
    """A single POST to an engine."""

    path: str
    """The path, with its query where it has one."""
    body: JsonObject = field(default_factory=dict[str, Any])
    waits_for_idle: bool = False
    """True if a refusal means "not yet idle", so that the call is repeated."""


class ControlWire(Protocol):
    """The control routes of one kind of engine. An action is a sequence of calls; it is empty where none is needed."""

    def plan_pause(self, mode: PauseMode) -> Sequence[ControlCall]:
        """Hold new requests back, and end, retract or freeze the running ones, as the mode says."""
        ...

    def plan_flush(self, mode: PauseMode) -> Sequence[ControlCall]:
        """Empty the prefix cache of a paused engine, unless frozen requests need it."""
        ...

    def plan_disk_update(self, mode: PauseMode, *, model_path: str, version: str) -> Sequence[ControlCall]:
        """Load weights from a folder under a version label, and leave requests alone."""
        ...

    def plan_version(self, version: str) -> Sequence[ControlCall]:
        """Publish a version label for weights that were moved another way."""
        ...

    def plan_continue(self) -> Sequence[ControlCall]:
        """Let paused requests continue."""
        ...

    def plan_release(self) -> Sequence[ControlCall]:
        """Release the engine's memory to the trainer.

        Raises:
            ConfigError: engines of this kind are not driven so.
        """
        ...

    def plan_reclaim(self) -> Sequence[ControlCall]:
        """Take the memory back from the trainer.

        Raises:
            ConfigError: engines of this kind are not driven so.
        """
        ...


ControlAction: TypeAlias = Callable[[ControlWire], Sequence[ControlCall]]
"""Chooses the calls of an action on whichever control routes an engine has."""


class SglangControl:
    """The control routes of SGLang, which the embedded engine serves too."""

    def plan_pause(self, mode: PauseMode) -> Sequence[ControlCall]:
        return (ControlCall(path="/pause_generation", body={"mode": str(mode)}),)

    def plan_flush(self, mode: PauseMode) -> Sequence[ControlCall]:
        # Under in_place frozen requests need their cache.
        return () if mode is PauseMode.IN_PLACE else (ControlCall(path="/flush_cache", waits_for_idle=True),)

    def plan_disk_update(self, mode: PauseMode, *, model_path: str, version: str) -> Sequence[ControlCall]:
        body: JsonObject = {
            "model_path": model_path,
            "weight_version": version,
            "flush_cache": mode is not PauseMode.IN_PLACE,
            "abort_all_requests": False,
        }
        return (ControlCall(path="/update_weights_from_disk", body=body),)

    def plan_version(self, version: str) -> Sequence[ControlCall]:
        # The engine's default would abort all requests.
        return (ControlCall(path="/update_weight_version", body={"new_version": version, "abort_all_requests": False}),)

    def plan_continue(self) -> Sequence[ControlCall]:
        return (ControlCall(path="/continue_generation"),)

    def plan_release(self) -> Sequence[ControlCall]:
        return (ControlCall(path="/release_memory_occupation", body={"tags": None}),)

    def plan_reclaim(self) -> Sequence[ControlCall]:
        return (ControlCall(path="/resume_memory_occupation", body={"tags": None}),)


class VllmControl:
    """The control routes of vLLM, which it serves with ``VLLM_SERVER_DEV_MODE=1``."""

    def plan_pause(self, mode: PauseMode) -> Sequence[ControlCall]:
        # Retract is a freeze, and a cache reset that sends frozen requests back to the queue.
        query = urlencode({"mode": "abort" if mode is PauseMode.ABORT else "keep"})
        pause = ControlCall(path=f"/pause?{query}")
        if mode is not PauseMode.RETRACT:
            return (pause,)
        return (pause, ControlCall(path="/reset_prefix_cache?reset_running_requests=true"))

    def plan_flush(self, mode: PauseMode) -> Sequence[ControlCall]:
        # A retraction has flushed already, and under in_place frozen requests need their cache.
        return (ControlCall(path="/reset_prefix_cache", waits_for_idle=True),) if mode is PauseMode.ABORT else ()

    def plan_disk_update(self, mode: PauseMode, *, model_path: str, version: str) -> Sequence[ControlCall]:
        # The workers reload their weights without a label, which is published by a call of its own.
        body: JsonObject = {"method": "reload_weights", "kwargs": {"weights_path": model_path}}
        return (ControlCall(path="/collective_rpc", body=body), *self.plan_version(version))

    def plan_version(self, version: str) -> Sequence[ControlCall]:
        return (ControlCall(path="/update_weight_version", body={"new_version": version}),)

    def plan_continue(self) -> Sequence[ControlCall]:
        return (ControlCall(path="/resume"),)

    def plan_release(self) -> Sequence[ControlCall]:
        # Waking a sleeping vLLM also lets its requests continue, with the weights of before.
        raise ConfigError(
            "turnkeeper does not put vLLM to sleep: when it wakes, its requests go on before they have the new weights",
            hint="pause the fleet with EngineFleet.paused and move weights and memory inside that block",
        )

    def plan_reclaim(self) -> Sequence[ControlCall]:
        return self.plan_release()


def choose_control_wire(kind: EngineKind) -> ControlWire:
    """Choose the control routes of a kind of engine; an unknown kind is taken for SGLang."""
    return VllmControl() if kind is EngineKind.VLLM else SglangControl()
