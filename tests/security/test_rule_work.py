"""The work of applying rules to one event is bounded, and never blocks the event loop, whatever a publisher sends."""

from typing import Any

import pytest

from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.hub import DatabaseUrls, Hub
from pabal.hub_workers import build_rules_handler
from pabal.notifications.rules.evaluate_rules import MAX_NOTIFICATIONS_PER_RULE, MAX_TEXT_PER_EVENT
from pabal.notifications.rules.payload_paths import MAX_STEPS_PER_EVENT, PayloadPathError, PayloadReader
from support.loop_time import measure_loop_time
from support.notifications import register_builtin_templates, sql
from support.rules import BUYER, MINUTE, add_test_rule
from support.subscriptions import load_event, publish_test_event

pytestmark = pytest.mark.anyio

MAX_SLICE = 0.05
COUNT = "select count(*) from notification.requests"


@pytest.fixture
async def hub(hub: Hub) -> Hub:
    return await register_builtin_templates(hub)


def nested(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


async def claim_one(hub: Hub) -> ClaimedEvent:
    async with hub.autocommit() as tx:
        [claimed] = await LANE.claim(tx, 1, MINUTE, "tester", EventClaimFilter("hub"))
    return claimed


NAMED_STEPS = [{"name": "Nitro"}] + [{"name": "x"}] * 60_000
USERS = [str(number) for number in range(2000)]
LONG_PATH = ".".join("a" * 120)

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "a number in the path of a variable": (
        {"recipients": ["users"], "variables": {"item": "steps.0.name"}},
        {"users": USERS, "steps": NAMED_STEPS},
        len(USERS),
        "",
    ),
    "a guild in a long list": (
        {"recipients": ["users"], "guild_path": "steps.name"},
        {"users": USERS, "steps": NAMED_STEPS},
        len(USERS),
        "",
    ),
    "a guild that is a large object": (
        {"recipients": ["users"], "guild_path": "guild"},
        {"users": USERS, "guild": {str(number): number for number in range(50_000)}},
        len(USERS),
        "",
    ),
    "an incident that is a large object": (
        {"recipients": ["users"], "incident_path": "attack"},
        {"users": USERS, "attack": {str(number): number for number in range(50_000)}},
        0,
        "rule paid: attack is an object",
    ),
    "recipients in very many empty lists": (
        {"recipients": ["groups.users"] * 5},
        {"groups": [{"users": []}] * 70_000},
        0,
        "",
    ),
    "more empty lists than the budget": (
        {"recipients": ["groups.users"] * 20},
        {"groups": [{"users": []}] * 70_000},
        0,
        f"rule paid: the rules for this event need more than {MAX_STEPS_PER_EVENT} steps into its payload",
    ),
    "a list of lists": ({"recipients": ["users"]}, {"users": [[]] * 300_000}, 0, "rule paid: users is a list of lists"),
    "long paths": (
        {"recipients": ["users"], "variables": {"item": LONG_PATH, "currency": LONG_PATH}},
        {"users": USERS, **nested(120, "Nitro")},
        len(USERS),
        "",
    ),
    "very long texts": (
        {"recipients": ["users"]},
        {"users": USERS, "item": "x" * 60_000},
        0,
        f"rule paid: the notifications for one event have more than {MAX_TEXT_PER_EVENT} characters",
    ),
    "long texts": ({"recipients": ["users"]}, {"users": USERS[:200], "item": "\u0301" * 20_000}, 200, ""),
    "as many recipients as allowed": (
        {"recipients": ["users"]},
        {"users": [*range(MAX_NOTIFICATIONS_PER_RULE)]},
        MAX_NOTIFICATIONS_PER_RULE,
        "",
    ),
    "one recipient too many": (
        {"recipients": ["users"]},
        {"users": [*range(MAX_NOTIFICATIONS_PER_RULE + 1)]},
        0,
        f"rule paid: more than {MAX_NOTIFICATIONS_PER_RULE} notifications for one event",
    ),
}


@pytest.mark.parametrize(("rule", "payload", "count", "error"), CASES.values(), ids=CASES)
async def test_no_payload_blocks_the_loop(
    hub: Hub, database_urls: DatabaseUrls, rule: dict[str, Any], payload: dict[str, Any], count: int, error: str
) -> None:
    await add_test_rule(hub, **rule)
    await publish_test_event(hub, "order.paid", payload=BUYER | payload)
    claimed, handler = await claim_one(hub), build_rules_handler(hub)

    async with measure_loop_time() as measured:
        await handler.handle_events([claimed])

    assert measured.longest < MAX_SLICE
    assert await sql(database_urls, COUNT) == count
    settled = await load_event(hub, claimed.id)
    assert (settled.status, settled.last_error or "") == ("failed" if error else "completed", error)


async def test_many_rules_for_one_event_do_not_block_the_loop(hub: Hub, database_urls: DatabaseUrls) -> None:
    for number in range(40):
        await add_test_rule(hub, name=f"rule {number}", recipients=["users", "groups.users"])
    groups = [{"users": []}] * 20_000
    await publish_test_event(hub, "order.paid", payload=BUYER | {"users": USERS[:50], "groups": groups})
    claimed, handler = await claim_one(hub), build_rules_handler(hub)

    async with measure_loop_time() as measured:
        await handler.handle_events([claimed])

    assert measured.longest < MAX_SLICE
    assert 0 < await sql(database_urls, COUNT) < 40 * 50
    assert f"more than {MAX_STEPS_PER_EVENT} steps" in ((await load_event(hub, claimed.id)).last_error or "")


@pytest.mark.parametrize(
    ("path", "value"),
    [("steps.0", 1), ("steps.2", 3), ("steps.00", None), ("steps.3", None), ("steps.0.x", None), ("0", "zero")],
)
def test_a_number_selects_an_element_of_a_list_or_a_member_of_an_object(path: str, value: object) -> None:
    reader = PayloadReader({"steps": [1, 2, 3], "0": "zero"})
    if value is None:
        with pytest.raises(PayloadPathError, match="is missing"):
            reader.find_value(path)
    else:
        assert reader.find_value(path) == value
