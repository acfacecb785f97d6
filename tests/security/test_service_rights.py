"""What one service may do to others: the hub's event types, and the types a service may publish and receive."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pabal
from pabal.core.event_types import HUB_EVENT_TYPES, matches_event_pattern, patterns_overlap
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from pabal.tokens import revoke
from pabal.tokens.services import ServiceRights, set_service_rights
from support.clusters import Connection
from support.event_api import Service, connect_service
from support.oauth_client import TESTER, bearer, register_oauth_service
from support.wait import wait_until

pytestmark = pytest.mark.anyio

SOURCES = Path(pabal.__file__).parent
HUB_PUBLISHES = re.compile(
    r"pabal\.(?:emit_events?\(|publish\(\s*'hub',|relay_event_outbox \(event_type, payload\)\s*(?:select|values \())"
    r"\s*'([a-z0-9_.]+)'"
)
SUBSCRIBE = "insert into pabal.subscriptions (service_name, mode, event_types) values ($1, $2, $3)"
DELIVERIES = """
select target_service, event_type from public.event_queue where parent_id is not null order by 1, 2
"""


async def set_rights(
    hub: Hub, name: str, *permissions: str, may_publish: Sequence[str] = (), may_subscribe: Sequence[str] = ()
) -> None:
    async with hub.transaction() as tx:
        await set_service_rights(tx, name, ServiceRights(permissions, may_publish, may_subscribe), TESTER)


async def subscribe(service: Service, *event_types: str, status: int = 201) -> Any:
    response = await service.web.post(
        "/v1/subscriptions", headers=service.headers, json={"event_types": [*event_types]}
    )
    assert response.status_code == status, response.text
    return response.json()


async def deliveries(owner: Connection) -> list[tuple[str, str]]:
    return [tuple(row) for row in await owner.fetch(DELIVERIES)]


class TestHubEvents:
    async def test_the_code_and_the_database_reserve_the_same_types(self, owner: Connection) -> None:
        assert {*await owner.fetchval("select pabal.hub_event_types()")} == HUB_EVENT_TYPES

    def test_every_type_that_the_hub_publishes_is_reserved(self) -> None:
        statements = [path.read_text("utf-8") for path in SOURCES.rglob("*.sql")]
        published = {event_type for sql in statements for event_type in HUB_PUBLISHES.findall(sql)}
        reasons = (revoke.REVOKED_ON_REQUEST, revoke.REFRESH_TOKEN_REUSED)
        published |= {reason.event_type for reason in reasons if reason.event_type}
        test_type = "pabal.test"  # pushed directly, without a row

        assert published | {test_type} == HUB_EVENT_TYPES

    async def test_no_service_publishes_them(self, hub: Hub, web: httpx2.AsyncClient, owner: Connection) -> None:
        shop = await connect_service(hub, web, "shop", "write", "hub:events", "hub:admin")
        before = await owner.fetchval("select count(*) from public.event_queue")

        for event_type in HUB_EVENT_TYPES:
            refused = await shop.publish(event_type, status=403)
            assert refused["detail"] == f"event_type: only the hub publishes {event_type}"
        results = await shop.batch({"event_type": "security.token_reuse"}, {"event_type": "security.token_reuses"})

        assert [result["status"] for result in results] == [403, 202]
        assert await owner.fetchval("select count(*) from public.event_queue") == before + 1

    async def test_a_subscription_to_everything_does_not_receive_them(
        self, hub: Hub, web: httpx2.AsyncClient, owner: Connection
    ) -> None:
        shop, watcher = (
            await connect_service(hub, web, "shop"),
            await connect_service(hub, web, "watcher", "write", "hub:events"),
        )
        await subscribe(shop, "*")
        await subscribe(watcher, "*")

        seller = await connect_service(hub, web, "seller")  # the hub publishes token.issued
        await seller.publish("order.paid")
        await owner.execute("select pabal.emit_events('relay.message.received', array['{}'::jsonb])")

        assert await deliveries(owner) == [
            ("shop", "order.paid"),
            ("watcher", "order.paid"),
            ("watcher", "relay.message.received"),
            ("watcher", "token.issued"),
        ]

    async def test_the_permission_applies_to_subscriptions_that_exist(
        self, hub: Hub, web: httpx2.AsyncClient, owner: Connection
    ) -> None:
        await register_oauth_service(hub, web, "shop", "write")
        await owner.execute(SUBSCRIBE, "shop", "pull", ["token.issued"])

        await connect_service(hub, web, "first")
        assert await deliveries(owner) == []
        await set_rights(hub, "shop", "write", "hub:events")
        await connect_service(hub, web, "second")
        assert await deliveries(owner) == [("shop", "token.issued")]
        await set_rights(hub, "shop", "write")
        await connect_service(hub, web, "third")
        assert await deliveries(owner) == [("shop", "token.issued")]

    async def test_a_rule_of_the_hub_receives_them(self, hub: Hub, web: httpx2.AsyncClient, owner: Connection) -> None:
        await owner.execute(SUBSCRIBE, "hub", "rule", ["token.*"])

        await connect_service(hub, web, "seller")

        assert await deliveries(owner) == [("hub", "token.issued")]

    async def test_without_a_receiver_no_row_is_written(
        self, hub: Hub, web: httpx2.AsyncClient, owner: Connection
    ) -> None:
        await subscribe(await connect_service(hub, web, "shop"), "*")

        assert await owner.fetchval("select pabal.emit_events('relay.message.received', array['{}'::jsonb])") == 0

    async def test_subscribing_to_one_of_them_names_the_permission(self, hub: Hub, web: httpx2.AsyncClient) -> None:
        shop = await connect_service(hub, web, "shop")
        subscription = await subscribe(shop, "token.*")

        refused = await subscribe(shop, "order.paid", "token.issued", status=403)
        patched = await web.patch(
            f"/v1/subscriptions/{subscription['id']}", headers=shop.headers, json={"event_types": ["token.issued"]}
        )

        assert refused["detail"] == "event_types: token.issued requires the permission hub:events"
        assert (patched.status_code, patched.json()["detail"]) == (403, refused["detail"])


class TestPatterns:
    async def test_a_service_publishes_only_what_it_may(
        self, hub: Hub, web: httpx2.AsyncClient, owner: Connection
    ) -> None:
        shop = await connect_service(hub, web, "shop")
        await shop.publish("user.deleted")  # the token is verified and cached
        await set_rights(hub, "shop", "write", may_publish=["order.*", "refund.made"])

        await shop.publish("order.paid")
        await shop.publish("refund.made")
        refused = await shop.publish("user.deleted", status=403)
        results = await shop.batch({"event_type": "order.seen"}, {"event_type": "orders.seen"})
        await set_rights(hub, "shop", "write", may_publish=["*"])
        await shop.publish("user.deleted")

        assert refused["detail"] == "event_type: shop may not publish user.deleted"
        assert [result["status"] for result in results] == [202, 403]
        assert await owner.fetchval("select may_publish from public.services where name = 'shop'") is None

    async def test_another_process_applies_a_change_at_once(
        self, hub: Hub, database_urls: DatabaseUrls, settings: Settings, web: httpx2.AsyncClient
    ) -> None:
        shop = await connect_service(hub, web, "shop")
        await shop.publish("user.deleted")
        async with open_hub(settings, database_urls) as other_hub:
            await set_rights(other_hub, "shop", "write", may_publish=["order.*"])

        token = shop.headers["authorization"].removeprefix("Bearer ")

        async def is_limited() -> bool:
            return (await hub.token_verifier.verify(token)).may_publish == ("order.*",)

        await wait_until(is_limited, within=4.0)  # the cache alone would keep the rights for five seconds
        await shop.publish("user.deleted", status=403)

    async def test_a_service_receives_only_what_it_may(
        self, hub: Hub, web: httpx2.AsyncClient, owner: Connection
    ) -> None:
        shop, seller = await connect_service(hub, web, "shop"), await connect_service(hub, web, "seller")
        await subscribe(shop, "*")

        await seller.publish("order.paid")
        await set_rights(hub, "shop", "write", may_subscribe=["billing.*"])
        await seller.publish("order.lost")
        await seller.publish("billing.sent")

        assert await deliveries(owner) == [("shop", "billing.sent"), ("shop", "order.paid")]

    async def test_a_type_that_can_never_arrive_is_refused(self, hub: Hub, web: httpx2.AsyncClient) -> None:
        shop = await connect_service(hub, web, "shop")
        await set_rights(hub, "shop", "write", may_subscribe=["billing.*"])

        for event_type in ("order.paid", "order.*", "bill.*"):
            refused = await subscribe(shop, event_type, status=403)
            assert refused["detail"] == f"event_types: shop may not subscribe to {event_type}"
        for event_type in ("*", "billing.sent", "billing.*", "b*"):
            await subscribe(shop, event_type)

    async def test_the_rights_of_the_subscribed_service_count(self, hub: Hub, web: httpx2.AsyncClient) -> None:
        """An administrator who subscribes another service gives it no right that it does not have."""
        admin = await connect_service(hub, web, "admin", "write", "hub:events", "hub:admin")
        await connect_service(hub, web, "shop")

        response = await web.post(
            "/v1/subscriptions",
            headers=admin.headers,
            json={"event_types": ["token.issued"], "service_name": "shop"},
        )

        assert (response.status_code, response.json()["code"]) == (403, "forbidden")

    @given(
        event_type=st.text("ab.", min_size=1, max_size=8),
        pattern=st.text("ab.*", min_size=1, max_size=8),
        other=st.text("ab.*", min_size=1, max_size=8),
    )
    def test_a_star_stands_for_any_characters(self, event_type: str, pattern: str, other: str) -> None:
        expression = re.compile(".*".join(map(re.escape, pattern.split("*"))))

        matches = matches_event_pattern(event_type, pattern)

        assert matches == (expression.fullmatch(event_type) is not None)
        if matches and matches_event_pattern(event_type, other):
            assert patterns_overlap(pattern, other)

    async def test_the_code_matches_as_the_database_does(self, owner: Connection) -> None:
        types = ["order.paid", "order_paid", "orderXpaid", "order", "order.paid.twice", "a.b", "aab", "o%r", "o\\r"]
        patterns = ["*", "order.*", "order_*", "*paid", "*.*", "o*d*", "order", "*a*a*", "**", "a*b", "_rder.paid"]

        rows = await owner.fetch(
            """
            select t.event_type, p.pattern, t.event_type like any (pabal.like_patterns(array[p.pattern])) as matches
            from unnest($1::text[]) as t (event_type) cross join unnest($2::text[]) as p (pattern)
            """,
            types,
            patterns,
        )

        assert len(rows) == len(types) * len(patterns)
        for row in rows:
            assert matches_event_pattern(row["event_type"], row["pattern"]) == row["matches"], dict(row)


class TestPermissions:
    async def test_a_permission_that_a_service_lost_is_lost_for_its_tokens(
        self, hub: Hub, web: httpx2.AsyncClient
    ) -> None:
        shop = await register_oauth_service(hub, web, "shop", "write", "people:token")
        pair = await shop.tokens()
        header = bearer(pair["access_token"])
        assert (await web.post("/v1/people/100/token", headers=header)).status_code == 201

        await set_rights(hub, "shop", "write")

        refused = await web.post("/v1/people/100/token", headers=header)
        assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_scope")
        assert (await web.get("/v1/queue/events", headers=header)).status_code == 200
        assert "people:token" not in (await shop.introspect(pair["access_token"]))["scope"]

    async def test_the_groups_contain_none_of_the_new_permissions(
        self, hub: Hub, web: httpx2.AsyncClient, owner: Connection
    ) -> None:
        shop = await connect_service(hub, web, "shop", "read", "write")

        assert (await web.post("/v1/people/100/token", headers=shop.headers)).status_code == 403
        assert (await web.get("/v1/preferences/100", headers=shop.headers)).status_code == 403
        assert not await owner.fetchval("select receives_hub_events from public.services where name = 'shop'")

    async def test_a_change_is_recorded(self, hub: Hub, web: httpx2.AsyncClient, owner: Connection) -> None:
        await register_oauth_service(hub, web, "shop", "write")
        await set_rights(hub, "shop", "read", may_subscribe=["order.*", "order.*"])

        details = await owner.fetchval(
            "select details::text from pabal.audit_log where action = 'service.rights_changed' and subject = 'shop'"
        )
        assert details == '{"permissions": ["read"], "may_subscribe": ["order.*"]}'
