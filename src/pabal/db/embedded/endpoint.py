"""Where the server listens, and as whom to call."""

from dataclasses import dataclass, field

HOST = "127.0.0.1"
DATABASE = "pabal"
OWNER = "pabal"  # superuser: migrations, LISTEN
HUB = "pabal_hub"  # login role: the work


@dataclass(frozen=True, slots=True)
class Passwords:
    """What the two roles log in with."""

    owner: str = field(repr=False)
    hub: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to reach a running server."""

    host: str
    port: int
    database: str
    owner_url: str = field(repr=False)
    hub_url: str = field(repr=False)

    @classmethod
    def at(cls, port: int, passwords: Passwords) -> "Endpoint":
        place = f"{HOST}:{port}/{DATABASE}"
        return cls(
            HOST,
            port,
            DATABASE,
            owner_url=f"postgresql://{OWNER}:{passwords.owner}@{place}",
            hub_url=f"postgresql://{HUB}:{passwords.hub}@{place}",
        )
