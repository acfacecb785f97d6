"""Subscriptions: access, limits, changes, and how their secrets are stored."""

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.tx import Tx
from pabal.events.events import EventAccess
from pabal.events.subscriptions import (
    MAX_SUBSCRIPTIONS,
    SECRET_OVERLAP,
    Subscription,
    SubscriptionDraft,
    SubscriptionPatch,
    add_subscription,
    disable_subscription,
    find_subscription,
    list_subscriptions,
    new_webhook_secret,
    pause_subscription,
    previous_webhook_secret_location,
    remove_subscription,
    resume_subscription,
    rotate_subscription_secret,
    update_subscription,
    webhook_secret_location,
)
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.envelope import decrypt_envelope
from pabal.keys.key import KeySet
from pabal.keys.keyring import KeyRing
from support.clusters import open_connection
from support.subscriptions import ALL_ACCESS, TESTER, reload_subscription, subscribe

pytestmark = pytest.mark.anyio

URL = "https://hook.example.org/in?key=s3cret"
BUILD, KEEP = EventAccess("minu_build"), EventAccess("minu_keep")
Action = Callable[[Tx, Subscription, EventAccess], Awaitable[Any]]


def actions(hub: Hub) -> dict[str, Action]:
    """All actions on a subscription."""
    return {
        "find": lambda tx, target, access: find_subscription(tx, target.id, access),
        "change": lambda tx, target, access: update_subscription(
            tx, target.id, access, SubscriptionPatch(timeout_seconds=7), TESTER
        ),
        "pause": lambda tx, target, access: pause_subscription(tx, target.id, access, TESTER),
        "resume": lambda tx, target, access: resume_subscription(tx, target.id, access, TESTER),
        "rotate": lambda tx, target, access: rotate_subscription_secret(tx, hub.key_ring, target.id, access, TESTER),
        "remove": lambda tx, target, access: remove_subscription(tx, target.id, access, TESTER),
    }


async def row_of(database_urls: DatabaseUrls, subscription: Subscription) -> dict[str, Any]:
    async with open_connection(database_urls.main) as conn:
        row = await conn.fetchrow("select * from pabal.subscriptions where id = $1", subscription.id)
    assert row is not None
    return dict(row)


async def audit_entries(database_urls: DatabaseUrls, subscription: Subscription) -> list[tuple[str, str]]:
    async with open_connection(database_urls.main) as conn:
        rows = await conn.fetch(
            "select action, details::text from pabal.audit_log where subject = $1 order by id", str(subscription.id)
        )
    return [(row["action"], row["details"]) for row in rows]


