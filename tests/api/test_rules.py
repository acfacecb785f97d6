"""The rules API, for administrators."""

from typing import Any

import pytest

from pabal.hub import DatabaseUrls, Hub
from support.notification_api import ApiService
from support.notifications import register_builtin_templates, sql
from support.subscriptions import publish_test_event

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
    return await register_builtin_templates(hub)


async def test_a_rule_is_added_shown_changed_and_removed(admin: ApiService) -> None:
    added = await admin.call(
        "POST", RULES, 201, json=RULE | {"expires_after_seconds": 3600, "variables": {"item": "thing"}}
    )
    path = f"{RULES}/{added['id']}"

    assert {name: added[name] for name in RULE} == RULE
    assert (added["expires_after_seconds"], added["created_by"], added["is_active"]) == (3600, "admin", True)
    assert await admin.call("GET", path) == added
    assert (await admin.call("GET", RULES))["items"] == [added]

    change = {"is_active": False, "expires_after_seconds": None, "channels": ["dashboard_toast"]}
    changed = await admin.call("PATCH", path, json=change)
    assert {name: changed[name] for name in change} == change
    assert changed["variables"] == {"item": "thing"}

    await admin.call("DELETE", path, 204)
    for method in ("GET", "PATCH", "DELETE"):
        assert (await admin.call(method, path, 404, **({"json": {}} if method == "PATCH" else {})))[
            "code"
        ] == "not_found"


@pytest.mark.parametrize(
    ("values", "field"),
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
async def test_invalid_rule_fields_are_reported(admin: ApiService, values: dict[str, Any], field: str) -> None:
    assert [name for name, _ in await admin.field_errors(RULES, **(RULE | values))] == [field]

    rule = await admin.call("POST", RULES, 201, json=RULE)
    assert [name for name, _ in await admin.field_errors(f"{RULES}/{rule['id']}", "PATCH", **values)] == [field]


async def test_rule_names_are_unique_and_rules_are_paginated(admin: ApiService) -> None:
    ids = [(await admin.call("POST", RULES, 201, json=RULE | {"name": f"r{number}"}))["id"] for number in range(3)]

    assert (await admin.call("POST", RULES, 409, json=RULE | {"name": "r1"}))["code"] == "conflict"
    first = await admin.call("GET", f"{RULES}?limit=2")
    second = await admin.call("GET", f"{RULES}?limit=2&cursor={first['cursor']}")
    assert [rule["id"] for rule in (*first["items"], *second["items"])] == ids


async def test_rules_require_admin(shop: ApiService, admin: ApiService, hub: Hub, database_urls: DatabaseUrls) -> None:
    assert (await shop.call("POST", RULES, 403, json=RULE))["code"] == "insufficient_scope"
    await admin.call("POST", RULES, 201, json=RULE)

    published = await publish_test_event(hub, "order.paid", payload={})

    assert (
        await sql(database_urls, "select target_service from public.event_queue where parent_id = $1", published)
        == "hub"
    )
