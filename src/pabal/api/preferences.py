"""Preferences: which notifications a person wants. For the person, or for a service with `people:write`."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from pabal.api.people import PersonId
from pabal.audit.pseudonym import person_pseudonym
from pabal.core.actor import Actor
from pabal.core.errors import Forbidden, NotFound
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.notifications.people.preferences import (
    Preferences,
    PreferencesOwner,
    PreferencesUpdate,
    load_preferences,
    parse_preferences_owner,
    update_preferences,
)
from pabal.notifications.people.tokens import Person
from pabal.notifications.recipient_forms import LOCALE_FORM
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, ResponseBody, Route

OptionalFlag = bool | UnsetType
Locale = Annotated[str, msgspec.Meta(pattern=rf"^{LOCALE_FORM}$(?!\n)")]


class PreferencesView(ResponseBody, frozen=True):
    """A person's preferences. `night_consent` allows marketing at night. `updated_at` is null for the defaults."""

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
    def of(cls, preferences: Preferences) -> "PreferencesView":
        fields = {name: getattr(preferences, name) for name in cls.__struct_fields__ if name != "night_consent"}
        return cls(night_consent=preferences.night_consent_at is not None, **fields)


class PreferencesBody(RequestBody, frozen=True):
    """The preferences to change. Omitted fields stay unchanged."""

    dm_enabled: OptionalFlag = UNSET
    payment_notifications: OptionalFlag = UNSET
    recovery_notifications: OptionalFlag = UNSET
    antinuke_notifications: OptionalFlag = UNSET
    marketing_notifications: OptionalFlag = UNSET
    night_consent: OptionalFlag = UNSET
    locale: Locale | UnsetType = UNSET

    @property
    def changes(self) -> PreferencesUpdate:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return PreferencesUpdate(**{name: value for name, value in fields.items() if value is not UNSET})


async def get_preferences(hub: Hub, principal: Person | AuthenticatedService, user_id: PersonId) -> PreferencesView:
    """Get a person's preferences, by Discord id or by the id of a registered user. By default everything is on."""
    async with hub.autocommit() as tx:
        return PreferencesView.of(await load_preferences(tx, await resolve_preference_owner(tx, principal, user_id)))


async def put_preferences(
    hub: Hub,
    context: RequestContext,
    principal: Person | AuthenticatedService,
    user_id: PersonId,
    body: PreferencesBody,
) -> PreferencesView:
    """Change a person's preferences. They also apply to notifications that are requested but not sent yet.

    Only the person's own token or cookie gives `night_consent`. A service may withdraw it.
    """
    if isinstance(principal, AuthenticatedService) and body.night_consent is True:
        raise Forbidden("night_consent: only the person gives it, with their own token or on their page")
    async with hub.transaction() as tx:
        preferences = await update_preferences(
            tx,
            await resolve_preference_owner(tx, principal, user_id),
            body.changes,
            preference_actor(context, principal),
        )
    return PreferencesView.of(preferences)


async def resolve_preference_owner(tx: Tx, principal: Person | AuthenticatedService, user_id: str) -> PreferencesOwner:
    """Return the owner of the preferences. For a person, anyone but themselves does not exist."""
    owner = parse_preferences_owner(user_id)
    if isinstance(principal, AuthenticatedService) or owner in {principal.id, principal.user_id}:
        return owner
    if isinstance(owner, UUID) and (await load_preferences(tx, principal.id)).user_id == owner:
        return owner
    raise NotFound("No such person")


def preference_actor(context: RequestContext, principal: Person | AuthenticatedService) -> Actor:
    return context.actor(
        principal.service if isinstance(principal, AuthenticatedService) else person_pseudonym(principal.id)
    )


ROUTES = tuple(
    Route(
        method,
        "/v1/preferences/{user_id}",
        handler,
        permission=Permission.WRITE_PEOPLE,
        person_auth=True,
        cross_origin=True,
        may_raise=(NotFound,),
        hide_path=True,
        tag="notifications",
    )
    for method, handler in (("GET", get_preferences), ("PUT", put_preferences))
)
