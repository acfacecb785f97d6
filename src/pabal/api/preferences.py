"""Preferences: what a person wants to be told, and where. For the person, or for a service that sends."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from pabal.api.people import PersonId
from pabal.audit.pseudonym import person_pseudonym
from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.notifications.people.preferences import (
    Preferences,
    PreferencesOwner,
    PreferencesUpdate,
    load_preferences,
    update_preferences,
)
from pabal.notifications.people.tokens import Person
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, ResponseBody, Route

OptionalFlag = bool | UnsetType
Locale = Annotated[str, msgspec.Meta(pattern=r"^[a-z]{2}(-[A-Z]{2})?$")]


class PreferencesView(ResponseBody, frozen=True):
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
    def of(cls, preference: Preferences) -> "PreferencesView":
        said = {name: getattr(preference, name) for name in cls.__struct_fields__ if name != "night_consent"}
        return cls(night_consent=preference.night_consent_at is not None, **said)


class PreferencesBody(RequestBody, frozen=True):
    """What shall be otherwise; what is left out stays."""

    dm_enabled: OptionalFlag = UNSET
    payment_notifications: OptionalFlag = UNSET
    recovery_notifications: OptionalFlag = UNSET
    antinuke_notifications: OptionalFlag = UNSET
    marketing_notifications: OptionalFlag = UNSET
    night_consent: OptionalFlag = UNSET
    locale: Locale | UnsetType = UNSET

    @property
    def changes(self) -> PreferencesUpdate:
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        return PreferencesUpdate(**{name: value for name, value in said.items() if value is not UNSET})


async def get_preferences(hub: Hub, principal: Person | AuthenticatedService, user_id: PersonId) -> PreferencesView:
    """What somebody wants to be told: by their Discord id, or as a registered user by theirs. Silence means yes."""
    async with hub.autocommit() as tx:
        return PreferencesView.of(await load_preferences(tx, await resolve_preference_owner(tx, principal, user_id)))


async def put_preferences(
    hub: Hub,
    context: RequestContext,
    principal: Person | AuthenticatedService,
    user_id: PersonId,
    body: PreferencesBody,
) -> PreferencesView:
    """Change what somebody wants to be told. What was asked for already and is not sent yet obeys it too."""
    async with hub.transaction() as tx:
        kept = await update_preferences(
            tx,
            await resolve_preference_owner(tx, principal, user_id),
            body.changes,
            preference_actor(context, principal),
        )
    return PreferencesView.of(kept)


async def resolve_preference_owner(tx: Tx, principal: Person | AuthenticatedService, user_id: str) -> PreferencesOwner:
    """Whose preferences these are. A person has their own; everybody else's are not there."""
    asked = parse_preference_owner(user_id)
    if isinstance(principal, AuthenticatedService) or asked == principal.id:
        return asked
    if isinstance(asked, UUID) and (await load_preferences(tx, principal.id)).user_id == asked:
        return asked
    raise NotFound("there is no such person")


def parse_preference_owner(user_id: str) -> PreferencesOwner:
    """A registered user's id is a UUID, and a Discord id never is."""
    try:
        return UUID(user_id)
    except ValueError:
        return user_id


def preference_actor(context: RequestContext, principal: Person | AuthenticatedService) -> Actor:
    return context.actor(
        principal.service if isinstance(principal, AuthenticatedService) else person_pseudonym(principal.id)
    )


ROUTES = tuple(
    Route(
        method,
        "/v1/preferences/{user_id}",
        handler,
        permission=Permission.SEND,
        person_auth=True,
        may_raise=(NotFound,),
        hide_path=True,
        tag="notifications",
    )
    for method, handler in (("GET", get_preferences), ("PUT", put_preferences))
)
