"""What a handler said, and what will be."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from hypothesis import assume, given
from hypothesis import strategies as st

from pabal.events.lane import LANE as EVENTS
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.queue.lane import (
    MAX_TEXT_LENGTH,
    SETTLE_QUERIES,
    Capability,
    Lane,
    decide_outcome,
    outcome_columns,
    truncate_text,
)
from pabal.queue.outcome import DONE, Dead, Done, Outcome, Retry, Snooze, backoff
from pabal.relay.delivery.lane import LANE as RELAY


@dataclass(frozen=True, slots=True)
class Row:
    id: UUID
    lease: UUID
    attempt: int
    max_attempts: int


rows = st.builds(Row, st.just(uuid4()), st.just(uuid4()), st.integers(1, 30), st.integers(0, 30))
chances = st.floats(0, 1, exclude_max=True)
spans = st.timedeltas(timedelta(), timedelta(days=30))
texts = st.text(max_size=50)
maybe = st.none() | texts
retries = st.builds(Retry, texts, st.none() | spans, maybe, maybe)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.just(DONE), retries, st.builds(Dead, texts, maybe, maybe), st.builds(Snooze, texts, spans)
)
counting = st.sampled_from([EVENTS.capabilities, NOTIFICATIONS.capabilities])


@given(outcomes, rows, counting, chances)
def test_only_a_retry_is_ever_read_differently(
    said: Outcome, row: Row, can: frozenset[Capability], chance: float
) -> None:
    assume(not isinstance(said, Retry))

    assert decide_outcome(said, row, can, chance) == said


@given(retries, rows, counting, chances)
def test_a_retry_on_the_last_attempt_is_a_death_with_the_same_reason(
    said: Retry, row: Row, can: frozenset[Capability], chance: float
) -> None:
    assume(row.attempt >= row.max_attempts)

    assert decide_outcome(said, row, can, chance) == Dead(said.error, said.code, said.stack)


@given(retries, rows, counting, chances)
def test_a_retry_before_it_waits_as_told_or_by_the_backoff(
    said: Retry, row: Row, can: frozenset[Capability], chance: float
) -> None:
    assume(row.attempt < row.max_attempts)

    after = backoff(row.attempt, chance) if said.delay is None else said.delay
    assert decide_outcome(said, row, can, chance) == Retry(said.error, after, said.code, said.stack)


@given(retries, rows, chances)
def test_the_relay_counts_no_attempts_and_simply_takes_a_message_back(said: Retry, row: Row, chance: float) -> None:
    assert decide_outcome(said, row, RELAY.capabilities, chance) == Snooze(said.error, said.delay or timedelta())


@given(outcomes, rows, st.sampled_from([EVENTS, NOTIFICATIONS]), chances)
def test_whatever_is_decided_has_a_statement_and_fills_its_columns(
    said: Outcome, row: Row, lane: Lane[Any], chance: float
) -> None:
    decided = decide_outcome(said, row, lane.capabilities, chance)
    assume(not isinstance(decided, Done))  # which says nothing but itself
    statement = getattr(lane.q, SETTLE_QUERIES[type(decided)])
    filled = outcome_columns(type(decided), [decided])

    assert {*filled} == {*statement.parameters} - {"ids", "leases"}
    assert all(filled[name] != [None] for name in {"errors", "reasons", "delays"} & filled.keys())


@given(st.text(alphabet=st.characters(), max_size=40), st.integers(0, 400))
def test_a_text_is_kept_from_its_beginning_without_what_postgres_cannot_store(text: str, times: int) -> None:
    kept = truncate_text(text * times)

    assert kept is not None
    assert "\x00" not in kept
    assert len(kept) == min(len(text * times), MAX_TEXT_LENGTH)
    assert (text * times).replace("\x00", "\ufffd").startswith(kept)
