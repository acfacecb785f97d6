"""Write down who did what, together with the deed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pabal.core.actor import Actor
from pabal.db.queries import beside
from pabal.db.tx import Tx

Q = beside(__file__)


@dataclass(frozen=True, slots=True)
class Deed:
    """Somebody did something to something. It names ids and holds no message text: nobody can take it back out."""

    actor: str
    action: str
    subject: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    client_ip: str | None = None
    request_id: str | None = None


async def record(tx: Tx, deed: Deed) -> None:
    """Write the deed into the log of the caller's transaction: what is rolled back was not done."""
    await tx.run(
        Q.record,
        actor=deed.actor,
        action=deed.action,
        subject=deed.subject,
        details=dict(deed.details),
        client_ip=deed.client_ip or None,  # a socket without a peer has an empty one
        request_id=deed.request_id,
    )


async def did(tx: Tx, by: Actor, action: str, subject: str | None, **details: Any) -> None:
    """Write down what an actor did, with where they did it from."""
    await record(tx, Deed(by.name, action, subject, details, by.client_ip, by.request_id))
