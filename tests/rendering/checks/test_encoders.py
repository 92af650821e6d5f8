"""May a fast encoder take over?

1. Where it gives the same ids, yes: real tokenizers under their families.
2. Every way in which another tokenizer is nearly the same is found.
3. An encoder that remembers wrongly or cuts long texts does not take over; one that leaves a text to `tokenizers` may.
4. A difference names the place and the ids of both.
"""

import json
from collections.abc import Callable
from functools import cache

import pytest

from conftest import find_asset
from rendering.standins import find_template, standin, tokenizer_json
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import Checkpoint, Renderer, Tokenizer, build_renderer
from turnkeeper.rendering.checks import EncodingMismatch, check_encoder, find_encoding_mismatch
from turnkeeper.rendering.checks.texts import pick_evenly
from turnkeeper.rendering.tokenization import Encoder, FallbackEncoder, RefusedTextError
from turnkeeper.rendering.tokenization.fast_encoder import FastEncoder
from turnkeeper.tiny.checkpoint import shipped_checkpoint

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizers cut text."""


TELLING = (("1", "1"), ("©", "a"), (".", "Ċ"), ("Ċ", "Ċ"), ("S", "C"))
"""Merges across the places where the tokenizers below cut otherwise: without such, their ids would be the same."""


def build_document(pattern: str = PATTERN) -> JsonObject:
    """The embedded engine's small vocabulary under rules of the usual kind."""
    document = json.loads((shipped_checkpoint() / "tokenizer.json").read_bytes())
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [cut, level]}
    document["normalizer"] = {"type": "NFC"}
    model = document["model"]
    for left, right in TELLING:
        if left + right not in model["vocab"]:
            model["vocab"][left + right] = len(model["vocab"])
            model["merges"].append([left, right])
    return document


@cache
def small() -> Renderer:
    checkpoint = read_checkpoint(shipped_checkpoint())
    document = json.dumps(build_document()).encode()
    return build_renderer(Checkpoint(tokenizer_json=document, template=checkpoint.template), "qwen3")


def cut_by(pattern: str) -> Callable[[], JsonObject]:
    return lambda: build_document(pattern)


def change(key: str, value: object) -> Callable[[], JsonObject]:
    return lambda: {**build_document(), key: value}


def flag_markers(**flags: bool) -> Callable[[], JsonObject]:
    def build() -> JsonObject:
        document = build_document()
        document["added_tokens"] = [{**token, **flags} for token in document["added_tokens"]]
        return document

    return build


def forget_marker() -> JsonObject:
    document = build_document()
    document["added_tokens"] = document["added_tokens"][:-1]
    return document


def forget_merge() -> JsonObject:
    document = build_document()
    del document["model"]["merges"][-7]
    return document


