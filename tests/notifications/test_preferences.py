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
from pabal.notifications.decision.decide import (
    DEFAULT_PROFILE,
    NotificationChannel,
    PreferencesOrigin,
    RecipientProfile,
)
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


async def update(hub: Hub, owner: PreferencesOwner, **changes: Any) -> Preferences:
    async with hub.transaction() as tx:
        return await update_preferences(tx, owner, PreferencesUpdate(**changes), MINA)


async def load(hub: Hub, owner: PreferencesOwner) -> Preferences:
    async with hub.autocommit() as tx:
        return await load_preferences(tx, owner)


async def link_user(hub: Hub, discord_id: str, user: UUID) -> Preferences:
    async with hub.transaction() as tx:
        return await link_discord_account(tx, discord_id, user, MINA)


async def load_profiles(hub: Hub, *recipients: str) -> dict[str, RecipientProfile]:
    async with hub.autocommit() as tx:
        profiles = await load_recipient_profiles(tx, ((recipient, None) for recipient in recipients))
    return {recipient: profile for (recipient, _), profile in profiles.items()}


async def add_user(owner: Connection) -> UUID:
    return await owner.fetchval("insert into identity.users default values returning id")


async def count_rows(owner: Connection) -> int:
    return await owner.fetchval(
        "select (select count(*) from notification.people) + (select count(*) from notification.preferences)"
    )


async def test_reading_never_writes_and_defaults_apply(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)

    assert await load(notifier.hub, "100") == Preferences(None, "100")
    assert await load(notifier.hub, user) == Preferences(user, None)
    assert await load_profiles(notifier.hub, "100", "101") == {"100": DEFAULT_PROFILE, "101": DEFAULT_PROFILE}
    assert await load_profiles(notifier.hub) == {}
    assert await count_rows(notifier.owner) == 0


async def test_an_unregistered_person_has_preferences(notifier: NotificationHub) -> None:
    preferences = await update(notifier.hub, "100", **OFF)
    assert (preferences.dm_enabled, preferences.payment_notifications, preferences.marketing_notifications) == (
        False,
        True,
        False,
    )

    await update(notifier.hub, "100", dm_enabled=True)
    assert (await load_profiles(notifier.hub, "100"))["100"] == RecipientProfile(marketing_notifications=False)
    assert (await load_profiles(notifier.hub, "101"))["101"] == DEFAULT_PROFILE


async def test_a_registered_user_has_a_row_in_preferences(notifier: NotificationHub) -> None:
    user = await add_user(notifier.owner)
    await update(notifier.hub, user, antinuke_notifications=False)
    first = await load(notifier.hub, user)
    await notifier.travel(timedelta(minutes=1))
    await update(notifier.hub, user, recovery_notifications=False)
    second = await load(notifier.hub, user)

    assert (second.antinuke_notifications, second.recovery_notifications, second.dm_enabled) == (False, False, True)
    assert first.updated_at
    assert second.updated_at
    assert second.updated_at - first.updated_at >= timedelta(minutes=1)
    assert await notifier.owner.fetchval("select count(*) from notification.preferences") == 1


async def test_preferences_of_an_unknown_user_are_refused(notifier: NotificationHub) -> None:
    with pytest.raises(NotFound):
        await update(notifier.hub, uuid4(), dm_enabled=False)
    with pytest.raises(Invalid, match="locale"):
        await update(notifier.hub, "100", locale="Klingon")
    with pytest.raises(Invalid, match="night_consent"):
        await update(notifier.hub, await add_user(notifier.owner), night_consent=True)
    assert await count_rows(notifier.owner) == 0


async def test_an_empty_update_writes_nothing(notifier: NotificationHub) -> None:
    await update(notifier.hub, "100")

    assert await count_rows(notifier.owner) == 0
    assert await notifier.audit_entries("preferences.changed") == []


async def test_a_change_is_audited_under_a_pseudonym(notifier: NotificationHub) -> None:
    await update(notifier.hub, "100", dm_enabled=False)

    [entry] = await notifier.audit_entries("preferences.changed")
    assert entry["subject"] == person_pseudonym("100")
    assert '"dm_enabled": false' in entry["details"]


