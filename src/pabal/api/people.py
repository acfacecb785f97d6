"""People: issue tokens for their own toasts and preferences, export and erase their data."""

from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from msgspec import Meta

from pabal import limits
from pabal.core.errors import NotFound, RateLimited
from pabal.hub import Hub
from pabal.limits import RateLimit
from pabal.notifications.people.links import ServiceLink, assert_service_link, withdraw_service_link
from pabal.notifications.people.preferences import parse_preferences_owner
from pabal.notifications.people.tokens import issue_person_link
from pabal.notifications.privacy import PersonDataCounts, erase_person, export_person
from pabal.notifications.recipient_forms import RECIPIENT_ID_FORM, STORED_RECIPIENT_FORM
from pabal.tokens.permission import Permission
from pabal.tokens.verify import AuthenticatedService
from pabal.web.field_types import TimeText
from pabal.web.request import RequestContext
from pabal.web.route import RequestBody, ResponseBody, Route

PersonId = Annotated[str, Meta(pattern=rf"^{RECIPIENT_ID_FORM}$(?!\n)")]
"""A Discord user id, as in `recipient_id`. The lookahead rejects a trailing newline, which `$` accepts in Python."""
StoredPersonId = Annotated[str, Meta(pattern=rf"^{STORED_RECIPIENT_FORM}$(?!\n)")]

PERSON_TOKENS_PER_SERVICE = RateLimit("person tokens of this service", 600, timedelta(minutes=1))
TOKENS_PER_PERSON = RateLimit("tokens for this person", 20, timedelta(minutes=10))


class PersonTokenView(ResponseBody, frozen=True):
    """A person's token, shown only once, and a URL that exchanges it once for a cookie in their browser."""

    token: str
    url: str
    expires_at: datetime

    def __repr__(self) -> str:
        return "PersonTokenView(…)"


class ServiceLinkBody(RequestBody, frozen=True):
    """The registered user of a Discord account."""

    user_id: UUID


class PersonExportView(ResponseBody, frozen=True):
    """Everything the hub stores about a person, as whole rows. `deeds` are the entries of the audit log."""

    exported_at: TimeText
    person: dict[str, Any] | None
    preferences: dict[str, Any] | None
    requests: list[dict[str, Any]]
    toasts: list[dict[str, Any]]
    addresses: list[dict[str, Any]]
    tokens: list[dict[str, Any]]
    service_links: list[dict[str, Any]]
    link_requests: list[dict[str, Any]]
    deeds: list[dict[str, Any]]

    def __repr__(self) -> str:
        return "PersonExportView(…)"


async def post_person_token(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: PersonId
) -> PersonTokenView:
    """Issue a token for a person, valid for 15 minutes. It gives access to the person's toasts and preferences.

    The id is a Discord user id, or the UUID of a registered user, who can then link their Discord account on the page.

    Limited to 600 tokens per service and minute, and 20 per person and ten minutes.
    """
    person_id = str(parse_preferences_owner(id))  # a UUID has several spellings
    async with hub.autocommit() as tx:
        await limits.consume_rate_limit(tx, PERSON_TOKENS_PER_SERVICE, caller.service)
        await limits.consume_rate_limit(tx, TOKENS_PER_PERSON, person_id)
    async with hub.transaction() as tx:
        link = await issue_person_link(tx, person_id, context.actor(caller.service))
    return PersonTokenView(link.token, f"{hub.settings.issuer}/me?{urlencode({'token': link.token})}", link.expires_at)


async def get_person_export(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: StoredPersonId
) -> PersonExportView:
    """Export everything the hub stores about a person as one document. The export is recorded in the audit log."""
    async with hub.transaction() as tx:
        return PersonExportView(**await export_person(tx, id, context.actor(caller.service)))


async def delete_person(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: StoredPersonId
) -> PersonDataCounts:
    """Erase everything the hub stores about a person, by their Discord id. Pending notifications are not sent.

    The audit log records the erasure under a pseudonym.
    """
    async with hub.transaction() as tx:
        return await erase_person(tx, id, context.actor(caller.service))


async def put_service_link(
    hub: Hub, context: RequestContext, caller: AuthenticatedService, id: PersonId, body: ServiceLinkBody
) -> ServiceLink:
    """Name the registered user of a Discord account, as far as this service knows.

    What this service sends to the account then also follows the user's preferences: what is off in either place is not
    sent. The link gives no access to the person's notifications, and other services do not see it.
    """
    async with hub.transaction() as tx:
        return await assert_service_link(tx, caller.service, id, body.user_id, context.actor(caller.service))


async def delete_service_link(hub: Hub, context: RequestContext, caller: AuthenticatedService, id: PersonId) -> None:
    """Withdraw the link that this service asserted for a Discord account."""
    async with hub.transaction() as tx:
        await withdraw_service_link(tx, caller.service, id, context.actor(caller.service))


ROUTES = (
    *(
        Route(
            method,
            "/v1/people/{id}/user",
            handler,
            permission=Permission.WRITE_PEOPLE,
            status=status,
            may_raise=(NotFound,),
            hide_path=True,
            tag="notifications",
        )
        for method, handler, status in (("PUT", put_service_link, 200), ("DELETE", delete_service_link, 204))
    ),
    Route(
        "POST",
        "/v1/people/{id}/token",
        post_person_token,
        permission=Permission.ISSUE_PERSON_TOKENS,
        status=201,
        may_raise=(NotFound, RateLimited),
        hide_path=True,
        tag="notifications",
    ),
    *(
        Route(
            method,
            path,
            handler,
            permission=Permission.ADMIN,
            may_raise=(NotFound,),
            hide_path=True,
            tag="notifications",
        )
        for method, path, handler in (
            ("GET", "/v1/people/{id}/export", get_person_export),
            ("DELETE", "/v1/people/{id}", delete_person),
        )
    ),
)
