"""The sizes of a model's routing: how many layers, choices and experts a row has.

Knows which keys of a checkpoint's ``config.json`` hold them, and nothing of payloads.
"""

from dataclasses import dataclass

from turnkeeper.errors import ConfigError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.modelconfig import iter_config_values

_LAYER_KEYS = ("num_hidden_layers",)
_TOPK_KEYS = ("num_experts_per_tok",)
_EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingShape:
    """The sizes of one row."""

    layers: int
    """All layers of the model; a layer without experts counts too, and its ids are zero."""
    topk: int
    """Experts chosen for a token in one layer."""
    experts: int
    """Routed experts of one layer; ids lie in 0..experts-1."""

    def __post_init__(self) -> None:
        """Refuse sizes that make no row."""
        if self.layers < 1 or not 1 <= self.topk <= self.experts <= 65536:
            raise ConfigError(
                f"routing rows need layers >= 1 and 1 <= topk <= experts <= 65536, got layers={self.layers} "
                f"topk={self.topk} experts={self.experts}",
                hint="set --num-layers, --moe-router-topk and --num-experts to the model's values",
            )

    @property
    def row_ids(self) -> int:
        """Expert ids in one row."""
        return self.layers * self.topk


def read_routing_shape(
    config: JsonObject, *, layers: int | None = None, topk: int | None = None, experts: int | None = None
) -> RoutingShape | None:
    """Take the sizes from a checkpoint's ``config.json``; given values win over it.

    Args:
        config: the parsed file; a ``text_config`` inside it is read before the outer keys.
        layers: ``--num-layers``.
        topk: ``--moe-router-topk``.
        experts: ``--num-experts``.

    Returns:
        None when neither the file nor an argument speaks of experts: the model is dense.

    Raises:
        ConfigError: some of the three are known and others are not, or a value is no positive whole number.
    """
    found = {
        "--num-layers": layers if layers is not None else next(iter_config_values(config, *_LAYER_KEYS), None),
        "--moe-router-topk": topk if topk is not None else next(iter_config_values(config, *_TOPK_KEYS), None),
        "--num-experts": experts if experts is not None else next(iter_config_values(config, *_EXPERT_KEYS), None),
    }
    if found["--moe-router-topk"] is None and found["--num-experts"] is None:
        return None
    missing = [flag for flag, value in found.items() if value is None]
    if missing:
        raise ConfigError(
            f"config.json does not say all sizes of the routing: {', '.join(missing)} unknown",
            hint=f"give {' '.join(f'{flag} N' for flag in missing)}",
        )
    sizes = {flag: _check(flag, value) for flag, value in found.items()}
    return RoutingShape(layers=sizes["--num-layers"], topk=sizes["--moe-router-topk"], experts=sizes["--num-experts"])


def _check(flag: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{flag} must be a positive whole number, config.json or the option says {value!r}")
    return value
