"""Where the server listens, and as whom to call."""

from dataclasses import dataclass, field

LOOPBACK_HOST = "127.0.0.1"
DATABASE_NAME = "pabal"
OWNER_ROLE = "pabal"  # superuser: migrations, LISTEN
HUB_ROLE = "pabal_hub"  # login role: the work


@dataclass(frozen=True, slots=True)
class RolePasswords:
    """What the two roles log in with."""

    owner: str = field(repr=False)
    hub: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """How to reach a running server."""

    host: str
    port: int
    database: str
    owner_url: str = field(repr=False)
    hub_url: str = field(repr=False)

    @classmethod
    def for_port(cls, port: int, passwords: RolePasswords) -> "ServerAddress":
        place = f"{LOOPBACK_HOST}:{port}/{DATABASE_NAME}"
        return cls(
            LOOPBACK_HOST,
            port,
            DATABASE_NAME,
            owner_url=f"postgresql://{OWNER_ROLE}:{passwords.owner}@{place}",
            hub_url=f"postgresql://{HUB_ROLE}:{passwords.hub}@{place}",
        )
