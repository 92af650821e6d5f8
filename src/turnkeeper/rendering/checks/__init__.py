"""Checks of a checkpoint, a family and a fast encoder before they serve: `turnkeeper verify` and the encoder check."""

from turnkeeper.rendering.checks.appends import Finding, Outcome, examine
from turnkeeper.rendering.checks.encoders import Difference, check_encoder, find_difference
from turnkeeper.rendering.checks.verification import Report, verify

__all__ = ["Difference", "Finding", "Outcome", "Report", "check_encoder", "examine", "find_difference", "verify"]
