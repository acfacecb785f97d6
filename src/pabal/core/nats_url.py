"""The URL of a NATS server, or several separated by commas: nats://user:password@h1:4222,nats://h2:4222.

tls:// instead of nats:// requires TLS. A user without a password is a token.
"""

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

DEFAULT_NATS_PORT = 4222
NATS_SCHEMES = frozenset({"nats", "tls"})
INVALID_NATS_URL = "must be a URL such as nats://user:password@host:4222; percent-encode : / @ # ? , in a password"


@dataclass(frozen=True, slots=True)
class NatsServer:
    """One server. Its credentials are not part of its text."""

    host: str
    port: int
    tls: bool
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


def parse_nats_urls(text: str) -> tuple[NatsServer, ...]:
    """Parse the servers. The text of a ValueError continues a sentence that begins with the name of the setting."""
    servers = tuple(parse_nats_url(url.strip()) for url in text.split(","))
    if len({server.tls for server in servers}) > 1:
        raise ValueError("must not mix nats:// and tls://")
    return servers


def parse_nats_url(url: str) -> NatsServer:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() not in NATS_SCHEMES:
        raise ValueError("must begin with nats:// or tls://")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, DEFAULT_NATS_PORT if parts.port is None else parts.port
    except ValueError:
        raise ValueError(INVALID_NATS_URL) from None
    if not host or not port or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(INVALID_NATS_URL)
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    is_token = user is not None and password is None
    return NatsServer(
        host=host,
        port=port,
        tls=scheme.lower() == "tls",
        user=None if is_token else user,
        password=password,
        token=user if is_token else None,
    )
