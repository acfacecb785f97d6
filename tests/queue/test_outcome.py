"""How a handler's outcome becomes the settled one."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from hypothesis import assume, given
from hypothesis import strategies as st

from pabal.core.backoff import backoff
from pabal.events.consume.lane import LANE as EVENTS
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.queue.lane import (
    Capability,
    Lane,
    decide_outcome,
    failure_columns,
    retry_columns,
    snooze_columns,
)
from pabal.queue.outcome import DONE, Dead, Done, Outcome, Retry, Snooze
from pabal.relay.delivery.lane import LANE as RELAY


@dataclass(frozen=True, slots=True)
class Row:
    id: UUID
    lease: UUID
    attempt: int
    max_attempts: int


rows = st.builds(Row, st.just(uuid4()), st.just(uuid4()), st.integers(1, 30), st.integers(0, 30))
jitters = st.floats(0, 1, exclude_max=True)
delays = st.timedeltas(timedelta(), timedelta(days=30))
texts = st.text(max_size=50)
optional_texts = st.none() | texts
retries = st.builds(Retry, texts, st.none() | delays, optional_texts, optional_texts)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.just(DONE), retries, st.builds(Dead, texts, optional_texts, optional_texts), st.builds(Snooze, texts, delays)
)
retrying_capabilities = st.sampled_from([EVENTS.capabilities, NOTIFICATIONS.capabilities])


@given(outcomes, rows, retrying_capabilities, jitters)
def test_every_outcome_but_a_retry_is_settled_unchanged(
    outcome: Outcome, row: Row, capabilities: frozenset[Capability], jitter: float
) -> None:
    assume(not isinstance(outcome, Retry))

    assert decide_outcome(outcome, row, capabilities, jitter) == outcome


@given(retries, rows, retrying_capabilities, jitters)
def test_a_retry_on_the_last_attempt_becomes_dead_with_the_same_error(
    outcome: Retry, row: Row, capabilities: frozenset[Capability], jitter: float
) -> None:
    assume(row.attempt >= row.max_attempts)

    assert decide_outcome(outcome, row, capabilities, jitter) == Dead(outcome.error, outcome.code, outcome.stack)


@given(retries, rows, retrying_capabilities, jitters)
def test_an_earlier_retry_waits_for_its_own_delay_or_the_backoff(
    outcome: Retry, row: Row, capabilities: frozenset[Capability], jitter: float
) -> None:
    assume(row.attempt < row.max_attempts)

    delay = backoff(row.attempt, jitter) if outcome.delay is None else outcome.delay
    assert decide_outcome(outcome, row, capabilities, jitter) == Retry(
        outcome.error, delay, outcome.code, outcome.stack
    )


@given(retries, rows, jitters)
def test_the_relay_counts_no_attempts_and_snoozes_a_retry(outcome: Retry, row: Row, jitter: float) -> None:
    assert decide_outcome(outcome, row, RELAY.capabilities, jitter) == Snooze(
        outcome.error, outcome.delay or timedelta()
    )


@given(outcomes, rows, st.sampled_from([EVENTS, NOTIFICATIONS]), jitters)
def test_an_outcome_fills_the_parameters_of_its_statement(
    outcome: Outcome, row: Row, lane: Lane[Any, Any], jitter: float
) -> None:
    match decide_outcome(outcome, row, lane.capabilities, jitter):
        case Done():
            return  # its statement needs only ids and leases
        case Retry() as retry:
            statement, columns = lane.q.settle_retry, retry_columns([(row, retry)])
        case Dead() as dead:
            statement, columns = lane.q.settle_dead, failure_columns([(row, dead)])
        case Snooze() as snooze:
            statement, columns = lane.q.settle_snooze, snooze_columns([(row, snooze)])

    assert {*columns} == {*statement.parameters} - {"ids", "leases"}
    assert all(columns[name] != [None] for name in {"errors", "reasons", "delays"} & columns.keys())
