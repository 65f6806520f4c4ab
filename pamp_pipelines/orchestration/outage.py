"""A training goes on while Dagster's database is away: what cannot be reported now is reported later, in order."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator

from sqlalchemy.exc import SQLAlchemyError

AGAIN_S = 10.0
"""Seconds between two attempts: the driver's own retries take as long."""

LONGEST_S = 600.0
"""Seconds that the end of a stage waits for the database before its run fails."""


def origins(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came from, each once: a stage's own error is raised from the failure that was made of it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_outage(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is one of the database."""
    return any(
        isinstance(one, SQLAlchemyError) or type(one).__module__.startswith("dagster_postgres")
        for one in origins(error)
    )


class Deferred:
    """Reports that wait while there is an outage."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._waiting: deque[Callable[[], object]] = deque()
        self._tried = float("-inf")

    def __call__(self, report: Callable[[], object]) -> None:
        """Make a report, now or as soon as those before it were made.

        Raises:
            Exception: what the report raises, unless the database is away.
        """
        self._waiting.append(report)
        if len(self._waiting) == 1 or self._clock() - self._tried >= AGAIN_S:
            self._flush()

    def finish(self) -> None:
        """Make all that is left.

        Raises:
            Exception: the database's, when it is away for longer than ``LONGEST_S``.
        """
        end = self._clock() + LONGEST_S
        while (error := self._flush()) is not None:
            if self._clock() >= end:
                raise error
            self._sleep(AGAIN_S)

    def _flush(self) -> Exception | None:
        while self._waiting:
            try:
                self._waiting[0]()
            except Exception as error:
                if not is_outage(error):
                    self._waiting.popleft()
                    raise
                self._tried = self._clock()
                print(f"Dagster's database is away; {len(self._waiting)} reports wait: {error}", file=sys.stderr)
                return error
            self._waiting.popleft()
        return None
