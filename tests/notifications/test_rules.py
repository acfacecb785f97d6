"""Rules are added, changed, turned off and removed; the hub's subscriptions follow."""

from datetime import timedelta
from typing import Any

import pytest

from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.events.subscriptions import remove_subscription
from pabal.hub import DatabaseUrls, Hub
from pabal.notifications.rules.rules import find_rule, list_rules, remove_rule, update_rule
from pabal.notifications.templates.catalogue import TemplateCatalogue
from support.notifications import TESTER, list_all_notifications, register_builtin_templates, sql
from support.rules import BUYER, add_test_rule, publish_and_settle
from support.subscriptions import ALL_ACCESS, publish_test_event

pytestmark = pytest.mark.anyio


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await register_builtin_templates(hub)


async def is_delivered_to_hub(hub: Hub, database_urls: DatabaseUrls) -> bool:
    published = await publish_test_event(hub, "order.paid", payload=BUYER)
    return await sql(database_urls, "select exists (select from public.event_queue where parent_id = $1)", published)


async def test_the_hub_is_subscribed_only_to_active_rules(hub: Hub, database_urls: DatabaseUrls) -> None:
    assert not await is_delivered_to_hub(hub, database_urls)
    rule = await add_test_rule(hub)
    assert await is_delivered_to_hub(hub, database_urls)

    async with hub.transaction() as tx:
        await update_rule(tx, hub.templates, rule.id, {"is_active": False}, TESTER)
    assert not await is_delivered_to_hub(hub, database_urls)

    async with hub.transaction() as tx:
        await update_rule(tx, hub.templates, rule.id, {"is_active": True, "event_pattern": "order.*"}, TESTER)
    assert await is_delivered_to_hub(hub, database_urls)

    async with hub.transaction() as tx:
        await remove_rule(tx, rule.id, TESTER)
    assert not await is_delivered_to_hub(hub, database_urls)
    assert await sql(database_urls, "select count(*) from pabal.subscriptions") == 0


async def test_a_rule_inserted_with_sql_works(hub: Hub, database_urls: DatabaseUrls) -> None:
    await sql(
        database_urls,
        "insert into notification.rules (name, event_pattern, template_key, recipients, channels) "
        "values ('r', 'order.*', 'payment.succeeded', '[\"user.discord_id\"]', '{dashboard_toast}')",
    )

    await publish_and_settle(hub, database_urls)

    assert [notification.recipient_type for notification in await list_all_notifications(hub)] == ["dashboard_toast"]


async def test_a_rules_subscription_is_removed_only_with_the_rule(hub: Hub) -> None:
    rule = await add_test_rule(hub)

    with pytest.raises(Conflict, match="belongs to a notification rule"):
        async with hub.transaction() as tx:
            await remove_subscription(tx, rule.id, ALL_ACCESS, TESTER)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"event_pattern": "Order Paid"}, "event_pattern"),
        ({"event_pattern": "a*.b"}, "event_pattern"),
        ({"event_pattern": "a" * 129}, "event_pattern"),
        ({"template_key": "shop.gone"}, "template_key"),
        ({"recipients": []}, "recipients"),
        ({"recipients": ["user..id"]}, "recipients[0]"),
        ({"channels": []}, "channels"),
        ({"channels": ["user_dm", "user_dm"]}, "channels"),
        ({"channels": ["guild_audit_channel"]}, "channels"),
        ({"channels": ["user_dm", "guild_audit_channel"], "template_key": "antinuke.detected"}, "channels"),
        ({"variables": {"item": "$.x"}}, "variables.item"),
        ({"variables": {"shop": "shop"}}, "variables.shop"),
        ({"guild_path": "a b"}, "guild_path"),
        ({"incident_path": ""}, "incident_path"),
        ({"expires_after": timedelta()}, "expires_after"),
        ({"expires_after": timedelta(days=366)}, "expires_after"),
        ({"expires_after": timedelta.max}, "expires_after"),
    ],
)
async def test_invalid_rule_fields_are_reported(hub: Hub, values: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as error:
        await add_test_rule(hub, **values)

    assert [field_error.field for field_error in error.value.errors] == [field]
    async with hub.autocommit() as tx:
        assert await list_rules(tx) == []


async def test_a_change_must_leave_a_valid_rule(hub: Hub) -> None:
    rule = await add_test_rule(hub, variables={"item": "thing"})

    with pytest.raises(Invalid, match=r"variables\.item: is not a variable of marketing\.news"):
        async with hub.transaction() as tx:
            await update_rule(tx, hub.templates, rule.id, {"template_key": "marketing.news"}, TESTER)
    async with hub.transaction() as tx:
        changes = {"template_key": "marketing.news", "variables": {}}
        changed = await update_rule(tx, hub.templates, rule.id, changes, TESTER)

    assert (changed.template_key, changed.variables, changed.created_by) == ("marketing.news", {}, "tester")


async def test_a_rule_without_its_template_can_only_be_turned_off(hub: Hub) -> None:
    rule = await add_test_rule(hub)
    other_templates = TemplateCatalogue(
        {template.key: template for template in hub.templates.all() if template.key != rule.template_key}
    )

    for changes in ({"is_active": True}, {"name": "other"}, {"is_active": False, "name": "other"}):
        with pytest.raises(Invalid, match="template_key: no such template"):
            async with hub.transaction() as tx:
                await update_rule(tx, other_templates, rule.id, changes, TESTER)
    async with hub.transaction() as tx:
        changed = await update_rule(tx, other_templates, rule.id, {"is_active": False}, TESTER)

    assert not changed.is_active


async def test_rule_names_are_unique(hub: Hub) -> None:
    await add_test_rule(hub)
    other = await add_test_rule(hub, name="other")

    with pytest.raises(Conflict, match="paid"):
        await add_test_rule(hub)
    with pytest.raises(Conflict, match="paid"):
        async with hub.transaction() as tx:
            await update_rule(tx, hub.templates, other.id, {"name": "paid"}, TESTER)


async def test_rule_changes_are_audited(hub: Hub, database_urls: DatabaseUrls) -> None:
    rule = await add_test_rule(hub)
    async with hub.transaction() as tx:
        await update_rule(tx, hub.templates, rule.id, {"is_active": False}, TESTER)
        await remove_rule(tx, rule.id, TESTER)

    actions = await sql(
        database_urls, "select array_agg(action order by id) from pabal.audit_log where subject = $1", str(rule.id)
    )
    assert actions == ["rule.added", "rule.changed", "rule.removed"]
    async with hub.autocommit() as tx:
        with pytest.raises(NotFound):
            await find_rule(tx, rule.id)