async def test_a_subscription_with_a_url_is_push_and_without_one_pull(hub: Hub, database_urls: DatabaseUrls) -> None:
    pushed, secret = await subscribe(hub, "minu_build", "order.*", "cart.filled", url=URL, within=7)
    pulled, no_secret = await subscribe(hub, "minu_build", "*")

    assert (pushed.mode, pushed.url, pushed.timeout_seconds) == ("push", URL, 7)
    assert (pulled.mode, pulled.url, no_secret) == ("pull", None, "")
    assert [*pushed.event_types] == ["order.*", "cart.filled"]
    assert len(b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    row_now = await row_of(database_urls, pushed)
    assert row_now["patterns"] == ["order.%", "cart.filled"]
    assert secret.removeprefix("whsec_") not in str(row_now)
    assert decrypt_envelope(hub.key_ring, row_now["secret"], webhook_secret_location(pushed.id)) == secret
    for hidden in (secret, "s3cret"):
        assert hidden not in repr(pushed) + repr(SubscriptionDraft("minu_build", ["*"], URL)) + repr(
            SubscriptionPatch(url=URL)
        )


async def test_every_change_is_audited_without_the_url(hub: Hub, database_urls: DatabaseUrls) -> None:
    added, _ = await subscribe(hub, "minu_build", "order.*", url=URL)
    for name, run_action in actions(hub).items():
        async with hub.transaction() as tx:
            await run_action(tx, added, BUILD)
            if name == "pause":
                await run_action(tx, added, BUILD)  # pausing again changes nothing

    entries = await audit_entries(database_urls, added)
    expected = ("added", "changed", "paused", "resumed", "secret_rotated", "removed")
    assert [kind for kind, _ in entries] == [f"subscription.{suffix}" for suffix in expected]
    assert not any("example" in details for _, details in entries)


async def test_a_subscription_of_another_service_is_found_only_by_an_admin(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    added, _ = await subscribe(hub, "minu_build", "order.*", url=URL)
    for run_action in actions(hub).values():
        with pytest.raises(NotFound, match=str(added.id)):
            async with hub.transaction() as tx:
                await run_action(tx, added, KEEP)
    assert await reload_subscription(hub, added) == added

    async with hub.autocommit() as tx:
        assert await list_subscriptions(tx, KEEP) == []
        assert await list_subscriptions(tx, KEEP, service="minu_build") == []
        assert await list_subscriptions(tx, BUILD) == [added]
        assert await list_subscriptions(tx, ALL_ACCESS, service="minu_build") == [added]
        assert await list_subscriptions(tx, ALL_ACCESS, service="minu_keep") == []
    for run_action in actions(hub).values():
        async with hub.transaction() as tx:
            await run_action(tx, added, ALL_ACCESS)
    with pytest.raises(NotFound):
        await reload_subscription(hub, added)


async def test_an_update_keeps_omitted_fields(hub: Hub) -> None:
    added, _ = await subscribe(hub, "minu_build", "order.*", url=URL)

    async def change(**to: Any) -> Subscription:
        async with hub.transaction() as tx:
            return await update_subscription(tx, added.id, BUILD, SubscriptionPatch(**to), TESTER)

    described = await change(set_description=True, description="bills")
    with_timeout = await change(timeout_seconds=3)
    changed = await change(url="https://other.example.org/", event_types=["cart.*"])
    plain = await change(set_description=True)

    assert (described.description, described.url, described.timeout_seconds) == ("bills", URL, 15)
    assert (with_timeout.description, with_timeout.timeout_seconds, [*with_timeout.event_types]) == (
        "bills",
        3,
        ["order.*"],
    )
    assert (changed.url, [*changed.event_types], changed.timeout_seconds) == (
        "https://other.example.org/",
        ["cart.*"],
        3,
    )
    assert (plain.description, plain.url) == (None, "https://other.example.org/")


async def test_a_new_url_resets_the_breaker(hub: Hub, database_urls: DatabaseUrls) -> None:
    added, _ = await subscribe(hub, "minu_build", "order.*", url=URL)
    async with open_connection(database_urls.main) as conn:
        await conn.execute("update pabal.subscriptions set failures = 7, open_until = now() + interval '1 hour'")

    async with hub.transaction() as tx:
        same = await update_subscription(tx, added.id, BUILD, SubscriptionPatch(url=URL), TESTER)
        other = await update_subscription(tx, added.id, BUILD, SubscriptionPatch(url=f"{URL}2"), TESTER)

    assert (same.failures, same.open_until is None) == (7, False)
    assert (other.failures, other.open_until) == (0, None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pause", "A pull subscription cannot be paused: stop pulling instead"),
        ("resume", "A pull subscription cannot be resumed: pull instead"),
        ("rotate", "A pull subscription has no secret"),
    ],
)
async def test_push_actions_on_a_pull_subscription_are_refused(hub: Hub, name: str, expected: str) -> None:
    pulled, _ = await subscribe(hub, "minu_build", "order.*")
    with pytest.raises(Conflict, match=expected):
        async with hub.transaction() as tx:
            await actions(hub)[name](tx, pulled, BUILD)
    with pytest.raises(Conflict, match="url: a pull subscription has no URL"):
        async with hub.transaction() as tx:
            await update_subscription(tx, pulled.id, BUILD, SubscriptionPatch(url=URL), TESTER)


async def insert_subscription(hub: Hub, database_urls: DatabaseUrls, mode: str) -> Subscription:
    async with open_connection(database_urls.main) as conn:
        await conn.execute(
            "insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_build', $1, '{order.*}')",
            mode,
        )
    async with hub.autocommit() as tx:
        [created] = await list_subscriptions(tx, BUILD)
    return created


async def test_a_handler_subscription_can_be_paused_resumed_and_removed_but_not_updated(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    created = await insert_subscription(hub, database_urls, "handler")
    with pytest.raises(Conflict, match="The handlers of a worker define this subscription"):
        async with hub.transaction() as tx:
            await update_subscription(tx, created.id, BUILD, SubscriptionPatch(description="mine"), TESTER)
    async with hub.transaction() as tx:
        assert (await pause_subscription(tx, created.id, BUILD, TESTER)).paused_at is not None
        assert (await resume_subscription(tx, created.id, BUILD, TESTER)).paused_at is None
        await remove_subscription(tx, created.id, BUILD, TESTER)
        assert await list_subscriptions(tx, BUILD) == []


async def test_a_subscription_of_a_rule_can_be_read_but_not_changed(hub: Hub, database_urls: DatabaseUrls) -> None:
    created = await insert_subscription(hub, database_urls, "rule")
    for name, run_action in actions(hub).items():
        if name != "find":
            with pytest.raises(Conflict, match="belongs to a notification rule"):
                async with hub.transaction() as tx:
                    await run_action(tx, created, ALL_ACCESS)
    assert await reload_subscription(hub, created) == created


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (SubscriptionDraft("minu_build", []), "event_types"),
        (SubscriptionDraft("minu_build", ["Order.Paid"]), "event_types"),
        (SubscriptionDraft("minu_build", ["a.b"] * 51), "event_types"),
        (SubscriptionDraft("minu_build", ["*"], f"https://example.org/{'x' * 2048}"), "url"),
        (SubscriptionDraft("minu_build", ["*"], URL, timeout_seconds=61), "timeout_seconds"),
    ],
)
async def test_an_invalid_field_is_named(hub: Hub, draft: SubscriptionDraft, field: str) -> None:
    with pytest.raises(Invalid) as invalid:
        async with hub.transaction() as tx:
            await add_subscription(tx, hub.key_ring, draft, TESTER)

    assert [error.field for error in invalid.value.errors] == [field]


