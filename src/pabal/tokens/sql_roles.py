"""Database roles that publish events and request notifications as a service, from SQL."""

from dataclasses import dataclass
from datetime import datetime

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, NotFound
from pabal.core.event_types import HUB_SERVICE
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.tokens.services import lock_service

Q = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class SqlRole:
    """A database role that may publish and request notifications as a service."""

    service: str
    role: str
    created_at: datetime
    role_exists: bool


async def add_sql_role(tx: Tx, service: str, role: str, actor: Actor) -> bool:
    """Let a database role act as a service in SQL. Returns False if it already may."""
    if service == HUB_SERVICE:
        raise Conflict("No database role acts as the hub")
    await lock_service(tx, service)
    if not await tx.value(Q.database_role_exists, role=role):
        raise NotFound(f"No such database role: {role}")
    if not await tx.run(Q.insert_sql_role, service=service, role=role):
        return False
    await record_action(tx, actor, "service.sql_role_added", service, role=role)
    return True


async def remove_sql_role(tx: Tx, service: str, role: str, actor: Actor) -> None:
    """Take the right to act as a service from a database role. Applies to its next statement."""
    if not await tx.run(Q.delete_sql_role, service=service, role=role):
        raise NotFound(f"{role} does not act as {service}")
    await record_action(tx, actor, "service.sql_role_removed", service, role=role)


async def list_sql_roles(tx: Tx, service: str | None = None) -> list[SqlRole]:
    """The database roles of one service, or of all."""
    return await tx.all(SqlRole, Q.list_sql_roles, service=service)
