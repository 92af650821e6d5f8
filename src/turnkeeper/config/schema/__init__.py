"""The options, each declared once: a field, its type, its default and the text beneath it.

The first paragraph of the text says what the option does, the second when to change it. `turnkeeper.config.option`
makes flag, environment variable, TOML key and a row of the docs out of a field. A name that ends in ``_s`` is a
duration in seconds, and the flag goes without the ending. Values are checked one by one here; conditions between
options are in `turnkeeper.config.rules`, and what follows from options is in `turnkeeper.config.resolve`.
"""

from pydantic import BaseModel, ConfigDict

from turnkeeper.config.schema.history import HistorySection, RoutingSection
from turnkeeper.config.schema.log import LogSection
from turnkeeper.config.schema.model import EngineSection, ModelSection
from turnkeeper.config.schema.section import ForTests, SettingsSection
from turnkeeper.config.schema.server import LimitsSection, ServerSection, TimeoutsSection
from turnkeeper.config.schema.store import StoreSection
from turnkeeper.config.schema.trainer import TrainerSection

__all__ = [
    "EngineSection",
    "ForTests",
    "HistorySection",
    "LimitsSection",
    "LogSection",
    "ModelSection",
    "RoutingSection",
    "ServerSection",
    "Settings",
    "SettingsSection",
    "StoreSection",
    "TimeoutsSection",
    "TrainerSection",
]


class Settings(BaseModel):
    """Every option's value, by section; checked one by one, not yet against each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelSection = ModelSection()
    engine: EngineSection = EngineSection()
    server: ServerSection = ServerSection()
    history: HistorySection = HistorySection()
    routing: RoutingSection = RoutingSection()
    timeouts: TimeoutsSection = TimeoutsSection()
    limits: LimitsSection = LimitsSection()
    log: LogSection = LogSection()
    store: StoreSection = StoreSection()
    trainer: TrainerSection = TrainerSection()
