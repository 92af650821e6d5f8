"""A table of cases in one test, which names each case that fails.

For tables that repeat one assertion by option, field or file, where a test for each would say nothing more.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest


@dataclass(slots=True)
class Table:
    """The cases that failed so far."""

    failures: list[str] = field(default_factory=list[str])

    @contextmanager
    def case(self, *name: object) -> Generator[None]:
        """Check one case; where it fails, go on with the next."""
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            said = " ".join(map(str, name))
            self.failures.append(f"{said}: {type(error).__name__}: {error}")


@contextmanager
def checking_table() -> Generator[Table]:
    """Check the cases of a table; fail at the end if any of them did."""
    table = Table()
    yield table
    if table.failures:
        pytest.fail(f"{len(table.failures)} cases of the table fail:\n" + "\n".join(table.failures), pytrace=False)
