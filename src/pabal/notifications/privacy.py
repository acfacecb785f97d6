"""Erase: leave nothing of a person behind."""

from dataclasses import asdict, dataclass
from typing import Any

from pabal.audit.pseudonym import person_pseudonym
from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import NotFound
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.toasts.inbox import notify_toast_streams

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class PersonDataCounts:
    """How many rows hold something of a person. `others`: wishes, addresses and tokens."""

    requests: int
    toasts: int
    others: int

    @property
    def total(self) -> int:
        return self.requests + self.toasts + self.others


async def count_person_data(tx: Tx, person_id: str) -> PersonDataCounts:
    """What erasing them would take away."""
    found = await tx.one(PersonDataCounts, Q.count_person_data, person=person_id)
    if not found.total:
        raise NotFound("there is no such person")
    return found


async def erase_person(tx: Tx, person_id: str, actor: Actor) -> PersonDataCounts:
    """Take away everything the hub has of a person, by their Discord id; what that was.

    For the person themselves, or an operator on their behalf. What waits for them is not sent; what a worker holds this
    moment may still arrive at Discord. Their open streams end. A registered user stays one, with the preferences of
    somebody who never said anything. The audit log keeps what was done, under the person's alias.
    """
    gone = await count_person_data(tx, person_id)
    requests = await tx.column(Q.lock_requests, person=person_id)
    await tx.run(Q.delete_requests, requests=requests)
    for query in (
        Q.delete_alerts,
        Q.delete_limits,
        Q.delete_preferences,
        Q.delete_person,
        Q.delete_addresses,
        Q.delete_tokens,
    ):
        await tx.run(query, person=person_id)
    notify_toast_streams(tx, person_id)
    await record_action(tx, actor, "person.erased", person_pseudonym(person_id), **asdict(gone))
    return gone


async def export_person(tx: Tx, person_id: str, actor: Actor) -> dict[str, Any]:
    """A person's requests with their attempts, toasts, wishes, addresses and tokens, by their Discord id.

    For the person themselves, or an operator on their behalf. That somebody took it is written down.
    """
    await count_person_data(tx, person_id)
    document: dict[str, Any] = {
        "exported_at": await tx.value(Q.export_time),
        "person": await tx.value(Q.export_person, person=person_id),
        "preferences": await tx.value(Q.export_preferences, person=person_id),
        "requests": await tx.column(Q.export_requests, person=person_id),
        "toasts": await tx.column(Q.export_toasts, person=person_id),
        "addresses": await tx.column(Q.export_addresses, person=person_id),
        "tokens": await tx.column(Q.export_tokens, person=person_id),
        "deeds": await tx.column(Q.export_audit_entries, alias=person_pseudonym(person_id)),
    }
    await record_action(tx, actor, "person.exported", person_pseudonym(person_id))
    return document
