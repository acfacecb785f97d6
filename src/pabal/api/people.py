"""People: a token with which one sees their own toasts and preferences; everything of one taken along, or erased."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

from msgspec import Meta

from pabal import limits
from pabal.api.door import Answer, Door
from pabal.api.visit import Visit
from pabal.core.errors import NotFound, TooMany
from pabal.limits import Limit
from pabal.notifications import people
from pabal.notifications.erase import erase
from pabal.notifications.export import export
from pabal.tokens.permission import Permission
from pabal.tokens.verify import Caller
from pabal.wiring import Hub

PersonId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:@-]{1,64}$(?!\n)")]
"""A Discord user id, which is a request's recipient. For Python a line may end before its line break; not for us."""

PER_SERVICE = Limit("person tokens of this service", 600, timedelta(minutes=1))
PER_PERSON = Limit("tokens for this person", 20, timedelta(minutes=10))


class PersonToken(Answer, frozen=True):
    """A person's token, shown this once, and the address that swaps it for a cookie in their browser, once."""

    token: str
    url: str
    expires_at: datetime

    def __repr__(self) -> str:
        return "PersonToken(…)"


class PersonDocument(Answer, frozen=True):
    """Everything the hub has of a person, rows as they are. `deeds` is what the audit log says of them."""

    exported_at: str
    person: dict[str, Any] | None
    preferences: dict[str, Any] | None
    requests: list[dict[str, Any]]
    toasts: list[dict[str, Any]]
    addresses: list[dict[str, Any]]
    tokens: list[dict[str, Any]]
    deeds: list[dict[str, Any]]

    def __repr__(self) -> str:
        return "PersonDocument(…)"


class ErasedView(Answer, frozen=True):
    """How many rows are gone. `others`: wishes, addresses, tokens."""

    requests: int
    toasts: int
    others: int


async def issue_token(hub: Hub, visit: Visit, caller: Caller, id: PersonId) -> PersonToken:  # noqa: A002 the name in the path
    """Make a token for a person, for fifteen minutes. Give it to nobody else: whoever has it sees what is theirs.

    A service gets 600 a minute, and twenty for one person in ten minutes.
    """
    async with hub.autocommit() as tx:
        await limits.take(tx, PER_SERVICE, caller.service)
        await limits.take(tx, PER_PERSON, id)
    async with hub.transaction() as tx:
        link = await people.issue(tx, id, visit.by(caller.service))
    return PersonToken(link.token, f"{hub.settings.issuer}/me?{urlencode({'token': link.token})}", link.expires_at)


async def export_person(hub: Hub, visit: Visit, caller: Caller, id: PersonId) -> PersonDocument:  # noqa: A002 as above
    """Everything the hub has of a person: one document, for them to take along. That it was taken is audited."""
    async with hub.transaction() as tx:
        return PersonDocument(**await export(tx, id, visit.by(caller.service)))


async def erase_person(hub: Hub, visit: Visit, caller: Caller, id: PersonId) -> ErasedView:  # noqa: A002 as above
    """Erase everything the hub has of a person, by their Discord id. What waits for them is not sent.

    The audit log keeps that it was done, under an alias.
    """
    async with hub.transaction() as tx:
        return ErasedView(**asdict(await erase(tx, id, visit.by(caller.service))))


DOORS = (
    Door(
        "POST",
        "/v1/people/{id}/token",
        issue_token,
        needs=Permission.SEND,
        answers=201,
        may_raise=(TooMany,),
        discreet=True,
        tag="notifications",
    ),
    *(
        Door(
            method,
            path,
            handler,
            needs=Permission.ADMIN,
            may_raise=(NotFound,),
            discreet=True,
            tag="notifications",
        )
        for method, path, handler in (
            ("GET", "/v1/people/{id}/export", export_person),
            ("DELETE", "/v1/people/{id}", erase_person),
        )
    ),
)
