"""Erase: leave nothing of a person behind."""

from dataclasses import asdict, dataclass

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.alias import alias
from pabal.notifications.toasts import tell

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Holdings:
    """How many rows hold something of a person. `others`: wishes, addresses and tokens."""

    requests: int
    toasts: int
    others: int

    @property
    def rows(self) -> int:
        return self.requests + self.toasts + self.others


async def holdings(tx: Tx, person: str) -> Holdings:
    """What erasing them would take away."""
    found = await tx.one(Holdings, Q.holdings, person=person)
    if not found.rows:
        raise NotFound("there is no such person")
    return found


async def erase(tx: Tx, person: str, by: Actor) -> Holdings:
    """Take away everything the hub has of a person, by their Discord id; what that was.

    For the person themselves, or an operator on their behalf. What waits for them is not sent; what a worker holds this
    moment may still arrive at Discord. Their open streams end. A registered user stays one, with the preferences of
    somebody who never said anything. The audit log keeps what was done, under the person's alias.
    """
    gone = await holdings(tx, person)
    requests = await tx.column(Q.hold_requests, person=person)
    await tx.run(Q.requests, requests=requests)
    for query in (Q.alarms, Q.limits, Q.preferences, Q.person, Q.addresses, Q.tokens):
        await tx.run(query, person=person)
    tell(tx, person)
    await did(tx, by, "person.erased", alias(person), **asdict(gone))
    return gone
