"""What each kind of engine calls a trainer's orders.

Pure: orders in, calls out. Every default that could do harm is sent explicitly: SGLang's own would abort all requests
when a version label is published, and would refuse an in-place update half-way because it cannot flush.

::

                 SGLang                            vLLM (in development mode)
    pause        /pause_generation                 /pause?mode=abort|keep
      retract    the same                          ... then /reset_prefix_cache?reset_running_requests=true
    flush        /flush_cache                      /reset_prefix_cache
    load         /update_weights_from_disk         /collective_rpc reload_weights, then /update_weight_version
    publish      /update_weight_version            the same
    go on        /continue_generation              /resume
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
    """One POST to an engine."""

    path: str
    """With its query, where it has one."""
    body: JsonObject = field(default_factory=dict[str, Any])
    waits_for_idle: bool = False
    """Whether a refusal means "not yet idle" and the call is repeated."""


class ControlWire(Protocol):
    """How one kind of engine is told. Each order is some calls, made one after the other; none where none is needed."""

    def plan_pause(self, mode: PauseMode) -> Sequence[ControlCall]:
        """Hold requests back, and do with running ones what the mode says."""
        ...

    def plan_flush(self, mode: PauseMode) -> Sequence[ControlCall]:
        """Empty the prefix cache of a paused engine where no running turn lives on it."""
        ...

    def plan_disk_update(self, mode: PauseMode, *, model_path: str, version: str) -> Sequence[ControlCall]:
        """Load weights from a folder, under a label, without touching requests."""
        ...

    def plan_version(self, version: str) -> Sequence[ControlCall]:
        """Publish a label for weights that came another way."""
        ...

    def plan_continue(self) -> Sequence[ControlCall]:
        """Let requests go on."""
        ...

    def plan_release(self) -> Sequence[ControlCall]:
        """Give the memory to the trainer.

        Raises:
            ConfigError: this kind cannot be told to.
        """
        ...

    def plan_reclaim(self) -> Sequence[ControlCall]:
        """Take the memory back.

        Raises:
            ConfigError: this kind cannot be told to.
        """
        ...


ControlAction: TypeAlias = Callable[[ControlWire], Sequence[ControlCall]]
"""What is wanted of an engine, whichever kind it is."""


class SglangControl:
    """SGLang's routes, and the embedded engine's."""

    def plan_pause(self, mode: PauseMode) -> Sequence[ControlCall]:
        """One call; the engine knows the modes."""
        return (ControlCall(path="/pause_generation", body={"mode": str(mode)}),)

    def plan_flush(self, mode: PauseMode) -> Sequence[ControlCall]:
        """Not in place: running turns need their cache."""
        return () if mode is PauseMode.IN_PLACE else (ControlCall(path="/flush_cache", waits_for_idle=True),)

    def plan_disk_update(self, mode: PauseMode, *, model_path: str, version: str) -> Sequence[ControlCall]:
        """One call that also labels."""
        body: JsonObject = {
            "model_path": model_path,
            "weight_version": version,
            "flush_cache": mode is not PauseMode.IN_PLACE,
            "abort_all_requests": False,
        }
        return (ControlCall(path="/update_weights_from_disk", body=body),)

    def plan_version(self, version: str) -> Sequence[ControlCall]:
        """Without the abort of all requests that is the engine's default."""
        return (ControlCall(path="/update_weight_version", body={"new_version": version, "abort_all_requests": False}),)

    def plan_continue(self) -> Sequence[ControlCall]:
        """One call."""
        return (ControlCall(path="/continue_generation"),)

    def plan_release(self) -> Sequence[ControlCall]:
        """All of it."""
        return (ControlCall(path="/release_memory_occupation", body={"tags": None}),)

    def plan_reclaim(self) -> Sequence[ControlCall]:
        """All of it."""
        return (ControlCall(path="/resume_memory_occupation", body={"tags": None}),)


class VllmControl:
    """vLLM's routes, which it serves with ``VLLM_SERVER_DEV_MODE=1``."""

    def plan_pause(self, mode: PauseMode) -> Sequence[ControlCall]:
        """Retract is a freeze, and a cache reset that sends what is frozen back to the queue."""
        query = urlencode({"mode": "abort" if mode is PauseMode.ABORT else "keep"})
        pause = ControlCall(path=f"/pause?{query}")
        if mode is not PauseMode.RETRACT:
            return (pause,)
        return (pause, ControlCall(path="/reset_prefix_cache?reset_running_requests=true"))

    def plan_flush(self, mode: PauseMode) -> Sequence[ControlCall]:
        """After an abort; a retraction has flushed already, and in place running turns need their cache."""
        return (ControlCall(path="/reset_prefix_cache", waits_for_idle=True),) if mode is PauseMode.ABORT else ()

    def plan_disk_update(self, mode: PauseMode, *, model_path: str, version: str) -> Sequence[ControlCall]:
        """The workers reload; the label is published by itself."""
        body: JsonObject = {"method": "reload_weights", "kwargs": {"weights_path": model_path}}
        return (ControlCall(path="/collective_rpc", body=body), *self.plan_version(version))

    def plan_version(self, version: str) -> Sequence[ControlCall]:
        """A label touches no request here."""
        return (ControlCall(path="/update_weight_version", body={"new_version": version}),)

    def plan_continue(self) -> Sequence[ControlCall]:
        """One call."""
        return (ControlCall(path="/resume"),)

    def plan_release(self) -> Sequence[ControlCall]:
        """Refused: waking a sleeping vLLM also lets its requests go on, on the weights of before."""
        raise ConfigError(
            "turnkeeper does not put vLLM to sleep: when it wakes, its requests go on before they have the new weights",
            hint="pause the fleet with EngineFleet.paused and move weights and memory inside that block",
        )

    def plan_reclaim(self) -> Sequence[ControlCall]:
        """Refused, like `plan_release`."""
        return self.plan_release()


def choose_control_wire(kind: EngineKind) -> ControlWire:
    """The routes of a kind that is known; what is unknown is taken for SGLang."""
    return VllmControl() if kind is EngineKind.VLLM else SglangControl()
