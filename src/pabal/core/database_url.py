"""The URL of a PostgreSQL database, with one host or several, in the forms that libpq and asyncpg accept.

postgresql://user:password@h1:5432,h2:5432/name?target_session_attrs=read-write
postgresql://user:password@/name?host=h1,h2&port=5432,5433
"""

from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

DEFAULT_PORT = 5432
MAX_PORT = 65535
INVALID_URL_REASON = "is invalid; the characters : / @ # ? in a password must be percent-encoded"
LIBPQ_PARAMETERS = frozenset(
    {
        "channel_binding",
        "connect_timeout",
        "fallback_application_name",
        "gssencmode",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "load_balance_hosts",
        "sslcompression",
        "sslsni",
        "tcp_user_timeout",
    }
)
"""Parameters that libpq applies itself. The driver does not know them and would send them to the server."""


@dataclass(frozen=True, slots=True)
class DatabaseHost:
    """One host of a URL: a name, an address, or the directory of a Unix socket."""

    name: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A parsed URL. Without hosts, the driver uses its defaults: PGHOST, or a Unix socket."""

    hosts: tuple[DatabaseHost, ...]
    login: str | None
    driver_url: str = field(repr=False)
    """The URL without its hosts and without parameters that the driver does not know."""
    session_attributes: str | None = None
    """The value of target_session_attrs."""
    host_timeout: timedelta | None = None
    """The value of connect_timeout, which libpq applies to each host."""


def parse_database_url(url: str) -> DatabaseUrl:
    """Parse a URL. The text of a ValueError continues a sentence that begins with the name of the setting."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in {"postgresql", "postgres"} or "://" not in url:
        raise ValueError("must begin with postgresql://")
    try:
        rest, _, query_text = rest.partition("#")[0].partition("?")
        authority, slash, path = rest.partition("/")
        user_info, at, host_list = authority.rpartition("@")
        parameters = dict(parse_qsl(query_text, keep_blank_values=True, strict_parsing=bool(query_text)))
        hosts = split_hosts(host_list) if host_list else hosts_of_parameters(parameters)
    except ValueError:
        raise ValueError(INVALID_URL_REASON) from None
    if "@" in user_info:
        raise ValueError(INVALID_URL_REASON)
    if parameters.get("channel_binding") == "require":
        raise ValueError("cannot require channel binding; remove channel_binding=require")
    omitted = LIBPQ_PARAMETERS | ({"host", "port"} if hosts else frozenset[str]())
    query = urlencode({name: text for name, text in parameters.items() if name not in omitted}, quote_via=quote)
    login = unquote(user_info.partition(":")[0]) or parameters.get("user")
    return DatabaseUrl(
        hosts=hosts,
        login=login or None,
        driver_url=f"postgresql://{user_info}{at}{slash}{path}" + (f"?{query}" if query else ""),
        session_attributes=parameters.get("target_session_attrs"),
        host_timeout=parse_host_timeout(parameters.get("connect_timeout")),
    )


def split_hosts(host_list: str) -> tuple[DatabaseHost, ...]:
    return tuple(parse_database_host(unquote(text)) for text in host_list.split(","))


def parse_database_host(text: str, port: str = "") -> DatabaseHost:
    """Parse `name`, `name:port`, `[address]:port` or a directory."""
    if text.startswith("/"):
        return DatabaseHost(text, parse_port(port))
    if text.startswith("["):
        name, bracket, own_port = text[1:].partition("]")
        if not bracket or (own_port and not own_port.startswith(":")):
            raise ValueError(text)
        return DatabaseHost(name, parse_port(own_port[1:] or port))
    name, _, own_port = text.partition(":")
    return DatabaseHost(name or "localhost", parse_port(own_port or port))


def parse_port(text: str) -> int:
    port = int(text) if text else DEFAULT_PORT
    if not 0 < port <= MAX_PORT:
        raise ValueError(text)
    return port


def hosts_of_parameters(parameters: dict[str, str]) -> tuple[DatabaseHost, ...]:
    """The hosts of `?host=h1,h2&port=5432,5433`. One port stands for all hosts."""
    if not parameters.get("host"):
        return ()
    names, ports = parameters["host"].split(","), parameters.get("port", "").split(",")
    if len(ports) == 1:
        ports *= len(names)
    return tuple(parse_database_host(name, port) for name, port in zip(names, ports, strict=True))


def parse_host_timeout(text: str | None) -> timedelta | None:
    try:
        seconds = int(text or 0)
    except ValueError:
        raise ValueError("is invalid; connect_timeout must be a number of seconds") from None
    return timedelta(seconds=seconds) if seconds > 0 else None


def split_password(url: str) -> tuple[str, str | None]:
    """Remove the password from a URL: every user of the machine can read arguments with `ps`."""
    parts = urlsplit(url)
    user_info, at, host = parts.netloc.rpartition("@")
    query = parse_qsl(parts.query, keep_blank_values=True)
    other_query = urlencode([(name, value) for name, value in query if name != "password"])
    stripped = parts._replace(netloc=user_info.partition(":")[0] + at + host, query=other_query).geturl()
    password = parts.password if parts.password is None else unquote(parts.password)
    return stripped, password or dict(query).get("password")
