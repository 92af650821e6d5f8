"""The scheduler of the embedded engine: requests in, batches over the model, sampled tokens and their text out."""

from turnkeeper.tiny.scheduler.live import LiveRequest
from turnkeeper.tiny.scheduler.params import SamplingParams
from turnkeeper.tiny.scheduler.request import (
    Delta,
    EngineRequest,
    Finish,
    FinishKind,
    OutputTokens,
    Result,
    Update,
    WeightSpan,
    merge_updates,
)
from turnkeeper.tiny.scheduler.sampler import Sampler, SamplingMask, sample
from turnkeeper.tiny.scheduler.scheduler import Scheduler, WeightStamp
from turnkeeper.tiny.scheduler.text import OutputText, Vocabulary

__all__ = [
    "Delta",
    "EngineRequest",
    "Finish",
    "FinishKind",
    "LiveRequest",
    "OutputText",
    "OutputTokens",
    "Result",
    "Sampler",
    "SamplingMask",
    "SamplingParams",
    "Scheduler",
    "Update",
    "Vocabulary",
    "WeightSpan",
    "WeightStamp",
    "merge_updates",
    "sample",
]
