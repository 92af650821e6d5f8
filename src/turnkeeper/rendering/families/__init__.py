"""The table of model families, one row for each ``--tito-model``."""

import difflib

from turnkeeper.errors import ConfigError
from turnkeeper.rendering.families.deepseek import DEEPSEEKV4, DEEPSEEKV32
from turnkeeper.rendering.families.default import DEFAULT
from turnkeeper.rendering.families.glm import GLM47, GLM53
from turnkeeper.rendering.families.gptoss import GPTOSS
from turnkeeper.rendering.families.inkling import INKLING
from turnkeeper.rendering.families.kimi import KIMI25, KIMI26
from turnkeeper.rendering.families.minimax import MINIMAX_M25, MINIMAX_M27
from turnkeeper.rendering.families.nemotron3 import NEMOTRON3
from turnkeeper.rendering.families.qwen3 import QWEN3, QWENNEXT
from turnkeeper.rendering.families.qwen35 import QWEN4EXP, QWEN35, QWEN36, QWEN38SMALL
from turnkeeper.rendering.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        DEFAULT,
        QWEN3,
        QWENNEXT,
        QWEN35,
        QWEN36,
        QWEN38SMALL,
        QWEN4EXP,
        GLM47,
        GLM53,
        NEMOTRON3,
        KIMI25,
        KIMI26,
        MINIMAX_M25,
        MINIMAX_M27,
        DEEPSEEKV32,
        DEEPSEEKV4,
        GPTOSS,
        INKLING,
    )
}
"""Every family by the name that ``--tito-model`` takes."""


def get_family(name: str) -> Family:
    """Return the family of a ``--tito-model`` name.

    Raises:
        ConfigError: there is no such family; the hint names the most similar ones.
    """
    family = FAMILIES.get(name)
    if family is None:
        near = difflib.get_close_matches(name, FAMILIES, n=3, cutoff=0.4)
        guess = f"did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(
            f"--tito-model {name!r} names no model family",
            hint=f"{guess}the families are {', '.join(sorted(FAMILIES))}",
        )
    return family


__all__ = ["FAMILIES", "get_family"]
