"""What people want: defaults for whoever said nothing, and what was switched off stays off."""

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
from support.dispatch import Office, now

pytestmark = pytest.mark.anyio

MINA = Actor("person:mina", "192.0.2.7")
OFF = {"dm_enabled": False, "marketing_notifications": False}


async def put(hub: Hub, who: PreferencesOwner, **wish: Any) -> Preferences:
    async with hub.transaction() as tx:
        return await update_preferences(tx, who, PreferencesUpdate(**wish), MINA)


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


async def test_reading_never_writes_and_whoever_said_nothing_has_the_defaults(desk: Office) -> None:
    user = await register(desk.owner)

    assert await get(desk.hub, "100") == Preferences(None, "100")
    assert await get(desk.hub, user) == Preferences(user, None)
    assert await flags(desk.hub, "100", "101") == {"100": DEFAULT_PROFILE, "101": DEFAULT_PROFILE}
    assert await flags(desk.hub) == {}
    assert await rows(desk.owner) == 0


async def test_somebody_who_never_registered_has_wishes_too(desk: Office) -> None:
    wanted = await put(desk.hub, "100", **OFF)
    assert (wanted.dm_enabled, wanted.payment_notifications, wanted.marketing_notifications) == (False, True, False)

    await put(desk.hub, "100", dm_enabled=True)
    assert (await flags(desk.hub, "100"))["100"] == RecipientProfile(marketing_notifications=False)
    assert (await flags(desk.hub, "101"))["101"] == DEFAULT_PROFILE


async def test_a_registered_user_has_the_seeds_row(desk: Office) -> None:
    user = await register(desk.owner)
    await put(desk.hub, user, antinuke_notifications=False)
    first = await get(desk.hub, user)
    await desk.travel(timedelta(minutes=1))
    await put(desk.hub, user, recovery_notifications=False)
    second = await get(desk.hub, user)

    assert (second.antinuke_notifications, second.recovery_notifications, second.dm_enabled) == (False, False, True)
    assert first.updated_at
    assert second.updated_at
    assert second.updated_at - first.updated_at >= timedelta(minutes=1)
    assert await desk.owner.fetchval("select count(*) from notification.preferences") == 1


async def test_a_wish_for_nobody_is_refused(desk: Office) -> None:
    with pytest.raises(NotFound):
        await put(desk.hub, uuid4(), dm_enabled=False)
    with pytest.raises(Invalid, match="locale"):
        await put(desk.hub, "100", locale="Klingon")
    with pytest.raises(Invalid, match="night_consent"):
        await put(desk.hub, await register(desk.owner), night_consent=True)
    assert await rows(desk.owner) == 0


async def test_a_wish_for_nothing_writes_nothing(desk: Office) -> None:
    await put(desk.hub, "100")

    assert await rows(desk.owner) == 0
    assert await desk.audited("preferences.changed") == []


async def test_a_change_is_audited_without_saying_whose_id_it_is(desk: Office) -> None:
    await put(desk.hub, "100", dm_enabled=False)

    [entry] = await desk.audited("preferences.changed")
    assert entry["subject"] == person_pseudonym("100")
    assert '"dm_enabled": false' in entry["details"]


async def test_consent_for_the_night_is_dated_by_its_first_giving_and_can_be_taken_back(desk: Office) -> None:
    given = await put(desk.hub, "100", night_consent=True)
    await desk.travel(timedelta(days=1))
    again = await put(desk.hub, "100", night_consent=True, dm_enabled=True)
    assert given.night_consent_at is not None
    assert again.night_consent_at == given.night_consent_at
    assert (await put(desk.hub, "100", payment_notifications=False)).night_consent_at == given.night_consent_at

    taken = await put(desk.hub, "100", night_consent=False)
    assert taken.night_consent_at is None


class TestLinking:
    async def test_copies_what_the_person_wants_to_the_user_whose_preferences_then_rule(self, desk: Office) -> None:
        user = await register(desk.owner)
        await put(desk.hub, "100", **OFF)
        linked = await link(desk.hub, "100", user)

        assert (linked.user_id, linked.dm_enabled, linked.marketing_notifications) == (user, False, False)
        assert (await get(desk.hub, user)).dm_enabled is False

        await put(desk.hub, user, dm_enabled=True)
        assert (await flags(desk.hub, "100"))["100"] == RecipientProfile(marketing_notifications=False)
        await desk.owner.execute("update notification.preferences set marketing_notifications = true")
        assert (await flags(desk.hub, "100"))["100"] == DEFAULT_PROFILE

    async def test_keeps_off_what_was_switched_off_in_either_place(self, desk: Office) -> None:
        user = await register(desk.owner)
        await put(desk.hub, user, payment_notifications=False)
        await put(desk.hub, "100", marketing_notifications=False)
        linked = await link(desk.hub, "100", user)

        assert (linked.payment_notifications, linked.marketing_notifications, linked.dm_enabled) == (False, False, True)

    async def test_a_linked_person_says_it_once_for_both(self, desk: Office) -> None:
        user = await register(desk.owner)
        await link(desk.hub, "100", user)
        await put(desk.hub, "100", dm_enabled=False, night_consent=True)

        assert (await get(desk.hub, user)).dm_enabled is False
        assert (await get(desk.hub, user)).night_consent_at is not None

        await desk.owner.execute("delete from identity.users")  # what they said outlives the registration
        assert (await flags(desk.hub, "100"))["100"].dm_enabled is False

    async def test_twice_is_once(self, desk: Office) -> None:
        user = await register(desk.owner)
        await link(desk.hub, "100", user)
        await link(desk.hub, "100", user)

        assert len(await desk.audited("preferences.linked")) == 1

    async def test_nobody_is_two(self, desk: Office) -> None:
        one, other = await register(desk.owner), await register(desk.owner)
        await link(desk.hub, "100", one)

        with pytest.raises(Conflict):
            await link(desk.hub, "100", other)
        with pytest.raises(Conflict):
            await link(desk.hub, "101", one)
        with pytest.raises(NotFound):
            await link(desk.hub, "102", uuid4())

    async def test_a_wish_made_meanwhile_is_not_lost(self, desk: Office) -> None:
        for each in range(20):
            user, person = await register(desk.owner), str(500 + each)
            await asyncio.gather(
                link(desk.hub, person, user),
                put(desk.hub, user, dm_enabled=False),
                put(desk.hub, person, payment_notifications=False),
            )
            found = (await flags(desk.hub, person))[person]
            assert (found.dm_enabled, found.payment_notifications) == (False, False)


async def test_an_address_that_refuses_is_part_of_the_answer(desk: Office) -> None:
    await desk.owner.execute(
        "insert into notification.addresses (recipient_type, recipient_id, unhealthy_since, reason) "
        "values ('user_dm', '100', $1, 'x'), ('guild_audit_channel', '100', null, null)",
        await now(desk),
    )

    assert (await flags(desk.hub, "100"))["100"].unhealthy == {NotificationChannel.USER_DM}


async def test_ten_thousand_are_asked_for_in_one_statement(desk: Office) -> None:
    everybody = [str(each) for each in range(10_000)]

    assert await flags(desk.hub, *everybody) == dict.fromkeys(everybody, DEFAULT_PROFILE)
