"""People: a token with which one person sees their own toasts and preferences."""

from datetime import datetime
from typing import Annotated
from urllib.parse import urlencode

from msgspec import Meta

from pabal.api.door import Answer, Door
from pabal.api.visit import Visit
from pabal.notifications import people
from pabal.tokens.permission import Permission
from pabal.tokens.verify import Caller
from pabal.wiring import Hub

PersonId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:@-]{1,64}$")]
"""A Discord user id, which is a request's recipient."""


class PersonToken(Answer, frozen=True):
    """A person's token, shown this once, and the address that swaps it for a cookie in their browser, once."""

    token: str
    url: str
    expires_at: datetime

    def __repr__(self) -> str:
        return "PersonToken(…)"


async def issue_token(hub: Hub, visit: Visit, caller: Caller, id: PersonId) -> PersonToken:  # noqa: A002 the name in the path
    """Make a token for a person, for fifteen minutes. Give it to nobody else: whoever has it sees what is theirs."""
    async with hub.transaction() as tx:
        link = await people.issue(tx, id, visit.by(caller.service))
    return PersonToken(link.token, f"{hub.settings.issuer}/me?{urlencode({'token': link.token})}", link.expires_at)


DOORS = (
    Door(
        "POST",
        "/v1/people/{id}/token",
        issue_token,
        needs=Permission.SEND,
        answers=201,
        discreet=True,
        tag="notifications",
    ),
)
