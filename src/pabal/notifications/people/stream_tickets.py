"""Stream tickets: each opens one stream of a person's toasts, for a browser's EventSource, which sends no headers."""

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pabal.core.errors import Unauthenticated
from pabal.db.errors import ForeignKeyViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.people.tokens import Person, hash_person_token

Q = load_queries(__file__)

STREAM_TICKET_PREFIX = "pbt_"
STREAM_TICKET_LIFETIME = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class StreamTicket:
    """A new ticket. The plain ticket is not stored."""

    ticket: str = field(repr=False)
    expires_at: datetime


async def issue_stream_ticket(tx: Tx, person: Person, origin: str) -> StreamTicket:
    """Issue a ticket for one stream, to a page of this origin. The stream ends with the person's token."""
    ticket = STREAM_TICKET_PREFIX + secrets.token_urlsafe(32)
    try:
        expires_at = await tx.value(
            Q.insert_ticket,
            ticket_hash=hash_person_token(ticket),
            token_hash=person.token_hash,
            origin=origin,
            life=STREAM_TICKET_LIFETIME,
        )
    except ForeignKeyViolation:  # revoked since the request was authenticated
        raise Unauthenticated("The token is unknown or has expired") from None
    return StreamTicket(ticket, expires_at)


async def use_stream_ticket(tx: Tx, ticket: str, origin: str) -> Person:
    """Return the owner of a ticket, and delete it. Pages of other origins can neither use nor delete it."""
    person = await tx.maybe(Person, Q.use_ticket, ticket_hash=hash_person_token(ticket), origin=origin)
    if person is None:
        raise Unauthenticated("The ticket is unknown, used or expired")
    return person


async def purge_stream_tickets(tx: Tx, batch: int) -> int:
    """Delete expired tickets. Return how many."""
    return await tx.run(Q.purge_expired_tickets, batch=batch)
