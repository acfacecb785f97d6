"""What is granted of what is asked, whoever asks and however they write it."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.core.errors import BadScope
from pabal.tokens.permission import GROUPS, NAMES, Permission, expanded, granted, known, scope

names = st.lists(st.sampled_from(NAMES), max_size=12)
some_names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=12)


def given_to(asked: Sequence[str], allowed: Sequence[str]) -> frozenset[Permission]:
    """What it comes to, taken apart; nothing when it was refused."""
    try:
        return expanded(granted(asked, allowed))
    except BadScope:
        return frozenset()


@given(asked=some_names, allowed=names)
def test_granted_is_what_was_asked_for_and_is_allowed_and_nothing_else(asked: list[str], allowed: list[str]) -> None:
    assert given_to(asked, allowed) == expanded(asked) & expanded(allowed)


@given(allowed=some_names)
def test_who_asks_for_nothing_in_particular_gets_everything_allowed(allowed: list[str]) -> None:
    assert given_to((), allowed) == expanded(allowed)


@given(asked=names, allowed=names, chance=st.randoms())
def test_order_and_repetition_change_nothing(asked: list[str], allowed: list[str], chance: Random) -> None:
    before = given_to(asked, allowed)
    again = [*asked, *asked]
    chance.shuffle(again)
    also = [*allowed, *allowed]
    chance.shuffle(also)

    assert given_to(again, also) == before


@given(asked=names, allowed=some_names)
def test_what_is_granted_is_written_once_and_may_be_asked_for_again(asked: list[str], allowed: list[str]) -> None:
    try:
        first = granted(asked, allowed)
    except BadScope:
        return
    assert len(first) == len({*first})
    assert {*first} <= {*NAMES}
    assert granted(first, first) == first
    assert expanded(scope(first).split()) == expanded(first)


@given(asked=some_names, allowed=names)
def test_an_empty_intersection_is_refused_and_no_other(asked: list[str], allowed: list[str]) -> None:
    if expanded(asked) & expanded(allowed):
        assert granted(asked, allowed)
    else:
        with pytest.raises(BadScope, match="allowed none"):
            granted(asked, allowed)


@given(asked=names, strange=st.text().filter(lambda text: text not in NAMES), allowed=some_names)
def test_a_name_nobody_knows_is_refused_whatever_else_is_asked(
    asked: list[str], strange: str, allowed: list[str]
) -> None:
    with pytest.raises(BadScope, match="is not a permission") as refusal:
        granted([*asked, strange], allowed)

    assert len(str(refusal.value)) < 1000


def test_a_group_allowed_in_part_is_given_in_part() -> None:
    assert granted(["write"], ["read", "events:publish", "hub:admin"]) == (
        "events:publish",
        "events:read",
        "notifications:read",
    )
    assert granted(["read"], ["events:read"]) == ("events:read",)


def test_a_group_allowed_whole_stays_a_group() -> None:
    assert granted(["read"], ["write"]) == ("read",)
    assert granted((), ["write", "tokens:introspect"]) == ("write", "tokens:introspect")


def test_the_names_are_those_of_the_contract() -> None:
    assert set(NAMES) == {
        "read",
        "write",
        "events:publish",
        "events:consume",
        "events:read",
        "notifications:send",
        "notifications:read",
        "tokens:introspect",
        "tokens:admin",
        "hub:admin",
    }
    assert expanded(["read"]) == {"events:read", "notifications:read"}
    assert expanded(["write"]) == expanded(["read"]) | {"events:publish", "events:consume", "notifications:send"}
    assert not GROUPS.keys() & {*Permission}


def test_names_are_taken_as_they_are_written() -> None:
    for close in ("READ", "read ", " read", "events:*", "events:read\n", "", "hub"):
        with pytest.raises(BadScope):
            known([close])
