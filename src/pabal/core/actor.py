"""Who does something, and from where: what the audit log and the tables remember of a caller."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Actor:
    """A service, an operator, somebody at a terminal, or the hub itself."""

    name: str
    client_ip: str | None = None
    user_agent: str | None = None
    request_id: str | None = None


HUB_ACTOR = Actor("hub")
