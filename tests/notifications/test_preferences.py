"""Preferences: defaults apply without a row, and a flag that is off stays off."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pabal.audit.pseudonym import person_pseudonym
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.hub import Hub
from pabal.notifications.decision.decide import DEFAULT_PROFILE, NotificationChannel, RecipientProfile
from pabal.notifications.people.preferences import (
    Preferences,
    PreferencesOwner,
    PreferencesUpdate,
    link_discord_account,
    load_preferences,
    load_recipient_profiles,
    update_preferences,
)
from support.clusters import Connection
from support.dispatch import NotificationHub, database_time

pytestmark = pytest.mark.anyio

MINA = Actor("person:mina", "192.0.2.7")
OFF = {"dm_enabled": False, "marketing_notifications": False}


async def put(hub: Hub, who: PreferencesOwner, **changes: Any) -> Preferences:
    async with hub.transaction() as tx:
        return await update_preferences(tx, who, PreferencesUpdate(**changes), MINA)


async def get(hub: Hub, who: PreferencesOwner) -> Preferences:
    async with hub.autocommit() as tx:
        return await load_preferences(tx, who)


async def link(hub: Hub, discord_id: str, user: UUID) -> Preferences:
    async with hub.transaction() as tx:
        return await link_discord_account(tx, discord_id, user, MINA)


async def flags(hub: Hub, *recipients: str) -> dict[str, RecipientProfile]:
    async with hub.autocommit() as tx:
        return await load_recipient_profiles(tx, recipients)


async def register(owner: Connection) -> UUID:
    return await owner.fetchval("insert into identity.users default values returning id")


async def rows(owner: Connection) -> int:
    return await owner.fetchval(
        "select (select count(*) from notification.people) + (select count(*) from notification.preferences)"
    )


async def test_reading_never_writes_and_defaults_apply(notifier: NotificationHub) -> None:
    user = await register(notifier.owner)

    assert await get(notifier.hub, "100") == Preferences(None, "100")
    assert await get(notifier.hub, user) == Preferences(user, None)
    assert await flags(notifier.hub, "100", "101") == {"100": DEFAULT_PROFILE, "101": DEFAULT_PROFILE}
    assert await flags(notifier.hub) == {}
    assert await rows(notifier.owner) == 0


async def test_an_unregistered_person_has_preferences(notifier: NotificationHub) -> None:
    wanted = await put(notifier.hub, "100", **OFF)
    assert (wanted.dm_enabled, wanted.payment_notifications, wanted.marketing_notifications) == (False, True, False)

    await put(notifier.hub, "100", dm_enabled=True)
    assert (await flags(notifier.hub, "100"))["100"] == RecipientProfile(marketing_notifications=False)
    assert (await flags(notifier.hub, "101"))["101"] == DEFAULT_PROFILE


async def test_a_registered_user_has_a_row_in_preferences(notifier: NotificationHub) -> None:
    user = await register(notifier.owner)
    await put(notifier.hub, user, antinuke_notifications=False)
    first = await get(notifier.hub, user)
    await notifier.travel(timedelta(minutes=1))
    await put(notifier.hub, user, recovery_notifications=False)
    second = await get(notifier.hub, user)

    assert (second.antinuke_notifications, second.recovery_notifications, second.dm_enabled) == (False, False, True)
    assert first.updated_at
    assert second.updated_at
    assert second.updated_at - first.updated_at >= timedelta(minutes=1)
    assert await notifier.owner.fetchval("select count(*) from notification.preferences") == 1


async def test_preferences_of_an_unknown_user_are_refused(notifier: NotificationHub) -> None:
    with pytest.raises(NotFound):
        await put(notifier.hub, uuid4(), dm_enabled=False)
    with pytest.raises(Invalid, match="locale"):
        await put(notifier.hub, "100", locale="Klingon")
    with pytest.raises(Invalid, match="night_consent"):
        await put(notifier.hub, await register(notifier.owner), night_consent=True)
    assert await rows(notifier.owner) == 0


async def test_an_empty_update_writes_nothing(notifier: NotificationHub) -> None:
    await put(notifier.hub, "100")

    assert await rows(notifier.owner) == 0
    assert await notifier.audit_entries("preferences.changed") == []


async def test_a_change_is_audited_under_a_pseudonym(notifier: NotificationHub) -> None:
    await put(notifier.hub, "100", dm_enabled=False)

    [entry] = await notifier.audit_entries("preferences.changed")
    assert entry["subject"] == person_pseudonym("100")
    assert '"dm_enabled": false' in entry["details"]


async def test_night_consent_keeps_its_first_time_and_can_be_withdrawn(notifier: NotificationHub) -> None:
    arguments = await put(notifier.hub, "100", night_consent=True)
    await notifier.travel(timedelta(days=1))
    again = await put(notifier.hub, "100", night_consent=True, dm_enabled=True)
    assert arguments.night_consent_at is not None
    assert again.night_consent_at == arguments.night_consent_at
    assert (await put(notifier.hub, "100", payment_notifications=False)).night_consent_at == arguments.night_consent_at

    collect_changes = await put(notifier.hub, "100", night_consent=False)
    assert collect_changes.night_consent_at is None


class TestLinking:
    async def test_linking_copies_preferences_to_the_user(self, notifier: NotificationHub) -> None:
        user = await register(notifier.owner)
        await put(notifier.hub, "100", **OFF)
        linked = await link(notifier.hub, "100", user)

        assert (linked.user_id, linked.dm_enabled, linked.marketing_notifications) == (user, False, False)
        assert (await get(notifier.hub, user)).dm_enabled is False

        await put(notifier.hub, user, dm_enabled=True)
        assert (await flags(notifier.hub, "100"))["100"] == RecipientProfile(marketing_notifications=False)
        await notifier.owner.execute("update notification.preferences set marketing_notifications = true")
        assert (await flags(notifier.hub, "100"))["100"] == DEFAULT_PROFILE

    async def test_a_flag_off_in_either_place_stays_off(self, notifier: NotificationHub) -> None:
        user = await register(notifier.owner)
        await put(notifier.hub, user, payment_notifications=False)
        await put(notifier.hub, "100", marketing_notifications=False)
        linked = await link(notifier.hub, "100", user)

        assert (linked.payment_notifications, linked.marketing_notifications, linked.dm_enabled) == (False, False, True)

    async def test_a_change_of_a_linked_person_writes_both(self, notifier: NotificationHub) -> None:
        user = await register(notifier.owner)
        await link(notifier.hub, "100", user)
        await put(notifier.hub, "100", dm_enabled=False, night_consent=True)

        assert (await get(notifier.hub, user)).dm_enabled is False
        assert (await get(notifier.hub, user)).night_consent_at is not None

        await notifier.owner.execute("delete from identity.users")  # what they said outlives the registration
        assert (await flags(notifier.hub, "100"))["100"].dm_enabled is False

    async def test_linking_twice_is_idempotent(self, notifier: NotificationHub) -> None:
        user = await register(notifier.owner)
        await link(notifier.hub, "100", user)
        await link(notifier.hub, "100", user)

        assert len(await notifier.audit_entries("preferences.linked")) == 1

    async def test_an_account_links_to_one_user_only(self, notifier: NotificationHub) -> None:
        one, other = await register(notifier.owner), await register(notifier.owner)
        await link(notifier.hub, "100", one)

        with pytest.raises(Conflict):
            await link(notifier.hub, "100", other)
        with pytest.raises(Conflict):
            await link(notifier.hub, "101", one)
        with pytest.raises(NotFound):
            await link(notifier.hub, "102", uuid4())

    async def test_a_concurrent_change_is_not_lost(self, notifier: NotificationHub) -> None:
        for item in range(20):
            user, person = await register(notifier.owner), str(500 + item)
            await asyncio.gather(
                link(notifier.hub, person, user),
                put(notifier.hub, user, dm_enabled=False),
                put(notifier.hub, person, payment_notifications=False),
            )
            matches = (await flags(notifier.hub, person))[person]
            assert (matches.dm_enabled, matches.payment_notifications) == (False, False)


async def test_profiles_include_unhealthy_addresses(notifier: NotificationHub) -> None:
    await notifier.owner.execute(
        "insert into notification.addresses (recipient_type, recipient_id, unhealthy_since, reason) "
        "values ('user_dm', '100', $1, 'x'), ('guild_audit_channel', '100', null, null)",
        await database_time(notifier),
    )

    assert (await flags(notifier.hub, "100"))["100"].unhealthy == {NotificationChannel.USER_DM}


async def test_ten_thousand_profiles_are_loaded_in_one_statement(notifier: NotificationHub) -> None:
    recipients = [str(item) for item in range(10_000)]

    assert await flags(notifier.hub, *recipients) == dict.fromkeys(recipients, DEFAULT_PROFILE)
