"""Subscriptions: who may have them, who sees them, and what is kept of their secrets."""

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
from support.clusters import connected
from support.subscriptions import EVERYBODY, TESTER, seen, subscribe

pytestmark = pytest.mark.anyio

URL = "https://hook.example.org/in?key=s3cret"
BUILD, KEEP = EventAccess("minu_build"), EventAccess("minu_keep")
Verb = Callable[[Tx, Subscription, EventAccess], Awaitable[Any]]


def verbs(hub: Hub) -> dict[str, Verb]:
    """Everything that can be done to a subscription."""
    return {
        "find": lambda tx, of, who: find_subscription(tx, of.id, who),
        "change": lambda tx, of, who: update_subscription(tx, of.id, who, SubscriptionPatch(timeout_seconds=7), TESTER),
        "pause": lambda tx, of, who: pause_subscription(tx, of.id, who, TESTER),
        "resume": lambda tx, of, who: resume_subscription(tx, of.id, who, TESTER),
        "rotate": lambda tx, of, who: rotate_subscription_secret(tx, hub.key_ring, of.id, who, TESTER),
        "remove": lambda tx, of, who: remove_subscription(tx, of.id, who, TESTER),
    }


async def row_of(database_urls: DatabaseUrls, subscription: Subscription) -> dict[str, Any]:
    async with connected(database_urls.main) as conn:
        found = await conn.fetchrow("select * from pabal.subscriptions where id = $1", subscription.id)
    assert found is not None
    return dict(found)


async def deeds(database_urls: DatabaseUrls, subscription: Subscription) -> list[tuple[str, str]]:
    async with connected(database_urls.main) as conn:
        rows = await conn.fetch(
            "select action, details::text from pabal.audit_log where subject = $1 order by id", str(subscription.id)
        )
    return [(row["action"], row["details"]) for row in rows]


