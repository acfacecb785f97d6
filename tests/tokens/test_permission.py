"""What is granted of what is asked, whoever asks and however they write it."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.core.errors import InvalidScope
from pabal.tokens.permission import (
    PERMISSION_GROUPS,
    PERMISSION_NAMES,
    Permission,
    check_permission_names,
    expand_permissions,
    format_scope,
    grant_permissions,
)

names = st.lists(st.sampled_from(PERMISSION_NAMES), max_size=12)
some_names = st.lists(st.sampled_from(PERMISSION_NAMES), min_size=1, max_size=12)


def given_to(asked: Sequence[str], allowed: Sequence[str]) -> frozenset[Permission]:
    """What it comes to, taken apart; nothing when it was refused."""
    try:
        return expand_permissions(grant_permissions(asked, allowed))
    except InvalidScope:
        return frozenset()


@given(asked=some_names, allowed=names)
def test_granted_is_what_was_asked_for_and_is_allowed_and_nothing_else(asked: list[str], allowed: list[str]) -> None:
    assert given_to(asked, allowed) == expand_permissions(asked) & expand_permissions(allowed)


@given(allowed=some_names)
def test_who_asks_for_nothing_in_particular_gets_everything_allowed(allowed: list[str]) -> None:
    assert given_to((), allowed) == expand_permissions(allowed)


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
        first = grant_permissions(asked, allowed)
    except InvalidScope:
        return
    assert len(first) == len({*first})
    assert {*first} <= {*PERMISSION_NAMES}
    assert grant_permissions(first, first) == first
    assert expand_permissions(format_scope(first).split()) == expand_permissions(first)


@given(asked=some_names, allowed=names)
def test_an_empty_intersection_is_refused_and_no_other(asked: list[str], allowed: list[str]) -> None:
    if expand_permissions(asked) & expand_permissions(allowed):
        assert grant_permissions(asked, allowed)
    else:
        with pytest.raises(InvalidScope, match="has none of the requested"):
            grant_permissions(asked, allowed)


@given(asked=names, strange=st.text().filter(lambda text: text not in PERMISSION_NAMES), allowed=some_names)
def test_a_name_nobody_knows_is_refused_whatever_else_is_asked(
    asked: list[str], strange: str, allowed: list[str]
) -> None:
    with pytest.raises(InvalidScope, match="is not a permission") as refusal:
        grant_permissions([*asked, strange], allowed)

    assert len(str(refusal.value)) < 1000


def test_a_group_allowed_in_part_is_given_in_part() -> None:
    assert grant_permissions(["write"], ["read", "events:publish", "hub:admin"]) == (
        "events:publish",
        "events:read",
        "notifications:read",
    )
    assert grant_permissions(["read"], ["events:read"]) == ("events:read",)


def test_a_group_allowed_whole_stays_a_group() -> None:
    assert grant_permissions(["read"], ["write"]) == ("read",)
    assert grant_permissions((), ["write", "tokens:introspect"]) == ("write", "tokens:introspect")


def test_the_names_are_those_of_the_contract() -> None:
    assert set(PERMISSION_NAMES) == {
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
    assert expand_permissions(["read"]) == {"events:read", "notifications:read"}
    assert expand_permissions(["write"]) == expand_permissions(["read"]) | {
        "events:publish",
        "events:consume",
        "notifications:send",
    }
    assert not PERMISSION_GROUPS.keys() & {*Permission}


def test_names_are_taken_as_they_are_written() -> None:
    for close in ("READ", "read ", " read", "events:*", "events:read\n", "", "hub"):
        with pytest.raises(InvalidScope):
            check_permission_names([close])
