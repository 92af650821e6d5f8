"""Training samples: paths of turns cut to size, checked, and put on the wire."""

from turnkeeper.samples.collate import PaddedSamples, collate
from turnkeeper.samples.collect import Collection, CollectOptions, collect, show_outcome
from turnkeeper.samples.describe import describe_tree, describe_turn
from turnkeeper.samples.forecast import Outcome, forecast
from turnkeeper.samples.hooks import Hooks, load_hooks
from turnkeeper.samples.sample import OWN_KEY, Reward, Sample, SampleStatus
from turnkeeper.samples.view import SessionView, view_session
from turnkeeper.samples.wire import (
    EmptyReason,
    SampleBatch,
    SamplesPayload,
    compute_receipt,
    decode_samples,
    encode_samples,
)

__all__ = [
    "OWN_KEY",
    "CollectOptions",
    "Collection",
    "EmptyReason",
    "Hooks",
    "Outcome",
    "PaddedSamples",
    "Reward",
    "Sample",
    "SampleBatch",
    "SampleStatus",
    "SamplesPayload",
    "SessionView",
    "collate",
    "collect",
    "compute_receipt",
    "decode_samples",
    "describe_tree",
    "describe_turn",
    "encode_samples",
    "forecast",
    "load_hooks",
    "show_outcome",
    "view_session",
]