async def test_with_an_address_it_is_pushed_and_without_one_pulled(hub: Hub, database_urls: DatabaseUrls) -> None:
    pushed, secret = await subscribe(hub, "minu_build", "order.*", "cart.filled", url=URL, within=7)
    pulled, nothing = await subscribe(hub, "minu_build", "*")

    assert (pushed.mode, pushed.url, pushed.timeout_seconds) == ("push", URL, 7)
    assert (pulled.mode, pulled.url, nothing) == ("pull", None, "")
    assert [*pushed.event_types] == ["order.*", "cart.filled"]
    assert len(b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    kept = await row_of(database_urls, pushed)
    assert kept["patterns"] == ["order.%", "cart.filled"]
    assert secret.removeprefix("whsec_") not in str(kept)
    assert decrypt_envelope(hub.key_ring, kept["secret"], webhook_secret_location(pushed.id)) == secret
    for hidden in (secret, "s3cret"):
        assert hidden not in repr(pushed) + repr(SubscriptionDraft("minu_build", ["*"], URL)) + repr(
            SubscriptionPatch(url=URL)
        )


async def test_every_change_is_written_down_without_the_address(hub: Hub, database_urls: DatabaseUrls) -> None:
    mine, _ = await subscribe(hub, "minu_build", "order.*", url=URL)
    for name, verb in verbs(hub).items():
        async with hub.transaction() as tx:
            await verb(tx, mine, BUILD)
            if name == "pause":
                await verb(tx, mine, BUILD)  # what is paused already is not paused again

    told = await deeds(database_urls, mine)
    done = ("added", "changed", "paused", "resumed", "secret_rotated", "removed")
    assert [action for action, _ in told] == [f"subscription.{each}" for each in done]
    assert not any("example" in details for _, details in told)


async def test_somebody_elses_is_not_there_except_for_who_looks_after_the_hub(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    mine, _ = await subscribe(hub, "minu_build", "order.*", url=URL)
    for verb in verbs(hub).values():
        with pytest.raises(NotFound, match=str(mine.id)):
            async with hub.transaction() as tx:
                await verb(tx, mine, KEEP)
    assert await seen(hub, mine) == mine

    async with hub.autocommit() as tx:
        assert await list_subscriptions(tx, KEEP) == []
        assert await list_subscriptions(tx, KEEP, service="minu_build") == []
        assert await list_subscriptions(tx, BUILD) == [mine]
        assert await list_subscriptions(tx, EVERYBODY, service="minu_build") == [mine]
        assert await list_subscriptions(tx, EVERYBODY, service="minu_keep") == []
    for verb in verbs(hub).values():
        async with hub.transaction() as tx:
            await verb(tx, mine, EVERYBODY)
    with pytest.raises(NotFound):
        await seen(hub, mine)


async def test_an_update_keeps_omitted_fields(hub: Hub) -> None:
    mine, _ = await subscribe(hub, "minu_build", "order.*", url=URL)

    async def change(**to: Any) -> Subscription:
        async with hub.transaction() as tx:
            return await update_subscription(tx, mine.id, BUILD, SubscriptionPatch(**to), TESTER)

    described = await change(set_description=True, description="bills")
    retimed = await change(timeout_seconds=3)
    moved = await change(url="https://other.example.org/", event_types=["cart.*"])
    plain = await change(set_description=True)

    assert (described.description, described.url, described.timeout_seconds) == ("bills", URL, 15)
    assert (retimed.description, retimed.timeout_seconds, [*retimed.event_types]) == ("bills", 3, ["order.*"])
    assert (moved.url, [*moved.event_types], moved.timeout_seconds) == ("https://other.example.org/", ["cart.*"], 3)
    assert (plain.description, plain.url) == (None, "https://other.example.org/")


async def test_another_address_starts_with_a_clean_sheet(hub: Hub, database_urls: DatabaseUrls) -> None:
    mine, _ = await subscribe(hub, "minu_build", "order.*", url=URL)
    async with connected(database_urls.main) as conn:
        await conn.execute("update pabal.subscriptions set failures = 7, open_until = now() + interval '1 hour'")

    async with hub.transaction() as tx:
        same = await update_subscription(tx, mine.id, BUILD, SubscriptionPatch(url=URL), TESTER)
        other = await update_subscription(tx, mine.id, BUILD, SubscriptionPatch(url=f"{URL}2"), TESTER)

    assert (same.failures, same.open_until is None) == (7, False)
    assert (other.failures, other.open_until) == (0, None)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pause", "A pull subscription cannot be paused: stop pulling instead"),
        ("resume", "A pull subscription cannot be resumed: pull instead"),
        ("rotate", "A pull subscription has no secret"),
    ],
)
async def test_push_actions_on_a_pull_subscription_are_refused(hub: Hub, name: str, told: str) -> None:
    pulled, _ = await subscribe(hub, "minu_build", "order.*")
    with pytest.raises(Conflict, match=told):
        async with hub.transaction() as tx:
            await verbs(hub)[name](tx, pulled, BUILD)
    with pytest.raises(Conflict, match="url: a pull subscription has no URL"):
        async with hub.transaction() as tx:
            await update_subscription(tx, pulled.id, BUILD, SubscriptionPatch(url=URL), TESTER)


async def made_by_the_hub(hub: Hub, database_urls: DatabaseUrls, mode: str) -> Subscription:
    async with connected(database_urls.main) as conn:
        await conn.execute(
            "insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_build', $1, '{order.*}')",
            mode,
        )
    async with hub.autocommit() as tx:
        [made] = await list_subscriptions(tx, BUILD)
    return made


