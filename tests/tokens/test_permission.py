"""Which of the requested permissions are granted."""

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

name_lists = st.lists(st.sampled_from(PERMISSION_NAMES), max_size=12)
non_empty_name_lists = st.lists(st.sampled_from(PERMISSION_NAMES), min_size=1, max_size=12)


def granted(requested: Sequence[str], allowed: Sequence[str]) -> frozenset[Permission]:
    """The expanded grant; empty if it was refused."""
    try:
        return expand_permissions(grant_permissions(requested, allowed))
    except InvalidScope:
        return frozenset()


@given(requested=non_empty_name_lists, allowed=name_lists)
def test_the_grant_is_the_intersection_of_requested_and_allowed(requested: list[str], allowed: list[str]) -> None:
    assert granted(requested, allowed) == expand_permissions(requested) & expand_permissions(allowed)


@given(allowed=non_empty_name_lists)
def test_an_empty_request_gets_everything_allowed(allowed: list[str]) -> None:
    assert granted((), allowed) == expand_permissions(allowed)


@given(requested=name_lists, allowed=name_lists, random=st.randoms())
def test_order_and_repetition_change_nothing(requested: list[str], allowed: list[str], random: Random) -> None:
    before = granted(requested, allowed)
    repeated_request = [*requested, *requested]
    random.shuffle(repeated_request)
    repeated_allowed = [*allowed, *allowed]
    random.shuffle(repeated_allowed)

    assert granted(repeated_request, repeated_allowed) == before


@given(requested=name_lists, allowed=non_empty_name_lists)
def test_a_grant_has_no_duplicates_and_can_be_requested_again(requested: list[str], allowed: list[str]) -> None:
    try:
        granted_names = grant_permissions(requested, allowed)
    except InvalidScope:
        return
    assert len(granted_names) == len({*granted_names})
    assert {*granted_names} <= {*PERMISSION_NAMES}
    assert grant_permissions(granted_names, granted_names) == granted_names
    assert expand_permissions(format_scope(granted_names).split()) == expand_permissions(granted_names)


@given(requested=non_empty_name_lists, allowed=name_lists)
def test_only_an_empty_intersection_is_refused(requested: list[str], allowed: list[str]) -> None:
    if expand_permissions(requested) & expand_permissions(allowed):
        assert grant_permissions(requested, allowed)
    else:
        with pytest.raises(InvalidScope, match="has none of the requested"):
            grant_permissions(requested, allowed)


@given(
    requested=name_lists,
    unknown=st.text().filter(lambda text: text not in PERMISSION_NAMES),
    allowed=non_empty_name_lists,
)
def test_an_unknown_name_is_always_refused(requested: list[str], unknown: str, allowed: list[str]) -> None:
    with pytest.raises(InvalidScope, match="is not a permission") as refusal:
        grant_permissions([*requested, unknown], allowed)

    assert len(str(refusal.value)) < 1000


def test_a_group_allowed_in_part_is_granted_in_part() -> None:
    assert grant_permissions(["write"], ["read", "events:publish", "hub:admin"]) == (
        "events:publish",
        "events:read",
        "notifications:read",
    )
    assert grant_permissions(["read"], ["events:read"]) == ("events:read",)


def test_a_fully_allowed_group_stays_a_group() -> None:
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
        "people:token",
        "people:write",
        "tokens:introspect",
        "tokens:admin",
        "hub:events",
        "hub:admin",
        "hub:manage",
    }
    assert expand_permissions(["read"]) == {"events:read", "notifications:read"}
    assert expand_permissions(["write"]) == expand_permissions(["read"]) | {
        "events:publish",
        "events:consume",
        "notifications:send",
    }
    assert not PERMISSION_GROUPS.keys() & {*Permission}


def test_names_are_case_sensitive_and_exact() -> None:
    for name in ("READ", "read ", " read", "events:*", "events:read\n", "", "hub"):
        with pytest.raises(InvalidScope):
            check_permission_names([name])
