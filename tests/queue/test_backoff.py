from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from pabal.queue.outcome import FIRST_DELAY, JITTER, MAX_DELAY, backoff

attempts = st.integers(min_value=1, max_value=10_000)
chances = st.floats(min_value=0, max_value=1, exclude_max=True)


@given(attempts, chances)
def test_nobody_waits_less_than_the_first_or_longer_than_the_longest(attempt: int, chance: float) -> None:
    assert FIRST_DELAY * (1 - JITTER) <= backoff(attempt, chance) <= MAX_DELAY


@given(attempts, chances)
def test_a_later_attempt_never_waits_less(attempt: int, chance: float) -> None:
    assert backoff(attempt, chance) <= backoff(attempt + 1, chance)


@given(st.integers(min_value=1, max_value=8), chances)
def test_below_the_ceiling_it_doubles_and_spreads_by_a_fifth(attempt: int, chance: float) -> None:
    middle = FIRST_DELAY * 2 ** (attempt - 1)

    assert abs(backoff(attempt, chance) - middle) <= middle * JITTER + timedelta(microseconds=1)
    assert backoff(attempt, 0.5) == middle
    assert backoff(attempt, 0) < backoff(attempt, 0.99)


@given(st.integers(max_value=0), chances)
def test_an_attempt_that_never_was_counts_as_the_first(attempt: int, chance: float) -> None:
    assert backoff(attempt, chance) == backoff(1, chance)
