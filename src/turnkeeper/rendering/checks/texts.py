"""Texts for which two encoders that are not the same are likely to give different ids.

Libraries are known to differ at the beginning and the end of a text, in runs of white space and their last character,
in classes of characters that a newer Unicode knows, in combining marks before and after normalization, in words longer
than the key of a cache, and at markers beside any other text. The texts are fixed; nothing in them is random.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, product

from turnkeeper.rendering.tokenization import LONG_S

WRITTEN = (
    "The quick brown fox doesn't jump over the lazy dog; it's 5 o'clock, they'll say, and I'd've known. We're DONE.",
    "SHE'LL, He'S, it'D 'tis rock'n'roll don’t ‘quoted’ “so” — en–dash… Mr. O'Neill's",
    "def f(x: int, *, y=None) -> dict[str, int]:\n    '''Doc.'''\n    return {k: v for k in zip(x, y)}  # tail \n\n\n",
    '#include <stdio.h>\nint main(void) {\r\n\tprintf("%08.3f\\n", 3.14159e-10);\r\n\treturn 0x7fffUL;\r\n}\r\n',
    'fn main() { let v: Vec<&\'static str> = vec!["a", "b"]; println!("{:?}", v.iter().map(|s| s.len())); }',
    '{"name": "look", "arguments": {"at": [1, 2.5, -3e+8, null, true], "text": "a\\n\\tb\\u00e9"}}',
    "diff --git a/x.py b/x.py\n@@ -1,3 +1,4 @@\n-old line\n+new line\n context\n\\ No newline at end of file\n",
    "<div class=\"a b\" data-x='1'>&amp;&#8212;<br/><!-- c --></div>\n```python\n>>> x\n```\n| a | b |\n|---|---|\n",
    "https://user@example.org:8080/a/b-c_d/?q=1&r=%20x#frag /usr/lib/x86_64-linux-gnu/libm.so.6 C:\\Users\\file.txt",
    "HTTPServer getURLForID parseXMLDoc fooBAR BazQux iPhone eBay ABCdef ABC123def camelCase snake_case SCREAMING_CASE",
    "$12,345.67 1.000.000,00 50% +1-555-0123 2026-11-30T02:47:01.123456Z 1st 2nd 10^-9 1/2 ½ ²³ Ⅷ ① 〇",
    "Ångström naïve café Œuvre straße STRASSE ẞ İstanbul ı \u01c5 Ǆ ﬁn \u2126 \u212b \u212a",
    "A\u030angstro\u0308m cafe\u0301 e\u0301\u0323 e\u0323\u0301 \u0344 q\u0307\u0323",
    "a\u0301\u0301\u0301 \u0301 \u0301a \u0958 \u09dc \ufb2a \u2adc \u1e9b\u0323 <\u0338 >\u0338 =\u0338 \u0f73",
    "Привет, мир! йи\u0306 Ї і\u0308 Θαλής Σίσυφος Ἀναξ",
    "你好，世界！我們在2026年11月30日。「引用」こんにちは世界カタカナｶﾞがか\u3099ー",
    "안녕하세요 \u1100\u1161\u11a8 \u1112\u1161\u11ab\u1100\u1173\u11af 가\u11a8 ㄱㅏ",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0650\u0633\u0652\u0645\u0650 \u0644\u0644\u0651\u064e\u0647",
    "\u0661\u0662\u0663 \ufefb \u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u200f(\u05d0)\u200e ۱۲",
    "नमस\u094dत\u0947 क\u094dष ०१ தம\u0bbfழ\u0bcd త\u0c46ల\u0c41గ\u0c41 മലയ\u0d3eള\u0d02 ক\u09cb ক\u09c7\u09be ම\u0dd9",
    "สว\u0e31สด\u0e35ชาวโลก กำ ສະບາຍ မ\u103cန\u103aမ\u102c ភ\u17b6ស\u17b6ខ\u17d2ម\u17c2រ བ\u0f7cད་ས\u0f90ད་",
    "ქართული ᲔᲐ Հայերեն አማርኛ ᏣᎳᎩ ᚠᚱ ꓐꓲ \u0750 𐌰 𝐀𝟘 𠀀",
    "😀👨\u200d👩\u200d👧 👍🏽 \U0001f1e9\U0001f1ea\U0001f1eb 1\ufe0f\u20e3 ❤\ufe0f ☺ 🏴\U000e0067\U000e007f",
    "\U0001fae8 🧑\u200d💻 \U0001f1e9",
    "a\u200bb\u200cc\u200dd\u2060e\ufefff\u00adg\u202ah\u202ei\ufffdj\ufffck\ue000l\U000f0000m\ufdd0n\uffffo\U0010ffff",
    "\x00\x01\x02\x07\x08\x0b\x0c\x0e\x1a\x1b[31mred\x1b[0m\x7f\x80\x85\x9f\xa0 x\x00y",
    "∀x∈ℝ: ∑ᵢ x² ≤ ∫₀^∞ e^{-x} dx ∴ \\alpha \\frac{1}{2} → ⇒ ⟨ψ|φ⟩ ─│┌ █░ ✓",
)
"""Prose, code, data and many scripts."""

CLASSES = (
    *(
        "a",
        "Z",
        "é",
        "\u01c5",
        "\u02b0",
        "中",
        "\u0627",
        "\u0301",
        "1",
        "\u0663",
        "²",
        " ",
        "\n",
        "\r",
        "\t",
    ),
    *("\u00a0", "'", "'s", "_", "-", "/", ".", "<", "😀", "\u200d", "\x00"),
)
"""One character of each kind that a pattern may tell apart; every three of them are put beside each other."""

STEMS = ("t", "T", "é", "1", "_", " ", "")
SUFFIXES = ("'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'lL", "'d", "'K", "’s", "''", "'x")
"""Contractions, and endings that resemble them."""

SPACES = (" ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", " \n", "\n ", " \t", "\x0c")
LONG_RUNS = ("a", "A", "1", " ", "\n", "=", "ab", "中", "\u0301", "а", "😀", "\t\n", "'s", "x1", "<")
RUN = 3000

_DENSE_STOP = 0x3400
_PLANES = ((_DENSE_STOP, 0xD800, 16), (0xE000, 0x10000, 16), (0x10000, 0x32400, 64), (0xE0000, 0xE0200, 8))
_SURROGATES = range(0xD800, 0xE000)
_GROUP = 64
_MOST_MARKERS = 96
_MOST_VOCABULARY_TEXTS = 8192


def build_check_texts(markers: Sequence[str], said: Sequence[str], pieces: Sequence[str]) -> Iterator[str]:
    """Yield all texts of the check, about 600,000 characters.

    Args:
        markers: the added tokens of the tokenizer; of hundreds, those in the conversations and an even selection.
        said: conversations as the family renders them.
        pieces: the texts of the vocabulary's ids, of which an even selection is used.
    """
    yield from WRITTEN
    yield from said
    met = [marker for marker in markers if any(marker in text for text in said)]
    yield from build_marker_texts(
        [*met, *pick_evenly([marker for marker in markers if marker not in met], _MOST_MARKERS)]
    )
    yield from build_class_texts()
    yield from build_contraction_texts()
    yield from build_run_texts()
    yield from build_character_texts(chain(range(_DENSE_STOP), *(range(*plane) for plane in _PLANES)))
    chosen = pick_evenly(pieces, _MOST_VOCABULARY_TEXTS)
    for start in range(0, len(chosen), _GROUP):
        group = chosen[start : start + _GROUP]
        yield "".join(group)
        yield " ".join(group)
    everything = "\n".join([*WRITTEN, *said])
    yield everything * (1 + 280_000 // len(everything))


def build_marker_texts(markers: Sequence[str]) -> Iterator[str]:
    """Yield each marker beside other texts, and without its first or last character."""
    for number, marker in enumerate(markers):
        other = markers[number - 1]
        yield marker
        yield f"{marker}{marker}{other}{marker}"
        yield f"a{marker}b 1{marker}2 .{marker}, 中{marker}中"
        yield f"  {marker}  x\n\n{marker}\n\n \t{marker}\t "
        yield f"{marker}\u0301{marker}\u0338x \u0301{marker} e{marker}\u0301"  # a mark that composes with its ">"
        yield f"{marker[:-1]} {marker[1:]} {marker[:-1]}{marker}{marker[1:]} <{marker}>"
        yield f"{marker.upper()} {marker.lower()} {marker[:2]} {marker[2:]}"
        yield f"x {marker}"
        yield f"{marker} x"


def build_class_texts() -> Iterator[str]:
    """Yield every three kinds of characters beside each other, at both ends of a text too."""
    for first in CLASSES:
        yield first
        yield "".join(chain.from_iterable((first, *pair) for pair in product(CLASSES, repeat=2)))
    for pair in product(CLASSES, repeat=2):
        yield "".join(pair)


def build_contraction_texts() -> Iterator[str]:
    """Yield every two contractions behind each other, also with a word behind them."""
    for stem, end in product(STEMS, ("", "CRE ", "x ")):
        yield "".join(f"{stem}{first}{second}{end}" for first, second in product(SUFFIXES, repeat=2))
        yield "".join(f"{stem}'{LONG_S}{second}{end}{stem}{second}'{LONG_S}{end}" for second in SUFFIXES)


def build_run_texts() -> Iterator[str]:
    """Yield repetitions: white space of every length, and words that are too long for the key of a cache."""
    for space in SPACES:
        yield "".join(f"{space * size}w" for size in range(1, 40)) + space * 5
        yield "".join(f"{space * size}\n1" for size in range(1, 20)) + space
    yield " ".join("1234567890" * 3 for _ in range(2)) + "".join(f" {'7' * size}" for size in range(1, 20))
    for run in LONG_RUNS:
        yield run * RUN
        yield f"x {run * 17} {run * 16}{run * 15}y"
    yield "".join(f"{number * 2654435761 % 4294967296:x}" for number in range(500))


def build_character_texts(numbers: Iterator[int]) -> Iterator[str]:
    """Yield characters behind a letter, before a digit and behind a space.

    Args:
        numbers: the code points; surrogates and the long s are left out.
    """
    group: list[str] = []
    for number in numbers:
        if number in _SURROGATES or chr(number) == LONG_S:
            continue
        group.append(f"a{chr(number)}1 {chr(number)}")
        if len(group) == _GROUP:
            yield "".join(group)
            group.clear()
    yield "".join(group)


def pick_evenly(items: Sequence[str], most: int) -> Sequence[str]:
    """Return all items, or an even selection of at most about ``most``."""
    return items[:: -(-len(items) // most)] if items else items
