"""The actor of an operation, as the audit log and the tables record it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Actor:
    """A service, an operator, a user of the command line, or the hub itself."""

    name: str
    client_ip: str | None = None
    user_agent: str | None = None
    request_id: str | None = None


HUB_ACTOR = Actor("hub")
ANONYMOUS = "anonymous"
"""The name of an actor that is not authenticated."""
