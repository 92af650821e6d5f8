"""How many examples a property is tried with: some in every run, twenty times as many with ``make thorough``."""

import os

FACTOR = int(os.environ.get("TURNKEEPER_TEST_THOROUGH", "1"))


def examples(count: int) -> int:
    """As many examples as a run of this kind tries where every run tries ``count``."""
    return count * FACTOR
