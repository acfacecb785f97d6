from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from pabal.core.backoff import FIRST_DELAY, JITTER, MAX_DELAY, backoff, spread

attempts = st.integers(min_value=1, max_value=10_000)
jitters = st.floats(min_value=0, max_value=1, exclude_max=True)


@given(attempts, jitters)
def test_a_delay_lies_between_the_first_and_the_longest(attempt: int, jitter: float) -> None:
    assert FIRST_DELAY * (1 - JITTER) <= backoff(attempt, jitter) <= MAX_DELAY


@given(attempts, jitters)
def test_a_later_attempt_never_waits_less(attempt: int, jitter: float) -> None:
    assert backoff(attempt, jitter) <= backoff(attempt + 1, jitter)


@given(st.integers(min_value=1, max_value=8), jitters)
def test_below_the_cap_the_delay_doubles_with_a_jitter_of_20_percent(attempt: int, jitter: float) -> None:
    middle = FIRST_DELAY * 2 ** (attempt - 1)

    assert abs(backoff(attempt, jitter) - middle) <= middle * JITTER + timedelta(microseconds=1)
    assert backoff(attempt, 0.5) == middle
    assert backoff(attempt, 0) < backoff(attempt, 0.99)


@given(st.integers(max_value=0), jitters)
def test_an_attempt_below_one_counts_as_the_first(attempt: int, jitter: float) -> None:
    assert backoff(attempt, jitter) == backoff(1, jitter)


@given(st.floats(min_value=0, max_value=1e6))
def test_spread_stays_within_20_percent(seconds: float) -> None:
    assert seconds * (1 - JITTER) <= spread(seconds) <= seconds * (1 + JITTER)
    assert timedelta(seconds=0.5) <= spread(timedelta(seconds=1), 0.5, 1) <= timedelta(seconds=1)
