"""Whatever is done to the keys, of each use one is active, one is next, and only old ones go."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.core.base64url import encoded
from pabal.core.errors import Conflict, NotFound
from pabal.keys.document import parse, text
from pabal.keys.key import Key, Keys, State, Use

START = datetime(2025, 12, 1, tzinfo=UTC)
FIRST = Keys.made(START)

Turn = list[Use] | int
"""Rotate these uses, or retire the key at this place."""

turns: st.SearchStrategy[list[Turn]] = st.lists(
    st.one_of(st.lists(st.sampled_from(Use), max_size=4), st.integers(0, 40)), max_size=25
)


def states(keys: Keys, use: Use) -> list[State]:
    return sorted(key.state for key in keys.of(use))


@given(turns)
def test_one_is_active_one_is_next_and_nothing_but_an_old_key_ever_goes(turns: Sequence[Turn]) -> None:
    keys, ever = FIRST, {key.id: key for key in FIRST.every}
    for number, turn in enumerate(turns):
        before, at = keys, START + timedelta(days=number + 1)
        if isinstance(turn, list):
            keys = before.rotated(turn, at)
            for use in Use:
                turned = use in turn
                active, next_before = before.active(use), [k for k in before.of(use) if k.state is State.NEXT]
                assert keys.active(use).id == (next_before[0].id if turned else active.id)
                assert keys.active(use).secret == (next_before[0] if turned else active).secret
                assert states(keys, use).count(State.OLD) == states(before, use).count(State.OLD) + turned
                assert keys.find(active.id) == (replace(active, state=State.OLD, since=at) if turned else active)
            assert {key.id for key in before.every} <= {key.id for key in keys.every}
        else:
            key = before.every[turn % len(before.every)]
            if key.state is State.OLD:
                keys = before.without(key.id)
                assert {*keys.every} == {*before.every} - {key}
            else:
                with pytest.raises(Conflict, match=key.id):
                    before.without(key.id)
        for use in Use:
            assert [states(keys, use).count(state) for state in (State.ACTIVE, State.NEXT)] == [1, 1]
        for key in keys.every:
            assert ever.setdefault(key.id, key).secret == key.secret
        assert parse(text(keys)) == keys


def test_a_key_nobody_knows_cannot_be_retired() -> None:
    with pytest.raises(NotFound, match="there is no key e123"):
        FIRST.without("e123")


def test_without_a_next_one_the_key_that_becomes_active_is_new() -> None:
    bare = Keys(tuple(key for key in FIRST.every if key.state is State.ACTIVE))

    turned = bare.rotated(Use, START)

    assert {states(turned, use)[0] for use in Use} == {State.ACTIVE}
    assert {turned.active(use).id for use in Use}.isdisjoint(key.id for key in bare.every)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (FIRST.every[1:], "of the signing keys exactly one is active"),
        ((*FIRST.every, replace(FIRST.every[1], id="s1", secret=b"x" * 32)), "at most one is next"),
        ((*FIRST.every, replace(FIRST.every[0], state=State.OLD)), "the same id"),
        ((*FIRST.every, replace(FIRST.every[0], id="s1", state=State.OLD)), "the same secret"),
        ((replace(FIRST.every[0], secret=b"short"), *FIRST.every[1:]), "is not 32 bytes long"),
        ((replace(FIRST.every[0], id="a.dot"), *FIRST.every[1:]), "the id of key 1"),
        ((replace(FIRST.every[0], id=""), *FIRST.every[1:]), "the id of key 1"),
        ((replace(FIRST.every[0], id="s1\n"), *FIRST.every[1:]), "the id of key 1"),
    ],
)
def test_keys_that_cannot_be_are_refused(broken: tuple[Key, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Keys(broken)


def test_nothing_shows_a_secret() -> None:
    shown = f"{FIRST!r} {FIRST} {FIRST.every[0]!r} {FIRST.every[0]} {[*FIRST.every]}"

    for key in FIRST.every:
        assert key.id in shown
        assert repr(key.secret) not in shown
        assert encoded(key.secret) not in shown