async def test_an_unknown_service_or_subscription_is_not_found(hub: Hub) -> None:
    with pytest.raises(NotFound, match="No such service: nobody"):
        await subscribe(hub, "nobody", "*")
    with pytest.raises(NotFound):
        async with hub.autocommit() as tx:
            await find_subscription(tx, new_id(), ALL_ACCESS)


async def test_concurrent_adds_respect_the_limit_per_service(hub: Hub, database_urls: DatabaseUrls) -> None:
    for _ in range(MAX_SUBSCRIPTIONS - 5):
        await subscribe(hub, "minu_build", "order.*")

    results = await asyncio.gather(*(subscribe(hub, "minu_build", "*") for _ in range(10)), return_exceptions=True)

    assert sum(isinstance(result, Conflict) for result in results) == 5
    await subscribe(hub, "minu_keep", "order.*")
    async with open_connection(database_urls.main) as conn:
        counts = await conn.fetch("select service_name, count(*) from pabal.subscriptions group by 1 order by 1")
    assert [tuple(row) for row in counts] == [("minu_build", MAX_SUBSCRIPTIONS), ("minu_keep", 1)]


async def test_pages_have_no_gaps(hub: Hub) -> None:
    rows = [(await subscribe(hub, "minu_build", f"order.t{number}"))[0] for number in range(7)]
    listed: list[Subscription] = []
    async with hub.autocommit() as tx:
        while True:
            after = (listed[-1].created_at, listed[-1].id) if listed else None
            page = await list_subscriptions(tx, BUILD, after=after, limit=3)
            listed += page
            if len(page) < 3:
                break

    assert listed == rows


async def test_the_previous_secret_stays_valid_for_a_day(hub: Hub, database_urls: DatabaseUrls) -> None:
    added, first = await subscribe(hub, "minu_build", "order.*", url=URL)
    async with hub.transaction() as tx:
        rotated, second = await rotate_subscription_secret(tx, hub.key_ring, added.id, BUILD, TESTER)

    assert first != second
    row_now = await row_of(database_urls, added)
    assert decrypt_envelope(hub.key_ring, row_now["secret"], webhook_secret_location(added.id)) == second
    assert (
        decrypt_envelope(hub.key_ring, row_now["previous_secret"], previous_webhook_secret_location(added.id)) == first
    )
    assert rotated.previous_secret_until is not None
    assert rotated.previous_secret_until - rotated.updated_at == SECRET_OVERLAP == timedelta(hours=24)


async def test_a_secret_can_be_rotated_when_its_key_is_lost(hub: Hub, database_urls: DatabaseUrls) -> None:
    added, _ = await subscribe(hub, "minu_build", "order.*", url=URL)
    others = KeyRing(KeySet.generate(datetime.now(UTC)))
    async with hub.transaction() as tx:
        rotated, secret = await rotate_subscription_secret(tx, others, added.id, BUILD, TESTER)

    assert rotated.previous_secret_until is None
    row_now = await row_of(database_urls, added)
    assert row_now["previous_secret"] is None
    assert decrypt_envelope(others, row_now["secret"], webhook_secret_location(added.id)) == secret


async def test_resuming_enables_a_disabled_subscription(hub: Hub) -> None:
    added, _ = await subscribe(hub, "minu_build", "order.*", url=URL)
    async with hub.transaction() as tx:
        assert await disable_subscription(tx, added.id, "minu_build", added.url or "", "HTTP 410", TESTER)
        assert not await disable_subscription(tx, added.id, "minu_build", added.url or "", "HTTP 410 again", TESTER)
        disabled = await find_subscription(tx, added.id, BUILD)
        resumed = await resume_subscription(tx, added.id, BUILD, TESTER)

    assert disabled.disabled_reason == "HTTP 410"
    assert (resumed.disabled_at, resumed.disabled_reason) == (None, None)


async def test_secrets_are_long_and_unique() -> None:
    secrets = {new_webhook_secret() for _ in range(100)}

    assert len(secrets) == 100
    assert {len(b64decode(secret.removeprefix("whsec_"), validate=True)) for secret in secrets} == {32}