async def test_night_consent_keeps_its_first_time_and_can_be_withdrawn(notifier: NotificationHub) -> None:
    first = await update(notifier.hub, "100", night_consent=True)
    await notifier.travel(timedelta(days=1))
    repeated = await update(notifier.hub, "100", night_consent=True, dm_enabled=True)
    assert first.night_consent_at is not None
    assert repeated.night_consent_at == first.night_consent_at
    assert (await update(notifier.hub, "100", payment_notifications=False)).night_consent_at == first.night_consent_at

    withdrawn = await update(notifier.hub, "100", night_consent=False)
    assert withdrawn.night_consent_at is None


class TestLinking:
    async def test_linking_copies_preferences_to_the_user(self, notifier: NotificationHub) -> None:
        user = await add_user(notifier.owner)
        await update(notifier.hub, "100", **OFF)
        linked = await link_user(notifier.hub, "100", user)

        assert (linked.user_id, linked.dm_enabled, linked.marketing_notifications) == (user, False, False)
        assert (await load(notifier.hub, user)).dm_enabled is False

        await update(notifier.hub, user, dm_enabled=True)
        assert (await load_profiles(notifier.hub, "100"))["100"] == RecipientProfile(
            marketing_notifications=False, decided_by=PreferencesOrigin.USER
        )
        await notifier.owner.execute("update notification.preferences set marketing_notifications = true")
        assert (await load_profiles(notifier.hub, "100"))["100"] == RecipientProfile(decided_by=PreferencesOrigin.USER)

    async def test_a_flag_off_in_either_place_stays_off(self, notifier: NotificationHub) -> None:
        user = await add_user(notifier.owner)
        await update(notifier.hub, user, payment_notifications=False)
        await update(notifier.hub, "100", marketing_notifications=False)
        linked = await link_user(notifier.hub, "100", user)

        assert (linked.payment_notifications, linked.marketing_notifications, linked.dm_enabled) == (False, False, True)

    async def test_a_change_of_a_linked_person_writes_both(self, notifier: NotificationHub) -> None:
        user = await add_user(notifier.owner)
        await link_user(notifier.hub, "100", user)
        await update(notifier.hub, "100", dm_enabled=False, night_consent=True)

        assert (await load(notifier.hub, user)).dm_enabled is False
        assert (await load(notifier.hub, user)).night_consent_at is not None

        await notifier.owner.execute("delete from identity.users")  # the preferences outlive the registration
        assert (await load_profiles(notifier.hub, "100"))["100"].dm_enabled is False

    async def test_linking_twice_is_idempotent(self, notifier: NotificationHub) -> None:
        user = await add_user(notifier.owner)
        await link_user(notifier.hub, "100", user)
        await link_user(notifier.hub, "100", user)

        assert len(await notifier.audit_entries("preferences.linked")) == 1

    async def test_an_account_links_to_one_user_only(self, notifier: NotificationHub) -> None:
        user, other_user = await add_user(notifier.owner), await add_user(notifier.owner)
        await link_user(notifier.hub, "100", user)

        with pytest.raises(Conflict):
            await link_user(notifier.hub, "100", other_user)
        with pytest.raises(Conflict):
            await link_user(notifier.hub, "101", user)
        with pytest.raises(NotFound):
            await link_user(notifier.hub, "102", uuid4())

    async def test_a_concurrent_change_is_not_lost(self, notifier: NotificationHub) -> None:
        for number in range(20):
            user, person = await add_user(notifier.owner), str(500 + number)
            await asyncio.gather(
                link_user(notifier.hub, person, user),
                update(notifier.hub, user, dm_enabled=False),
                update(notifier.hub, person, payment_notifications=False),
            )
            profile = (await load_profiles(notifier.hub, person))[person]
            assert (profile.dm_enabled, profile.payment_notifications) == (False, False)


async def test_profiles_include_unhealthy_addresses(notifier: NotificationHub) -> None:
    await notifier.owner.execute(
        "insert into notification.addresses (recipient_type, recipient_id, unhealthy_since, reason) "
        "values ('user_dm', '100', $1, 'x'), ('guild_audit_channel', '100', null, null)",
        await database_time(notifier),
    )

    assert (await load_profiles(notifier.hub, "100"))["100"].unhealthy == {NotificationChannel.USER_DM}


async def test_ten_thousand_profiles_are_loaded_in_one_statement(notifier: NotificationHub) -> None:
    recipients = [str(number) for number in range(10_000)]

    assert await load_profiles(notifier.hub, *recipients) == dict.fromkeys(recipients, DEFAULT_PROFILE)
