"""Sampling masks: of each sampled token the ids that the truncation of the distribution left in."""

from turnkeeper.channels.masks.channel import MaskCapture, SamplingMasks
from turnkeeper.channels.masks.sampler import MaskAsked, is_truncating, list_unexplained
from turnkeeper.channels.masks.values import MaskItems

__all__ = ["MaskAsked", "MaskCapture", "MaskItems", "SamplingMasks", "is_truncating", "list_unexplained"]
