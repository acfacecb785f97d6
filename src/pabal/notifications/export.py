"""Export: everything the hub has of one person, in one document."""

from typing import Any

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.alias import alias
from pabal.notifications.erase import holdings

Q = beside(__file__)


async def export(tx: Tx, person: str, by: Actor) -> dict[str, Any]:
    """A person's requests with their attempts, toasts, wishes, addresses and tokens, by their Discord id.

    For the person themselves, or an operator on their behalf. That somebody took it is written down.
    """
    await holdings(tx, person)
    document: dict[str, Any] = {
        "exported_at": await tx.value(Q.now),
        "person": await tx.value(Q.person, person=person),
        "preferences": await tx.value(Q.preferences, person=person),
        "requests": await tx.column(Q.requests, person=person),
        "toasts": await tx.column(Q.toasts, person=person),
        "addresses": await tx.column(Q.addresses, person=person),
        "tokens": await tx.column(Q.tokens, person=person),
        "deeds": await tx.column(Q.deeds, alias=alias(person)),
    }
    await did(tx, by, "person.exported", alias(person))
    return document
