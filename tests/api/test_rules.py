"""The doors of rules, as whoever looks after the hub uses them."""

from typing import Any

import pytest

from pabal.hub import DatabaseUrls, Hub
from support.notification_api import Service
from support.notifications import registered, sql
from support.subscriptions import say

pytestmark = pytest.mark.anyio

RULES = "/v1/notification-rules"
RULE: dict[str, Any] = {
    "name": "paid",
    "event_pattern": "order.paid",
    "template_key": "payment.succeeded",
    "recipients": ["user.discord_id"],
    "channels": ["user_dm"],
}


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await registered(hub)


async def test_a_rule_is_added_shown_changed_and_removed(admin: Service) -> None:
    added = await admin.ask(
        "POST", RULES, 201, json=RULE | {"expires_after_seconds": 3600, "variables": {"item": "thing"}}
    )
    one = f"{RULES}/{added['id']}"

    assert {name: added[name] for name in RULE} == RULE
    assert (added["expires_after_seconds"], added["created_by"], added["is_active"]) == (3600, "admin", True)
    assert await admin.ask("GET", one) == added
    assert (await admin.ask("GET", RULES))["items"] == [added]

    change = {"is_active": False, "expires_after_seconds": None, "channels": ["dashboard_toast"]}
    changed = await admin.ask("PATCH", one, json=change)
    assert {name: changed[name] for name in change} == change
    assert changed["variables"] == {"item": "thing"}

    await admin.ask("DELETE", one, 204)
    for method in ("GET", "PATCH", "DELETE"):
        assert (await admin.ask(method, one, 404, **({"json": {}} if method == "PATCH" else {})))["code"] == "not_found"


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"name": ""}, "name"),
        ({"event_pattern": "a*"}, "event_pattern"),
        ({"template_key": "shop.gone"}, "template_key"),
        ({"recipients": []}, "recipients"),
        ({"recipients": ["a b"]}, "recipients[0]"),
        ({"channels": ["email"]}, "channels[0]"),
        ({"channels": ["guild_audit_channel"]}, "channels"),
        ({"variables": {"item": ""}}, "variables[...]"),
        ({"variables": {"shop": "x"}}, "variables.shop"),
        ({"guild_path": "a."}, "guild_path"),
        ({"incident_path": "."}, "incident_path"),
        ({"expires_after_seconds": 0}, "expires_after_seconds"),
        ({"is_active": 1}, "is_active"),
        ({"urgent": 1}, "urgent"),
    ],
)
async def test_a_rule_that_cannot_be_is_refused_by_its_field(admin: Service, said: dict[str, Any], field: str) -> None:
    assert [name for name, _ in await admin.mistakes(RULES, **(RULE | said))] == [field]

    kept = await admin.ask("POST", RULES, 201, json=RULE)
    assert [name for name, _ in await admin.mistakes(f"{RULES}/{kept['id']}", "PATCH", **said)] == [field]


async def test_a_rules_name_is_taken_once_and_rules_are_read_page_by_page(admin: Service) -> None:
    made = [(await admin.ask("POST", RULES, 201, json=RULE | {"name": f"r{number}"}))["id"] for number in range(3)]

    assert (await admin.ask("POST", RULES, 409, json=RULE | {"name": "r1"}))["code"] == "conflict"
    first = await admin.ask("GET", f"{RULES}?limit=2")
    rest = await admin.ask("GET", f"{RULES}?limit=2&cursor={first['cursor']}")
    assert [each["id"] for each in (*first["items"], *rest["items"])] == made


async def test_rules_are_for_who_looks_after_the_hub(
    shop: Service, admin: Service, hub: Hub, database_urls: DatabaseUrls
) -> None:
    assert (await shop.ask("POST", RULES, 403, json=RULE))["code"] == "insufficient_scope"
    await admin.ask("POST", RULES, 201, json=RULE)

    published = await say(hub, "order.paid", payload={})

    assert (
        await sql(database_urls, "select target_service from public.event_queue where parent_id = $1", published)
        == "hub"
    )
