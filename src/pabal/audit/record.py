"""Write audit entries, in the transaction of the action."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pabal.core.actor import Actor
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An action of an actor on a subject. It contains ids and no message text, because it cannot be deleted."""

    actor: str
    action: str
    subject: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    client_ip: str | None = None
    request_id: str | None = None


async def record_audit_entry(tx: Tx, entry: AuditEntry) -> None:
    """Write an entry in the caller's transaction."""
    await tx.run(
        Q.insert_entry,
        actor=entry.actor,
        action=entry.action,
        subject=entry.subject,
        details=dict(entry.details),
        client_ip=entry.client_ip or None,  # empty for a socket without a peer
        request_id=entry.request_id,
    )


async def record_action(tx: Tx, actor: Actor, action: str, subject: str | None, **details: Any) -> None:
    """Write an entry with the actor's address and request id."""
    await record_audit_entry(tx, AuditEntry(actor.name, action, subject, details, actor.client_ip, actor.request_id))
