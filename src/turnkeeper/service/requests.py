"""The requests that are being answered, and the most of them that there may be at a time."""

from collections.abc import Generator
from contextlib import contextmanager

from turnkeeper.errors import CapacityError


class RequestsInFlight:
    """Counts requests while they are answered."""

    def __init__(self, limit: int) -> None:
        """Count up to a limit.

        Args:
            limit: the most requests at a time.
        """
        self._limit = limit
        self._count = 0

    def __len__(self) -> int:
        """Count the requests that are being answered."""
        return self._count

    @contextmanager
    def count(self) -> Generator[None]:
        """Count a request while the block runs.

        Raises:
            CapacityError: there are as many as there may be.
        """
        if self._count >= self._limit:
            raise CapacityError(
                f"{self._count} requests are in flight, the limit is {self._limit}",
                hint="--max-in-flight raises it",
                limit="max_in_flight",
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
