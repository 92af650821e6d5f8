"""Checks of a checkpoint, a family and a fast encoder before they serve: `turnkeeper verify` and the encoder check."""

from turnkeeper.rendering.checks.appends import CheckOutcome, CheckResult, check_appends
from turnkeeper.rendering.checks.encoders import EncodingMismatch, check_encoder, find_encoding_mismatch
from turnkeeper.rendering.checks.verification import VerifyReport, verify

__all__ = [
    "CheckOutcome",
    "CheckResult",
    "EncodingMismatch",
    "VerifyReport",
    "check_appends",
    "check_encoder",
    "find_encoding_mismatch",
    "verify",
]
