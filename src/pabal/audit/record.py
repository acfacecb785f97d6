"""Write down who did what, together with the deed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pabal.core.actor import Actor
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Somebody did something to something. It names ids and holds no message text: nobody can take it back out."""

    actor: str
    action: str
    subject: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    client_ip: str | None = None
    request_id: str | None = None


async def record_audit_entry(tx: Tx, entry: AuditEntry) -> None:
    """Write the deed into the log of the caller's transaction: what is rolled back was not done."""
    await tx.run(
        Q.insert_entry,
        actor=entry.actor,
        action=entry.action,
        subject=entry.subject,
        details=dict(entry.details),
        client_ip=entry.client_ip or None,  # a socket without a peer has an empty one
        request_id=entry.request_id,
    )


async def record_action(tx: Tx, actor: Actor, action: str, subject: str | None, **details: Any) -> None:
    """Write down what an actor did, with where they did it from."""
    await record_audit_entry(tx, AuditEntry(actor.name, action, subject, details, actor.client_ip, actor.request_id))
