"""Check that every event names services that exist.

A trigger checks the names when events are published, without a foreign key: services are never deleted, so no lock is
needed. Only a superuser who switches triggers off can break this.
"""

from dataclasses import dataclass

from pabal.core.log import get_logger
from pabal.db.queries import load_queries
from pabal.db.tx import Tx

Q = load_queries(__file__)
log = get_logger()


@dataclass(frozen=True, slots=True)
class UnknownService:
    name: str


async def check_service_names(tx: Tx, batch: int) -> int:
    """Log the names of services that events carry and that do not exist; return how many there are."""
    services = [service.name for service in await tx.all(UnknownService, Q.find_unknown_services, limit=batch)]
    if services:
        log.error("events name unknown services", services=services, advice="register them with `pabal service add`")
    return len(services)
