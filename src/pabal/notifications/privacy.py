"""Privacy: count, erase and export everything the hub stores about a person's notifications."""

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
    """How many rows belong to a person. `others`: preferences, addresses, links and tokens."""

    requests: int
    toasts: int
    others: int

    @property
    def total(self) -> int:
        return self.requests + self.toasts + self.others


async def count_person_data(tx: Tx, person_id: str) -> PersonDataCounts:
    """Count what erasing the person would delete."""
    counts = await tx.one(PersonDataCounts, Q.count_person_data, person=person_id)
    if not counts.total:
        raise NotFound("No such person")
    return counts


async def erase_person(tx: Tx, person_id: str, actor: Actor) -> PersonDataCounts:
    """Delete everything the hub stores about a person, by their Discord id; returns what was deleted.

    For the person, or for an operator on their behalf. Pending notifications are not sent; one that a worker holds may
    still arrive at Discord. Open streams end. A registered user keeps their account, with default preferences. The
    audit log keeps the actions under the person's pseudonym.
    """
    counts = await count_person_data(tx, person_id)
    ids = await tx.column(Q.lock_requests, person=person_id)
    await tx.run(Q.delete_requests, ids=ids)
    for query in (
        Q.delete_alerts,
        Q.delete_limits,
        Q.delete_preferences,
        Q.delete_tokens,
        Q.delete_service_links,
        Q.delete_link_requests,
        Q.delete_person,
        Q.delete_addresses,
    ):
        await tx.run(query, person=person_id)
    notify_toast_streams(tx, person_id)
    await record_action(tx, actor, "person.erased", person_pseudonym(person_id), **asdict(counts))
    return counts


async def export_person(tx: Tx, person_id: str, actor: Actor) -> dict[str, Any]:
    """Export a person's notifications with their attempts, toasts, preferences, addresses and tokens.

    For the person, or for an operator on their behalf. The export is recorded in the audit log.
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
        "service_links": await tx.column(Q.export_service_links, person=person_id),
        "link_requests": await tx.column(Q.export_link_requests, person=person_id),
        "deeds": await tx.column(Q.export_audit_entries, pseudonym=person_pseudonym(person_id)),
    }
    await record_action(tx, actor, "person.exported", person_pseudonym(person_id))
    return document
