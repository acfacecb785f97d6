"""Preferences: what a person wants to be told, and where. For the person, or for a service that sends."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from pabal.api.door import Answer, Body, Door
from pabal.api.people import PersonId
from pabal.api.visit import Visit
from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.tx import Tx
from pabal.notifications import preferences
from pabal.notifications.alias import alias
from pabal.notifications.people import Person
from pabal.notifications.preferences import Preference, Who, Wish
from pabal.tokens.permission import Permission
from pabal.tokens.verify import Caller
from pabal.wiring import Hub

Flag = bool | UnsetType
Locale = Annotated[str, msgspec.Meta(pattern=r"^[a-z]{2}(-[A-Z]{2})?$")]


class PreferencesView(Answer, frozen=True):
    """What a person wants. `night_consent`: marketing at night too. Who never said anything has no `updated_at`."""

    user_id: UUID | None
    discord_id: str | None
    dm_enabled: bool
    payment_notifications: bool
    recovery_notifications: bool
    antinuke_notifications: bool
    marketing_notifications: bool
    night_consent: bool
    locale: str | None
    updated_at: datetime | None

    @classmethod
    def of(cls, kept: Preference) -> "PreferencesView":
        said = {name: getattr(kept, name) for name in cls.__struct_fields__ if name != "night_consent"}
        return cls(night_consent=kept.night_consent_at is not None, **said)


class PreferencesChange(Body, frozen=True):
    """What shall be otherwise; what is left out stays."""

    dm_enabled: Flag = UNSET
    payment_notifications: Flag = UNSET
    recovery_notifications: Flag = UNSET
    antinuke_notifications: Flag = UNSET
    marketing_notifications: Flag = UNSET
    night_consent: Flag = UNSET
    locale: Locale | UnsetType = UNSET

    @property
    def wish(self) -> Wish:
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        return Wish(**{name: value for name, value in said.items() if value is not UNSET})


async def show_preferences(hub: Hub, who: Person | Caller, user_id: PersonId) -> PreferencesView:
    """What somebody wants to be told: by their Discord id, or as a registered user by theirs. Silence means yes."""
    async with hub.autocommit() as tx:
        return PreferencesView.of(await preferences.get(tx, await known(tx, who, user_id)))


async def change_preferences(
    hub: Hub, visit: Visit, who: Person | Caller, user_id: PersonId, body: PreferencesChange
) -> PreferencesView:
    """Change what somebody wants to be told. What was asked for already and is not sent yet obeys it too."""
    async with hub.transaction() as tx:
        kept = await preferences.put(tx, await known(tx, who, user_id), body.wish, by(visit, who))
    return PreferencesView.of(kept)


async def known(tx: Tx, who: Person | Caller, user_id: str) -> Who:
    """Whose preferences these are. A person has their own; everybody else's are not there."""
    asked = named(user_id)
    if isinstance(who, Caller) or asked == who.id:
        return asked
    if isinstance(asked, UUID) and (await preferences.get(tx, who.id)).user_id == asked:
        return asked
    raise NotFound("there is no such person")


def named(user_id: str) -> Who:
    """A registered user's id is a UUID, and a Discord id never is."""
    try:
        return UUID(user_id)
    except ValueError:
        return user_id


def by(visit: Visit, who: Person | Caller) -> Actor:
    return visit.by(who.service if isinstance(who, Caller) else alias(who.id))


DOORS = tuple(
    Door(
        method,
        "/v1/preferences/{user_id}",
        handler,
        needs=Permission.SEND,
        person=True,
        may_raise=(NotFound,),
        discreet=True,
        tag="notifications",
    )
    for method, handler in (("GET", show_preferences), ("PUT", change_preferences))
)
