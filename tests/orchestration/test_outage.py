from collections.abc import Callable

import pytest
from sqlalchemy.exc import OperationalError

from pamp_pipelines.orchestration.outage import AGAIN_S, LONGEST_S, Deferred, is_outage, origins


class Database:
    """Takes reports, or is away; time passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.away, self.now, self.attempts = False, 0.0, 0
        self.taken: list[int] = []
        self.back_at = float("inf")

    def report(self, number: int) -> Callable[[], None]:
        def call() -> None:
            self.attempts += 1
            if self.away and self.now < self.back_at:
                raise RuntimeError("retries are used up") from OperationalError("insert", {}, Exception("refused"))
            self.taken.append(number)

        return call

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def deferred(database: Database) -> Deferred:
    return Deferred(clock=lambda: database.now, sleep=database.sleep)


def test_reports_wait_for_the_database_and_keep_their_order(database: Database, deferred: Deferred) -> None:
    deferred(database.report(0))
    database.away = True
    for number in range(1, 5):
        deferred(database.report(number))
    assert database.attempts == 2  # not again within moments
    database.sleep(AGAIN_S)
    deferred(database.report(5))
    assert (database.taken, database.attempts) == ([0], 3)
    database.away = False
    database.sleep(AGAIN_S)
    deferred(database.report(6))
    assert database.taken == list(range(7))


def test_the_end_waits_for_the_database(database: Database, deferred: Deferred) -> None:
    database.away, database.back_at = True, 5 * AGAIN_S
    deferred(database.report(0))
    deferred.finish()
    assert database.taken == [0]


def test_the_end_does_not_wait_for_ever(database: Database, deferred: Deferred) -> None:
    database.away = True
    deferred(database.report(0))
    with pytest.raises(RuntimeError) as raised:
        deferred.finish()
    assert is_outage(raised.value)
    assert database.now >= LONGEST_S


def test_other_errors_are_not_held_back(deferred: Deferred) -> None:
    def wrong() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        deferred(wrong)
    deferred.finish()


def test_a_failure_and_the_error_that_was_made_of_it_again_have_an_end() -> None:
    first, second = ValueError(), RuntimeError()
    first.__cause__, second.__context__ = second, first
    assert list(origins(first)) == [first, second]
    assert not is_outage(first)
