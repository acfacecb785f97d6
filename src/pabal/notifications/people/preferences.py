"""Preferences: which notifications a person wants.

Those of registered users are in `notification.preferences`, by user id; those of other people in `notification.people`,
by Discord id. Linking joins the two; then `notification.preferences` applies. Without a row, the defaults apply.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from pabal.audit.pseudonym import person_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, NotFound
from pabal.db.errors import CheckViolation, ForeignKeyViolation, RetryableError, UniqueViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import NotificationChannel, PreferencesOrigin, RecipientProfile
from pabal.notifications.recipient_forms import LOCALE_RULE, check_locale

Q = load_queries(__file__)

MAX_REASON_LENGTH = 500

PreferencesOwner = UUID | str
"""A registered user's id, or a Discord id."""


@dataclass(frozen=True, slots=True)
class PreferenceFlags:
    """The flags that both tables have."""

    dm_enabled: bool = True
    payment_notifications: bool = True
    recovery_notifications: bool = True
    antinuke_notifications: bool = True
    marketing_notifications: bool = True


@dataclass(frozen=True, slots=True)
class Preferences:
    """One person's preferences. `updated_at` is None if they are the defaults."""

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
    linked_at: datetime | None = None
    linked_by: str | None = None
    """Who linked the Discord account to the registered user."""

    @property
    def flags(self) -> PreferenceFlags:
        return PreferenceFlags(**{name: getattr(self, name) for name in PREFERENCE_FLAGS})


PREFERENCE_FLAGS = tuple(field.name for field in fields(PreferenceFlags))


@dataclass(frozen=True, slots=True)
class PreferencesUpdate:
    """A change of preferences. None leaves a field unchanged."""

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
    """One row of `list_recipient_profiles`."""

    recipient_id: str
    source: str | None
    dm_enabled: bool
    payment_notifications: bool
    recovery_notifications: bool
    antinuke_notifications: bool
    marketing_notifications: bool
    night_consent_at: datetime | None
    decided_by: str
    unhealthy: list[str]

    def to_profile(self) -> RecipientProfile:
        columns: dict[str, Any] = {
            **asdict(self),
            "unhealthy": frozenset(map(NotificationChannel, self.unhealthy)),
            "decided_by": PreferencesOrigin(self.decided_by),
        }
        del columns["recipient_id"], columns["source"]
        return RecipientProfile(**columns)


Recipient = tuple[str, str | None]
"""A recipient id, and the service that sends, whose asserted links apply."""


async def load_recipient_profiles(tx: Tx, recipients: Iterable[Recipient]) -> dict[Recipient, RecipientProfile]:
    """Return the profile of each recipient, in one statement. Unknown recipients have the defaults."""
    pairs = [*{*recipients}]
    rows = await tx.all(
        RecipientProfileRow,
        Q.list_recipient_profiles,
        ids=[recipient for recipient, _ in pairs],
        sources=[source for _, source in pairs],
    )
    return {(row.recipient_id, row.source): row.to_profile() for row in rows}


async def load_preferences(tx: Tx, owner: PreferencesOwner) -> Preferences:
    """Return a person's preferences, or the defaults. Never writes."""
    if isinstance(owner, UUID):
        return await tx.maybe(Preferences, Q.get_preference, user=owner) or Preferences(owner, None)
    return await tx.maybe(Preferences, Q.get_person, discord=owner) or Preferences(None, owner)


async def update_preferences(
    tx: Tx, owner: PreferencesOwner, update: PreferencesUpdate, actor: Actor, *, reason: str | None = None
) -> Preferences:
    """Change a person's preferences, and record the change in the audit log, with the reason of an operator.

    Entry points check who gives night consent: the person, or an operator with a reason; never a service.
    For a linked person both tables are written, so that the preferences outlive the user's registration.
    """
    if update == PreferencesUpdate():
        return await load_preferences(tx, owner)
    if update.locale is not None:
        check_locale(update.locale)
    before = await _lock_preferences(tx, owner)
    flags = asdict(before.flags) | dict(update.flags)
    try:
        if before.discord_id is not None:
            consent, locale = update.night_consent, update.locale
            await tx.run(Q.upsert_person, discord=before.discord_id, consent=consent, locale=locale, **flags)
        elif update.night_consent is not None or update.locale is not None:
            field = "locale" if update.night_consent is None else "night_consent"
            raise Invalid.of_field(field, "requires a linked Discord account")
        if before.user_id is not None:
            await tx.run(Q.upsert_preference, user=before.user_id, **flags)
    except ForeignKeyViolation:
        raise NotFound("No such user") from None
    except CheckViolation:
        raise Invalid.of_field("locale", LOCALE_RULE) from None
    changes: dict[str, Any] = dict(update.flags)
    if update.night_consent is not None:
        changes["night_consent"] = update.night_consent
    if reason is not None:
        changes["reason"] = reason
    await record_action(tx, actor, "preferences.changed", person_pseudonym(str(owner)), **changes)
    return await load_preferences(tx, owner)


