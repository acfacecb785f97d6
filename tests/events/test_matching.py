"""Subscriptions are found by an index that agrees with every pattern, whatever changes them."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from pabal.core.event_types import matches_event_pattern
from pabal.db.schema import MIGRATIONS_DIR
from pabal.hub import Hub
from support.clusters import Connection
from support.subscriptions import publish_test_event

pytestmark = pytest.mark.anyio

SERVICES = ("minu_build", "minu_keep", "minu_frame", "hub")
ALL_PATTERNS = "select service_name, mode, event_types from pabal.subscriptions where disabled_at is null"
ROWS_READ = """
select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int from pg_stat_xact_user_tables
where relname in ('subscriptions', 'subscription_patterns')
"""
# Few letters, so that patterns and types meet; '_' is a wildcard of LIKE if it is not escaped.
words = st.text("ab_", min_size=1, max_size=3)
types = st.lists(words, min_size=1, max_size=3).map(".".join)
patterns = st.lists(st.text("ab_*", min_size=1, max_size=4), min_size=1, max_size=3).map(".".join)
subscriptions = st.tuples(
    st.sampled_from(SERVICES), st.sampled_from(["pull", "rule"]), st.lists(patterns, min_size=1, max_size=3)
)
CHANGES: dict[str, Callable[[int], str]] = {
    "nothing": lambda _: "select",
    "disable": lambda n: f"update pabal.subscriptions set disabled_at = now(), disabled_reason = 'x' {row(n)}",
    "enable": lambda n: f"update pabal.subscriptions set disabled_at = null, disabled_reason = null {row(n)}",
    "other types": lambda n: f"update pabal.subscriptions set event_types = '{{b.*,*a*}}' {row(n)}",
    "other service": lambda n: f"update pabal.subscriptions set service_name = 'minu_find' {row(n)}",
    "other mode": lambda n: f"update pabal.subscriptions set mode = 'rule' {row(n)}",
    "other id": lambda n: f"update pabal.subscriptions set id = gen_random_uuid() {row(n)}",
    "delete": lambda n: f"delete from pabal.subscriptions {row(n)}",
}
changes = st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 5))


def row(number: int) -> str:
    return f"where id = (select id from pabal.subscriptions order by created_at, id offset {number} limit 1)"


async def find_subscribers(owner: Connection, event_type: str, *, only_rules: bool) -> dict[str, bool]:
    rows = await owner.fetch("select * from pabal.matching_subscribers($1, $2)", event_type, only_rules)
    return {row["service_name"]: row["is_rule"] for row in rows}


@given(
    drafts=st.lists(subscriptions, max_size=6),
    changed=st.lists(changes, max_size=3),
    event_types=st.lists(types, min_size=1, max_size=8),
)
@example(
    drafts=[("minu_build", "pull", ["*a*", "*"]), ("hub", "rule", ["a*b", "*.b", "a_b"])],
    changed=[],
    event_types=["a.b", "abb", "a_b", "ab", "a"],
)
@trying(max_examples=120, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_index_finds_the_subscribers_that_comparing_every_pattern_finds(
    owner: Connection, drafts: list[Any], changed: list[tuple[str, int]], event_types: list[str]
) -> None:
    async with owner.transaction():
        await owner.execute("delete from pabal.subscriptions")
        await owner.executemany(
            "insert into pabal.subscriptions (service_name, mode, event_types) values ($1, $2, $3)", drafts
        )
        for change, number in changed:
            await owner.execute(CHANGES[change](number))
        rows = await owner.fetch(ALL_PATTERNS)

        for event_type in event_types:
            expected: dict[str, bool] = {}
            for service, mode, event_patterns in rows:
                if any(matches_event_pattern(event_type, pattern) for pattern in event_patterns):
                    expected[service] = expected.get(service, False) or mode == "rule"
            matching = await find_subscribers(owner, event_type, only_rules=False)
            rules = await find_subscribers(owner, event_type, only_rules=True)

            assert (event_type, matching) == (event_type, expected)
            assert rules == {service: True for service, is_rule in expected.items() if is_rule}


@pytest.mark.parametrize("target", [None, "minu_build"], ids=["broadcast", "targeted"])
@pytest.mark.parametrize(
    "pattern",
    ["other.n{}", "other.n{}.*", "*.n{}", "*n{}_x*", "o*n{}"],
    ids=["exact", "head", "tail", "middle", "both"],
)
async def test_a_publish_reads_no_subscription_of_another_type(
    hub: Hub, owner: Connection, pattern: str, target: str | None
) -> None:
    await owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) "
        "select 'minu_keep', 'pull', array_agg(replace($1, '{}', n::text)) from generate_series(1, 10000) n "
        "group by n / 50",
        pattern,
    )
    await owner.execute("analyze pabal.subscriptions, pabal.subscription_patterns")

    async with owner.transaction():
        before = await owner.fetchval(ROWS_READ)
        await owner.execute(
            "insert into public.event_queue (event_type, source_service, target_service) "
            "values ('order.paid', 'hub', $1)",
            target,
        )
        read = await owner.fetchval(ROWS_READ) - before

    assert read <= 8  # one row of each index range tells which kinds of pattern exist


@pytest.mark.parametrize("target", [None, "minu_build"], ids=["broadcast", "targeted"])
@pytest.mark.parametrize("pattern", ["order.*.x{}", "x{}.*.paid"], ids=["tail", "head"])
async def test_patterns_that_share_one_end_are_found_by_the_other(
    hub: Hub, owner: Connection, pattern: str, target: str | None
) -> None:
    """Ten thousand patterns that all begin or end like the published type, and differ at the other end."""
    await owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) "
        "select 'hub', 'rule', array[replace($1, '{}', n::text)] from generate_series(1000, 10999) n",
        pattern,
    )
    await owner.execute("analyze pabal.subscriptions, pabal.subscription_patterns")

    async with owner.transaction():
        before = await owner.fetchval(ROWS_READ)
        await owner.execute(
            "insert into public.event_queue (event_type, source_service, target_service) "
            "values ('order.eu.paid', 'minu_find', $1)",
            target,
        )
        read = await owner.fetchval(ROWS_READ) - before

    assert read <= 20  # the first ten patterns and one row of each index range


async def test_the_migration_spreads_patterns_that_share_an_anchor(owner: Connection) -> None:
    await owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) "
        "select 'minu_keep', 'pull', array['order.*.x' || n] from generate_series(1, 300) n"
    )
    await owner.execute("update pabal.subscription_patterns set anchor = '^order.'")
    await owner.execute((MIGRATIONS_DIR / "20260104030500_spread_pattern_anchors.sql").read_text("utf-8"))

    shared = "select count(*) from pabal.subscription_patterns where anchor = '^order.'"
    assert await owner.fetchval(shared) <= 20
    assert await find_subscribers(owner, "order.eu.x77", only_rules=False) == {"minu_keep": False}


async def test_a_change_of_rights_applies_to_subscriptions_that_exist(hub: Hub, owner: Connection) -> None:
    await owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) "
        "values ('minu_build', 'pull', '{*}'), ('minu_keep', 'pull', '{order.*}'), ('minu_frame', 'pull', '{*.paid}')"
    )
    await owner.execute("update public.services set may_subscribe = '{cart.*}' where name = 'minu_build'")
    await owner.execute("update public.services set is_active = false, disabled_at = now() where name = 'minu_frame'")

    async def receivers(event_type: str) -> list[str]:
        event = await publish_test_event(hub, event_type, None)
        rows = await owner.fetch("select target_service from public.event_queue where parent_id = $1 order by 1", event)
        return [target for (target,) in rows]

    assert await receivers("order.paid") == ["minu_keep"]
    assert await receivers("cart.paid") == ["minu_build"]
    assert await receivers("token.issued") == []  # of the hub, and none has the permission
