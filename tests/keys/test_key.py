"""Rotating and retiring keys keeps one active and one next key per use, and removes only old ones."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.core.errors import Conflict, NotFound
from pabal.core.secrets import encode_base64url
from pabal.keys.key import Key, KeySet, KeyState, KeyUse, encode_key_set, parse_key_set

START = datetime(2025, 12, 1, tzinfo=UTC)
FIRST = KeySet.generate(START)

Step = list[KeyUse] | int
"""Rotate these uses, or retire the key at this position."""

step_lists: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(st.lists(st.sampled_from(KeyUse), max_size=4), st.integers(0, 40)), max_size=25
)


def states(keys: KeySet, use: KeyUse) -> list[KeyState]:
    return sorted(key.state for key in keys.for_use(use))


@given(step_lists)
def test_each_use_has_one_active_and_one_next_key_and_only_old_keys_are_removed(steps: Sequence[Step]) -> None:
    keys, keys_by_id = FIRST, {key.id: key for key in FIRST.all_keys}
    for number, step in enumerate(steps):
        before, at = keys, START + timedelta(days=number + 1)
        if isinstance(step, list):
            keys = before.rotate(step, at)
            for use in KeyUse:
                is_rotated = use in step
                active, next_before = before.active(use), [k for k in before.for_use(use) if k.state is KeyState.NEXT]
                assert keys.active(use).id == (next_before[0].id if is_rotated else active.id)
                assert keys.active(use).secret == (next_before[0] if is_rotated else active).secret
                assert states(keys, use).count(KeyState.OLD) == states(before, use).count(KeyState.OLD) + is_rotated
                assert keys.find(active.id) == (replace(active, state=KeyState.OLD, since=at) if is_rotated else active)
            assert {key.id for key in before.all_keys} <= {key.id for key in keys.all_keys}
        else:
            key = before.all_keys[step % len(before.all_keys)]
            if key.state is KeyState.OLD:
                keys = before.without(key.id)
                assert {*keys.all_keys} == {*before.all_keys} - {key}
            else:
                with pytest.raises(Conflict, match=key.id):
                    before.without(key.id)
        for use in KeyUse:
            assert [states(keys, use).count(state) for state in (KeyState.ACTIVE, KeyState.NEXT)] == [1, 1]
        for key in keys.all_keys:
            assert keys_by_id.setdefault(key.id, key).secret == key.secret
        assert parse_key_set(encode_key_set(keys)) == keys


def test_an_unknown_key_cannot_be_retired() -> None:
    with pytest.raises(NotFound, match="No such key: e123"):
        FIRST.without("e123")


def test_without_a_next_key_a_rotation_generates_the_active_one() -> None:
    without_next = KeySet(tuple(key for key in FIRST.all_keys if key.state is KeyState.ACTIVE))

    rotated = without_next.rotate(KeyUse, START)

    assert {states(rotated, use)[0] for use in KeyUse} == {KeyState.ACTIVE}
    assert {rotated.active(use).id for use in KeyUse}.isdisjoint(key.id for key in without_next.all_keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (FIRST.all_keys[1:], "exactly one signing key must be active"),
        ((*FIRST.all_keys, replace(FIRST.all_keys[1], id="s1", secret=b"x" * 32)), "at most one next"),
        ((*FIRST.all_keys, replace(FIRST.all_keys[0], state=KeyState.OLD)), "the same id"),
        ((*FIRST.all_keys, replace(FIRST.all_keys[0], id="s1", state=KeyState.OLD)), "the same secret"),
        ((replace(FIRST.all_keys[0], secret=b"short"), *FIRST.all_keys[1:]), "is not 32 bytes long"),
        ((replace(FIRST.all_keys[0], id="a.dot"), *FIRST.all_keys[1:]), "the id of key 1"),
        ((replace(FIRST.all_keys[0], id=""), *FIRST.all_keys[1:]), "the id of key 1"),
        ((replace(FIRST.all_keys[0], id="s1\n"), *FIRST.all_keys[1:]), "the id of key 1"),
    ],
)
def test_invalid_key_sets_are_refused(keys: tuple[Key, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KeySet(keys)


def test_printing_shows_no_secret() -> None:
    text = f"{FIRST!r} {FIRST} {FIRST.all_keys[0]!r} {FIRST.all_keys[0]} {[*FIRST.all_keys]}"

    for key in FIRST.all_keys:
        assert key.id in text
        assert repr(key.secret) not in text
        assert encode_base64url(key.secret) not in text