async def link_discord_account(
    tx: Tx, discord_id: str, user_id: UUID, actor: Actor, *, reason: str | None = None
) -> Preferences:
    """Link a Discord account to a registered user. A flag that is off in either place stays off.

    Entry points check that both ends are proven: by the person, or by an operator with a reason. The id of a registered
    user is refused as an account: the other user would read the notifications of that one.
    """
    if isinstance(parse_preferences_owner(discord_id), UUID):
        raise Invalid.of_field("discord_id", "must be a Discord user id, not the id of a registered user")
    user = await _lock_preferences(tx, user_id)
    person = await _lock_preferences(tx, discord_id)
    if person.user_id not in {None, user_id}:
        raise Conflict("The Discord account is linked to another user")
    if user.discord_id not in {None, discord_id}:
        raise Conflict("The user is linked to another Discord account")
    flags = {name: getattr(person, name) and getattr(user, name) for name in PREFERENCE_FLAGS}
    try:
        await tx.run(Q.upsert_person, discord=discord_id, consent=None, locale=None, **flags)
        if person.user_id is None:
            await tx.run(Q.link_person, discord=discord_id, user=user_id, by=actor.name)
        await tx.run(Q.upsert_preference, user=user_id, **flags)
    except ForeignKeyViolation:
        raise NotFound("No such user") from None
    except UniqueViolation:
        raise Conflict("The user is linked to another Discord account") from None
    if person.user_id is None:
        details = {"user": str(user_id)} | ({} if reason is None else {"reason": reason})
        await record_action(tx, actor, "preferences.linked", person_pseudonym(discord_id), **details)
    return await load_preferences(tx, discord_id)


async def unlink_discord_account(tx: Tx, discord_id: str, actor: Actor, *, reason: str | None = None) -> Preferences:
    """Undo a link. Both sides keep the preferences they had together, so what was off stays off."""
    user_id = (await load_preferences(tx, discord_id)).user_id
    if user_id is not None:  # locked first, as in every function
        await _lock_preferences(tx, user_id)
    person = await _lock_preferences(tx, discord_id)
    if person.user_id is None:
        raise NotFound("The Discord account is not linked to a user")
    if person.user_id != user_id:
        raise RetryableError("the account was linked to another user concurrently")
    await tx.run(Q.upsert_person, discord=discord_id, consent=None, locale=None, **asdict(person.flags))
    await tx.run(Q.unlink_person, discord=discord_id)
    details = {"user": str(user_id)} | ({} if reason is None else {"reason": reason})
    await record_action(tx, actor, "preferences.unlinked", person_pseudonym(discord_id), **details)
    return await load_preferences(tx, discord_id)


def check_reason(reason: str) -> str:
    """The reason of an operator, for the audit log."""
    if not (reason.strip() and reason.isprintable() and len(reason) <= MAX_REASON_LENGTH):
        raise Invalid.of_field("reason", f"must be one line of at most {MAX_REASON_LENGTH} characters")
    return reason.strip()


def parse_preferences_owner(person_id: str) -> PreferencesOwner:
    """A UUID is the id of a registered user; a Discord id never is one."""
    try:
        return UUID(person_id)
    except ValueError:
        return person_id


async def _lock_preferences(tx: Tx, owner: PreferencesOwner) -> Preferences:
    """Load preferences and lock them until the transaction ends.

    The user is locked before the Discord account, always in this order, to avoid deadlocks.
    """
    kind = "preferences of user" if isinstance(owner, UUID) else "preferences of person"
    await tx.run(Q.lock_owner, kind=kind, owner=str(owner))
    preferences = await load_preferences(tx, owner)
    if isinstance(owner, UUID) and preferences.discord_id is not None:
        await tx.run(Q.lock_owner, kind="preferences of person", owner=preferences.discord_id)
        return await load_preferences(tx, owner)
    return preferences
