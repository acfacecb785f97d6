"""What people want to be told, and where.

A registered user's wishes are in `notification.preferences`, by user id; those of people who never registered are in
`notification.people`, by Discord id. Linking joins the two, and from then on the preferences rule. Reading never
writes: whoever said nothing has the defaults.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.db.faults import Duplicate, Orphan, Unfit
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.alias import alias
from pabal.notifications.plan import DEFAULTS, Channel, Flags

Q = beside(__file__)

Who = UUID | str
"""A registered user by their id, or anybody by their Discord id."""


@dataclass(frozen=True, slots=True)
class Switches:
    """The seed's five."""

    dm_enabled: bool = True
    payment_notifications: bool = True
    recovery_notifications: bool = True
    antinuke_notifications: bool = True
    marketing_notifications: bool = True


@dataclass(frozen=True, slots=True)
class Preference:
    """What one person wants. `updated_at` is empty for somebody who never said anything."""

    user_id: UUID | None
    discord_id: str | None
    dm_enabled: bool = True
    payment_notifications: bool = True
    recovery_notifications: bool = True
    antinuke_notifications: bool = True
    marketing_notifications: bool = True
    night_consent_at: datetime | None = None
    locale: str | None = None
    updated_at: datetime | None = None

    @property
    def switches(self) -> Switches:
        return Switches(**{name: getattr(self, name) for name in SWITCHES})


SWITCHES = tuple(field.name for field in fields(Switches))


@dataclass(frozen=True, slots=True)
class Wish:
    """A change somebody asks for; what is None stays as it is."""

    dm_enabled: bool | None = None
    payment_notifications: bool | None = None
    recovery_notifications: bool | None = None
    antinuke_notifications: bool | None = None
    marketing_notifications: bool | None = None
    night_consent: bool | None = None
    locale: str | None = None

    @property
    def switches(self) -> Mapping[str, bool]:
        return {name: value for name in SWITCHES if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One recipient's row of `flags_of`."""

    recipient_id: str
    dm_enabled: bool
    payment_notifications: bool
    recovery_notifications: bool
    antinuke_notifications: bool
    marketing_notifications: bool
    night_consent_at: datetime | None
    unhealthy: list[str]

    def flags(self) -> Flags:
        said: dict[str, Any] = {**asdict(self), "unhealthy": frozenset(map(Channel, self.unhealthy))}
        del said["recipient_id"]
        return Flags(**said)


async def flags_of(tx: Tx, recipient_ids: Collection[str]) -> dict[str, Flags]:
    """What each of these recipients wants, in one statement; everybody asked for is in the answer."""
    ids = [*{*recipient_ids}]
    found = {each.recipient_id: each.flags() for each in await tx.all(Wanted, Q.flags_of, ids=ids)}
    return {recipient: found.get(recipient, DEFAULTS) for recipient in ids}


async def get(tx: Tx, who: Who) -> Preference:
    """What somebody wants; the defaults for whoever said nothing, known or not."""
    if isinstance(who, UUID):
        return await tx.maybe(Preference, Q.get_preference, user=who) or Preference(who, None)
    return await tx.maybe(Preference, Q.get_person, discord=who) or Preference(None, who)


async def put(tx: Tx, who: Who, wish: Wish, by: Actor) -> Preference:
    """Change what somebody wants, and write down who changed it.

    A linked person's wishes are kept in both places, so that they outlive the user's registration.
    """
    if wish == Wish():
        return await get(tx, who)
    before = await _locked(tx, who)
    switches = asdict(before.switches) | dict(wish.switches)
    try:
        if before.discord_id is not None:
            consent, locale = wish.night_consent, wish.locale
            await tx.run(Q.upsert_person, discord=before.discord_id, consent=consent, locale=locale, **switches)
        elif wish.night_consent is not None or wish.locale is not None:
            field = "locale" if wish.night_consent is None else "night_consent"
            raise Invalid.one(field, "is kept with the Discord account, and none is linked to this user")
        if before.user_id is not None:
            await tx.run(Q.upsert_preference, user=before.user_id, **switches)
    except Orphan:
        raise NotFound("there is no such user") from None
    except Unfit:
        raise Invalid.one("locale", "is a language such as ko or en-US") from None
    changed = {**wish.switches} | ({} if wish.night_consent is None else {"night_consent": wish.night_consent})
    await did(tx, by, "preferences.changed", alias(str(who)), **changed)
    return await get(tx, who)


async def link(tx: Tx, discord_id: str, user_id: UUID, by: Actor) -> Preference:
    """Say that a Discord account and a registered user are one person.

    What they switched off in either place stays off: nobody is asked again because they registered.
    """
    theirs = await _locked(tx, user_id)
    before = await _locked(tx, discord_id)
    if before.user_id not in {None, user_id}:
        raise Conflict("the Discord account is linked with another user")
    if theirs.discord_id not in {None, discord_id}:
        raise Conflict("the user is linked with another Discord account")
    both = {name: getattr(before, name) and getattr(theirs, name) for name in SWITCHES}
    try:
        await tx.run(Q.upsert_person, discord=discord_id, consent=None, locale=None, **both)
        await tx.run(Q.link, discord=discord_id, user=user_id)
        await tx.run(Q.upsert_preference, user=user_id, **both)
    except Orphan:
        raise NotFound("there is no such user") from None
    except Duplicate:
        raise Conflict("the user is linked with another Discord account") from None
    if before.user_id is None:
        await did(tx, by, "preferences.linked", alias(discord_id), user=str(user_id))
    return await get(tx, discord_id)


async def _locked(tx: Tx, who: Who) -> Preference:
    """What somebody wants, and nobody else changes it before this transaction is over.

    The user first, then the Discord account: whoever takes both takes them in this order.
    """
    await tx.run(Q.lock, who=str(who))
    found = await get(tx, who)
    if isinstance(who, UUID) and found.discord_id is not None:
        await tx.run(Q.lock, who=found.discord_id)
        return await get(tx, who)
    return found
