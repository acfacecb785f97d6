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

from pabal.audit.pseudonym import person_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.db.errors import CheckViolation, ForeignKeyViolation, UniqueViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import DEFAULT_PROFILE, NotificationChannel, RecipientProfile

Q = load_queries(__file__)

PreferencesOwner = UUID | str
"""A registered user by their id, or anybody by their Discord id."""


@dataclass(frozen=True, slots=True)
class PreferenceFlags:
    """The seed's five."""

    dm_enabled: bool = True
    payment_notifications: bool = True
    recovery_notifications: bool = True
    antinuke_notifications: bool = True
    marketing_notifications: bool = True


@dataclass(frozen=True, slots=True)
class Preferences:
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
    def flags(self) -> PreferenceFlags:
        return PreferenceFlags(**{name: getattr(self, name) for name in PREFERENCE_FLAGS})


PREFERENCE_FLAGS = tuple(field.name for field in fields(PreferenceFlags))


@dataclass(frozen=True, slots=True)
class PreferencesUpdate:
    """A change somebody asks for; what is None stays as it is."""

    dm_enabled: bool | None = None
    payment_notifications: bool | None = None
    recovery_notifications: bool | None = None
    antinuke_notifications: bool | None = None
    marketing_notifications: bool | None = None
    night_consent: bool | None = None
    locale: str | None = None

    @property
    def flags(self) -> Mapping[str, bool]:
        return {name: value for name in PREFERENCE_FLAGS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class RecipientProfileRow:
    """One recipient's row of `flags_of`."""

    recipient_id: str
    dm_enabled: bool
    payment_notifications: bool
    recovery_notifications: bool
    antinuke_notifications: bool
    marketing_notifications: bool
    night_consent_at: datetime | None
    unhealthy: list[str]

    def to_profile(self) -> RecipientProfile:
        said: dict[str, Any] = {**asdict(self), "unhealthy": frozenset(map(NotificationChannel, self.unhealthy))}
        del said["recipient_id"]
        return RecipientProfile(**said)


async def load_recipient_profiles(tx: Tx, recipient_ids: Collection[str]) -> dict[str, RecipientProfile]:
    """What each of these recipients wants, in one statement; everybody asked for is in the answer."""
    ids = [*{*recipient_ids}]
    found = {
        each.recipient_id: each.to_profile()
        for each in await tx.all(RecipientProfileRow, Q.list_recipient_profiles, ids=ids)
    }
    return {recipient: found.get(recipient, DEFAULT_PROFILE) for recipient in ids}


async def load_preferences(tx: Tx, owner: PreferencesOwner) -> Preferences:
    """What somebody wants; the defaults for whoever said nothing, known or not."""
    if isinstance(owner, UUID):
        return await tx.maybe(Preferences, Q.get_preference, user=owner) or Preferences(owner, None)
    return await tx.maybe(Preferences, Q.get_person, discord=owner) or Preferences(None, owner)


async def update_preferences(tx: Tx, owner: PreferencesOwner, update: PreferencesUpdate, actor: Actor) -> Preferences:
    """Change what somebody wants, and write down who changed it.

    A linked person's wishes are kept in both places, so that they outlive the user's registration.
    """
    if update == PreferencesUpdate():
        return await load_preferences(tx, owner)
    before = await _lock_preferences(tx, owner)
    switches = asdict(before.flags) | dict(update.flags)
    try:
        if before.discord_id is not None:
            consent, locale = update.night_consent, update.locale
            await tx.run(Q.upsert_person, discord=before.discord_id, consent=consent, locale=locale, **switches)
        elif update.night_consent is not None or update.locale is not None:
            field = "locale" if update.night_consent is None else "night_consent"
            raise Invalid.of_field(field, "is kept with the Discord account, and none is linked to this user")
        if before.user_id is not None:
            await tx.run(Q.upsert_preference, user=before.user_id, **switches)
    except ForeignKeyViolation:
        raise NotFound("there is no such user") from None
    except CheckViolation:
        raise Invalid.of_field("locale", "is a language such as ko or en-US") from None
    changed = {**update.flags} | ({} if update.night_consent is None else {"night_consent": update.night_consent})
    await record_action(tx, actor, "preferences.changed", person_pseudonym(str(owner)), **changed)
    return await load_preferences(tx, owner)


async def link_discord_account(tx: Tx, discord_id: str, user_id: UUID, actor: Actor) -> Preferences:
    """Say that a Discord account and a registered user are one person.

    What they switched off in either place stays off: nobody is asked again because they registered.
    """
    theirs = await _lock_preferences(tx, user_id)
    before = await _lock_preferences(tx, discord_id)
    if before.user_id not in {None, user_id}:
        raise Conflict("the Discord account is linked with another user")
    if theirs.discord_id not in {None, discord_id}:
        raise Conflict("the user is linked with another Discord account")
    both = {name: getattr(before, name) and getattr(theirs, name) for name in PREFERENCE_FLAGS}
    try:
        await tx.run(Q.upsert_person, discord=discord_id, consent=None, locale=None, **both)
        await tx.run(Q.link_person, discord=discord_id, user=user_id)
        await tx.run(Q.upsert_preference, user=user_id, **both)
    except ForeignKeyViolation:
        raise NotFound("there is no such user") from None
    except UniqueViolation:
        raise Conflict("the user is linked with another Discord account") from None
    if before.user_id is None:
        await record_action(tx, actor, "preferences.linked", person_pseudonym(discord_id), user=str(user_id))
    return await load_preferences(tx, discord_id)


async def _lock_preferences(tx: Tx, owner: PreferencesOwner) -> Preferences:
    """What somebody wants, and nobody else changes it before this transaction is over.

    The user first, then the Discord account: whoever takes both takes them in this order.
    """
    await tx.run(Q.lock_owner, who=str(owner))
    found = await load_preferences(tx, owner)
    if isinstance(owner, UUID) and found.discord_id is not None:
        await tx.run(Q.lock_owner, who=found.discord_id)
        return await load_preferences(tx, owner)
    return found
