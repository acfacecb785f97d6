"""Notifications, dead letters and tokens with both clients."""

from uuid import UUID, uuid4

import httpx2
import pytest

from client.connections import Connect, HubAddress
from pabal.hub import Hub
from pabal_client import ConflictError, NotFoundError, PermissionDeniedError, ValidationFailedError
from support.notifications import PAID, register_builtin_templates
from support.oauth_client import register_oauth_service

pytestmark = pytest.mark.anyio

PERSON = str(uuid4())


@pytest.fixture
async def mailer(hub: Hub, web: httpx2.AsyncClient) -> HubAddress:
    await register_builtin_templates(hub)
    permissions = ("notifications:send", "tokens:introspect", "hub:admin")
    service = await register_oauth_service(hub, web, "mailer", *permissions)
    return HubAddress(str(web.base_url), service.name, service.secret)


async def test_a_notification_is_requested_listed_and_cancelled(connect: Connect, mailer: HubAddress) -> None:
    async with connect(mailer) as client:
        first = await client.notify("dashboard_toast", PERSON, "payment.succeeded", PAID, dedupe_key="order-7")
        again = await client.notify("dashboard_toast", PERSON, "payment.succeeded", PAID, dedupe_key="order-7")
        page = await client.list_notifications(recipient=PERSON, limit=1)
        before = await client.get_notification(first.id)
        await client.cancel_notification(first.id)
        after = await client.get_notification(first.id)
        with pytest.raises(ConflictError):
            await client.cancel_notification(first.id)

    assert again.id == first.id
    assert first.state == before["state"] == "pending"
    assert (after["state"], after["reason"]) == ("suppressed", "cancelled")
    assert [item["id"] for item in page.items] == [str(first.id)]


async def test_an_invalid_notification_fails_alone(connect: Connect, mailer: HubAddress) -> None:
    valid = {
        "recipient_type": "dashboard_toast",
        "recipient_id": PERSON,
        "template_key": "payment.succeeded",
        "payload": PAID,
    }
    async with connect(mailer) as client:
        items = await client.notify_many([valid, valid | {"template_key": "no.such"}, *[valid] * 510])
        nothing = await client.notify_many([])
        with pytest.raises(ValidationFailedError):
            await client.notify("dashboard_toast", PERSON, "no.such")
        with pytest.raises(TypeError, match="dedupe_keys"):
            await client.notify("dashboard_toast", PERSON, "payment.succeeded", PAID, dedupe_keys="order-7")

    assert [number for number, item in enumerate(items) if item.id is None] == [1]
    assert isinstance(items[1].error, ValidationFailedError)
    assert len({item.id for item in items}) == 512
    assert nothing == []


async def test_a_dead_letter_is_listed_and_replayed(connect: Connect, shop: HubAddress, billing: HubAddress) -> None:
    async with connect(shop) as seller, connect(billing) as payer:
        for number in range(3):
            await seller.publish("order.placed", {"n": number}, target="billing")
        receipts = [event.receipt for event in await payer.claim()]
        await payer.nack(*receipts, error="no money", outcome="dead")
        page = await payer.list_dead_letters(type="order.*", target="billing", limit=2)
        rest = await payer.list_dead_letters(type="order.*", target="billing", limit=2, cursor=page.cursor)
        [letter, *_] = page.items
        detail = await payer.get_dead_letter(letter["id"])
        event = await payer.replay_dead_letter(UUID(letter["id"]))
        with pytest.raises(ConflictError):
            await payer.replay_dead_letter(letter["id"])
        with pytest.raises(PermissionDeniedError):
            await payer.resolve_dead_letter(rest.items[0]["id"], "refunded")
        replayed = await payer.replay_dead_letters(type="order.*", target="billing")
        none_left = await payer.list_dead_letters()
        listed = await payer.list_events(status="pending", target="billing")

    assert len(page.items) + len(rest.items) == 3
    assert rest.cursor is None
    assert detail["original_payload"]["n"] in {0, 1, 2}
    assert replayed == 2
    assert none_left.items == []
    assert str(event) in {item["id"] for item in listed.items}
    assert len(listed.items) == 3


async def test_an_administrator_resolves_a_dead_letter(
    connect: Connect, shop: HubAddress, billing: HubAddress, mailer: HubAddress
) -> None:
    async with connect(shop) as seller, connect(billing) as payer, connect(mailer) as admin:
        await seller.publish("order.placed", target="billing")
        [event] = await payer.claim()
        await payer.nack(event.receipt, error="no money", outcome="dead")
        [letter] = (await admin.list_dead_letters()).items
        resolved = await admin.resolve_dead_letter(letter["id"], "refunded by hand")
        with pytest.raises(NotFoundError):
            await admin.get_dead_letter(uuid4())

    assert resolved["id"] == letter["id"]


async def test_an_access_token_is_introspected_and_revoked(
    connect: Connect, shop: HubAddress, mailer: HubAddress
) -> None:
    async with connect(shop) as seller, connect(mailer) as inspector:
        token = await seller.access_token()
        same = await seller.access_token()
        active = await inspector.introspect(token)
        await seller.revoke(token)
        ended = await inspector.introspect(token)
        await seller.publish("order.placed")  # renews the token
        renewed = await seller.access_token()

    assert token == same
    assert (active["active"], active["client_id"]) == (True, "shop")
    assert ended == {"active": False}
    assert renewed != token