async def test_a_handler_subscription_can_be_paused_resumed_and_removed_but_not_updated(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    made = await made_by_the_hub(hub, database_urls, "handler")
    with pytest.raises(Conflict, match="The handlers of a worker define this subscription"):
        async with hub.transaction() as tx:
            await update_subscription(tx, made.id, BUILD, SubscriptionPatch(description="mine"), TESTER)
    async with hub.transaction() as tx:
        assert (await pause_subscription(tx, made.id, BUILD, TESTER)).paused_at is not None
        assert (await resume_subscription(tx, made.id, BUILD, TESTER)).paused_at is None
        await remove_subscription(tx, made.id, BUILD, TESTER)
        assert await list_subscriptions(tx, BUILD) == []


async def test_a_subscription_of_a_rule_can_be_read_but_not_changed(hub: Hub, database_urls: DatabaseUrls) -> None:
    made = await made_by_the_hub(hub, database_urls, "rule")
    for name, verb in verbs(hub).items():
        if name != "find":
            with pytest.raises(Conflict, match="belongs to a notification rule"):
                async with hub.transaction() as tx:
                    await verb(tx, made, EVERYBODY)
    assert await seen(hub, made) == made


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
async def test_what_the_table_refuses_is_named(hub: Hub, draft: SubscriptionDraft, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        async with hub.transaction() as tx:
            await add_subscription(tx, hub.key_ring, draft, TESTER)

    assert [mistake.field for mistake in refused.value.errors] == [field]


async def test_an_unknown_service_has_none(hub: Hub) -> None:
    with pytest.raises(NotFound, match="No such service: nobody"):
        await subscribe(hub, "nobody", "*")
    with pytest.raises(NotFound):
        async with hub.autocommit() as tx:
            await find_subscription(tx, new_id(), EVERYBODY)


async def test_a_service_has_at_most_a_hundred_however_fast_it_asks(hub: Hub, database_urls: DatabaseUrls) -> None:
    for _ in range(MAX_SUBSCRIPTIONS - 5):
        await subscribe(hub, "minu_build", "order.*")

    tried = await asyncio.gather(*(subscribe(hub, "minu_build", "*") for _ in range(10)), return_exceptions=True)

    assert sum(isinstance(each, Conflict) for each in tried) == 5
    await subscribe(hub, "minu_keep", "order.*")
    async with connected(database_urls.main) as conn:
        counts = await conn.fetch("select service_name, count(*) from pabal.subscriptions group by 1 order by 1")
    assert [tuple(row) for row in counts] == [("minu_build", MAX_SUBSCRIPTIONS), ("minu_keep", 1)]


async def test_pages_follow_each_other_without_a_gap(hub: Hub) -> None:
    rows = [(await subscribe(hub, "minu_build", f"order.t{number}"))[0] for number in range(7)]
    found: list[Subscription] = []
    async with hub.autocommit() as tx:
        while True:
            after = (found[-1].created_at, found[-1].id) if found else None
            page = await list_subscriptions(tx, BUILD, after=after, limit=3)
            found += page
            if len(page) < 3:
                break

    assert found == rows


async def test_a_rotated_secret_leaves_the_one_before_for_a_day(hub: Hub, database_urls: DatabaseUrls) -> None:
    mine, first = await subscribe(hub, "minu_build", "order.*", url=URL)
    async with hub.transaction() as tx:
        rotated, second = await rotate_subscription_secret(tx, hub.key_ring, mine.id, BUILD, TESTER)

    assert first != second
    kept = await row_of(database_urls, mine)
    assert decrypt_envelope(hub.key_ring, kept["secret"], webhook_secret_location(mine.id)) == second
    assert decrypt_envelope(hub.key_ring, kept["previous_secret"], previous_webhook_secret_location(mine.id)) == first
    assert rotated.previous_secret_until is not None
    assert rotated.previous_secret_until - rotated.updated_at == SECRET_OVERLAP == timedelta(hours=24)


async def test_where_the_key_is_lost_a_new_secret_is_the_way_out(hub: Hub, database_urls: DatabaseUrls) -> None:
    mine, _ = await subscribe(hub, "minu_build", "order.*", url=URL)
    others = KeyRing(KeySet.generate(datetime.now(UTC)))
    async with hub.transaction() as tx:
        rotated, secret = await rotate_subscription_secret(tx, others, mine.id, BUILD, TESTER)

    assert rotated.previous_secret_until is None
    kept = await row_of(database_urls, mine)
    assert kept["previous_secret"] is None
    assert decrypt_envelope(others, kept["secret"], webhook_secret_location(mine.id)) == secret


async def test_resuming_takes_up_one_that_was_given_up(hub: Hub) -> None:
    mine, _ = await subscribe(hub, "minu_build", "order.*", url=URL)
    async with hub.transaction() as tx:
        assert await disable_subscription(tx, mine.id, "minu_build", mine.url or "", "HTTP 410", TESTER)
        assert not await disable_subscription(tx, mine.id, "minu_build", mine.url or "", "HTTP 410 again", TESTER)
        given_up = await find_subscription(tx, mine.id, BUILD)
        resumed = await resume_subscription(tx, mine.id, BUILD, TESTER)

    assert given_up.disabled_reason == "HTTP 410"
    assert (resumed.disabled_at, resumed.disabled_reason) == (None, None)


async def test_a_secret_is_long_and_never_the_same() -> None:
    made = {new_webhook_secret() for _ in range(100)}

    assert len(made) == 100
    assert {len(b64decode(secret.removeprefix("whsec_"), validate=True)) for secret in made} == {32}
