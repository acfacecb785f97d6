"""Export: everything the hub has of one person, in one document."""

from typing import Any

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.alias import person_pseudonym
from pabal.notifications.erase import count_person_data

Q = load_queries(__file__)


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