NEARLY_THE_SAME = {
    "no normalization": change("normalizer", None),
    "compatibility normalization": change("normalizer", {"type": "NFKC"}),
    "decomposition": change("normalizer", {"type": "NFD"}),
    "contractions by case": cut_by(PATTERN.replace("?i:", "?:", 1)),
    "numbers in threes": cut_by(PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")),
    "Latin letters only": cut_by(PATTERN.replace(r"\p{L}+", r"[A-Za-z]+")),
    "marks are letters": cut_by(PATTERN.replace(r"\p{L}+", r"[\p{L}\p{M}]+")),
    "numbers are decimal digits": cut_by(PATTERN.replace(r"\p{N}", r"\p{Nd}")),
    "white space goes with the word": cut_by(PATTERN.replace(r"|\s+(?!\S)", "")),
    "newlines are white space": cut_by(PATTERN.replace(r"|\s*[\r\n]+", "")),
    "no newline behind signs": cut_by(PATTERN.replace(r"[\r\n]*", "")),
    "spaces are ASCII": cut_by(PATTERN.replace(r"\s+(?!\S)|\s+", r"[ \t]+(?! )|\s+")),
    "a marker is forgotten": forget_marker,
    "a merge is forgotten": forget_merge,
    "markers are normalized": flag_markers(normalized=True),
    "markers take spaces on their left": flag_markers(lstrip=True),
    "markers take spaces on their right": flag_markers(rstrip=True),
    "markers are whole words": flag_markers(single_word=True),
}


@pytest.mark.parametrize("name", NEARLY_THE_SAME)
def test_a_tokenizer_that_is_nearly_the_same_is_found_out(name: str) -> None:
    other = Tokenizer(json.dumps(NEARLY_THE_SAME[name]()).encode()).huggingface_encoder
    assert check(other, small()) is not None


def test_the_same_tokenizer_passes() -> None:
    assert check(Tokenizer(json.dumps(build_document()).encode()).huggingface_encoder, small()) is None


class Twisted:
    """An encoder with a fault."""

    def __init__(self, twist: Callable[[str, TokenIds], TokenIds]) -> None:
        self._inner = small().tokenizer.huggingface_encoder
        self._twist = twist

    def encode(self, text: str) -> TokenIds:
        return self._twist(text, self._inner.encode(text))


def remember_wrongly() -> Callable[[str, TokenIds], TokenIds]:
    """From the second time on, a text of three hundred ids loses its last one."""
    seen: set[str] = set()

    def twist(text: str, ids: TokenIds) -> TokenIds:
        if text in seen and len(ids) > 300:
            return ids[:-1]
        seen.add(text)
        return ids

    return twist


def refuse_long_words(text: str, ids: TokenIds) -> TokenIds:
    if "a" * 2000 in text:
        raise RefusedTextError("too long")
    return ids


def check(encoder: Encoder, renderer: Renderer) -> EncodingMismatch | None:
    """As the server checks: `tokenizers` stands behind the fast encoder."""
    return check_encoder(FallbackEncoder(encoder, renderer.tokenizer.huggingface_encoder), renderer)


@pytest.mark.parametrize(
    "twist",
    [
        pytest.param(remember_wrongly(), id="remembers wrongly"),
        pytest.param(lambda text, ids: ids[:40_000], id="cuts long texts"),
        pytest.param(lambda text, ids: ids if len(ids) > 1 else freeze_ids([0]), id="wrong on a lone character"),
    ],
)
def test_a_faulty_encoder_does_not_take_over(twist: Callable[[str, TokenIds], TokenIds]) -> None:
    assert check(Twisted(twist), small()) is not None


def test_a_text_that_is_left_to_tokenizers_is_no_difference() -> None:
    assert check(Twisted(refuse_long_words), small()) is None


def test_a_difference_names_the_place_and_the_ids_of_both() -> None:
    tokenizer = small().tokenizer
    text = "hello<|im_end|>"
    ids = tokenizer.encode(text)

    def twist(_: str, ids: TokenIds) -> TokenIds:
        return freeze_ids([*ids[:-1], 0])

    mismatch = find_encoding_mismatch(Twisted(twist), tokenizer.huggingface_encoder, [text])
    assert mismatch is not None
    said = mismatch.describe(tokenizer)
    assert f"token {len(ids) - 1} of {len(ids)}" in said
    assert "<|im_end|>" in said
    assert f"{ids[-5:].tolist()} to tokenizers and {[*ids[-5:-1].tolist(), 0]} to the fast encoder" in said


def test_the_embedded_tokenizer_passes() -> None:
    checkpoint = read_checkpoint(shipped_checkpoint())
    assert check(FastEncoder(checkpoint.tokenizer_json), build_renderer(checkpoint, "qwen3")) is None


def test_qwen3_passes(qwen3_checkpoint: Checkpoint, qwen3: Renderer) -> None:
    assert check(FastEncoder(qwen3_checkpoint.tokenizer_json), qwen3) is None


def test_gptoss_passes() -> None:
    checkpoint = Checkpoint(
        tokenizer_json=(find_asset("gptoss") / "tokenizer.json").read_bytes(), template=find_template("gptoss")
    )
    renderer = build_renderer(checkpoint, "gptoss", format_time=lambda pattern: "2026-11-30")
    assert check(FastEncoder(checkpoint.tokenizer_json), renderer) is None


def test_deepseek_passes_with_the_markers_of_every_family() -> None:
    assert check(FastEncoder(tokenizer_json()), standin("glm47")) is None


@pytest.mark.parametrize(("count", "most", "kept"), [(0, 3, []), (3, 3, [0, 1, 2]), (7, 3, [0, 3, 6])])
def test_of_many_markers_every_so_many_are_tried(count: int, most: int, kept: list[int]) -> None:
    assert [int(item) for item in pick_evenly([str(number) for number in range(count)], most)] == kept
