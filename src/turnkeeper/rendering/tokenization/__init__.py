"""Text to token ids and back: the checkpoint's tokenizer, what encodes for it, and decoding a few ids at a time."""

from turnkeeper.rendering.tokenization.canonical import find_noncanonical, is_respelled
from turnkeeper.rendering.tokenization.detokenizer import Detokenizer
from turnkeeper.rendering.tokenization.encoder import LONG_S, Encoder, FallbackEncoder, RefusedTextError
from turnkeeper.rendering.tokenization.length import LengthBound, TextTooLongError, find_bound
from turnkeeper.rendering.tokenization.stream import Segment, SegmentStream, count_overlap
from turnkeeper.rendering.tokenization.tokenizer import Tokenizer

__all__ = [
    "LONG_S",
    "Detokenizer",
    "Encoder",
    "FallbackEncoder",
    "LengthBound",
    "RefusedTextError",
    "Segment",
    "SegmentStream",
    "TextTooLongError",
    "Tokenizer",
    "count_overlap",
    "find_bound",
    "find_noncanonical",
    "is_respelled",
]
