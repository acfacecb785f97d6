"""What a handler said, and what will be."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from hypothesis import assume, given
from hypothesis import strategies as st

from pabal.events.lane import LANE as EVENTS
from pabal.notifications.lane import LANE as NOTIFICATIONS
from pabal.queue.backoff import backoff
from pabal.queue.lane import STATEMENTS, TEXT_LIMIT, Can, Lane, columns, cut, decide
from pabal.queue.outcome import DONE, Dead, Done, Outcome, Retry, Snooze
from pabal.relay.lane import LANE as RELAY


@dataclass(frozen=True, slots=True)
class Row:
    id: UUID
    lease: UUID
    attempt: int
    allowed: int


rows = st.builds(Row, st.just(uuid4()), st.just(uuid4()), st.integers(1, 30), st.integers(0, 30))
chances = st.floats(0, 1, exclude_max=True)
spans = st.timedeltas(timedelta(), timedelta(days=30))
texts = st.text(max_size=50)
maybe = st.none() | texts
retries = st.builds(Retry, texts, st.none() | spans, maybe, maybe)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.just(DONE), retries, st.builds(Dead, texts, maybe, maybe), st.builds(Snooze, texts, spans)
)
counting = st.sampled_from([EVENTS.can, NOTIFICATIONS.can])


@given(outcomes, rows, counting, chances)
def test_only_a_retry_is_ever_read_differently(said: Outcome, row: Row, can: frozenset[Can], chance: float) -> None:
    assume(not isinstance(said, Retry))

    assert decide(said, row, can, chance) == said


@given(retries, rows, counting, chances)
def test_a_retry_on_the_last_attempt_is_a_death_with_the_same_reason(
    said: Retry, row: Row, can: frozenset[Can], chance: float
) -> None:
    assume(row.attempt >= row.allowed)

    assert decide(said, row, can, chance) == Dead(said.why, said.code, said.stack)


@given(retries, rows, counting, chances)
def test_a_retry_before_it_waits_as_told_or_by_the_backoff(
    said: Retry, row: Row, can: frozenset[Can], chance: float
) -> None:
    assume(row.attempt < row.allowed)

    after = backoff(row.attempt, chance) if said.after is None else said.after
    assert decide(said, row, can, chance) == Retry(said.why, after, said.code, said.stack)


@given(retries, rows, chances)
def test_the_relay_counts_no_attempts_and_simply_takes_a_message_back(said: Retry, row: Row, chance: float) -> None:
    assert decide(said, row, RELAY.can, chance) == Snooze(said.why, said.after or timedelta())


@given(outcomes, rows, st.sampled_from([EVENTS, NOTIFICATIONS]), chances)
def test_whatever_is_decided_has_a_statement_and_fills_its_columns(
    said: Outcome, row: Row, lane: Lane[Any], chance: float
) -> None:
    decided = decide(said, row, lane.can, chance)
    assume(not isinstance(decided, Done))  # which says nothing but itself
    statement = getattr(lane.q, STATEMENTS[type(decided)])
    filled = columns(type(decided), [decided])

    assert {*filled} == {*statement.takes} - {"ids", "leases"}
    assert all(filled[name] != [None] for name in {"whys", "afters"} & filled.keys())


@given(st.text(alphabet=st.characters(), max_size=40), st.integers(0, 400))
def test_a_text_is_kept_from_its_beginning_without_what_postgres_cannot_store(text: str, times: int) -> None:
    kept = cut(text * times)

    assert kept is not None
    assert "\x00" not in kept
    assert len(kept) == min(len(text * times), TEXT_LIMIT)
    assert (text * times).replace("\x00", "\ufffd").startswith(kept)
