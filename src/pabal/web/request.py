"""The context of a request: its id, the client's address, and its connection."""

import asyncio
import ipaddress
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from pabal.core.actor import Actor
from pabal.core.errors import Invalid

MAX_USER_AGENT = 200
AUTHENTICATED_EXTENSION = "pabal.authenticated"
"""ASGI extension: a function to call when a request on this connection has been authenticated."""
AwaitedT = TypeVar("AwaitedT")
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class IndexedHeaders(Headers):
    """The headers of a request in a dict, because every guard looks for some. Of repeated ones, the first counts."""

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        self._index = dict(reversed(raw))

    def get(self, key: str, default: Any = None) -> Any:
        value = self._index.get(encode_header_name(key))
        return default if value is None else value.decode("latin-1")

    def __getitem__(self, key: str) -> str:
        return self._index[encode_header_name(key)].decode("latin-1")

    def __contains__(self, key: Any) -> bool:
        return encode_header_name(key) in self._index


@lru_cache(256)
def encode_header_name(name: str) -> bytes:
    return name.lower().encode("latin-1")


class HubRequest(Request):
    """A request with indexed headers."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, receive)
        self._headers = IndexedHeaders(scope["headers"])


class RequestContext(msgspec.Struct, frozen=True):
    """What the hub knows about a request besides its content."""

    id: str
    client_ip: str
    user_agent: str
    request: Request

    async def cancel_on_disconnect(self, awaitable: Awaitable[AwaitedT]) -> AwaitedT:
        """Return the result, or cancel the awaitable and raise ClientDisconnect if the client disconnects first."""
        work, disconnect = asyncio.ensure_future(awaitable), asyncio.ensure_future(self._wait_for_disconnect())
        try:
            await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise ClientDisconnect
        finally:
            work.cancel()
            disconnect.cancel()
            await asyncio.gather(work, disconnect, return_exceptions=True)

    async def _wait_for_disconnect(self) -> None:
        """After the body, the only message a client can send is its disconnect."""
        while (await self.request.receive())["type"] != "http.disconnect":
            continue

    def actor(self, name: str) -> Actor:
        """The caller as the audit log records it, under this name."""
        return Actor(
            name, self.client_ip if is_ip_address(self.client_ip) else None, self.user_agent[:MAX_USER_AGENT], self.id
        )


def mark_authenticated(request: Request) -> None:
    """Tell the server that the client has authenticated. Its connection no longer counts as anonymous."""
    extensions = request.scope.get("extensions")
    if extensions and AUTHENTICATED_EXTENSION in extensions:
        extensions[AUTHENTICATED_EXTENSION]()


def client_address(scope: Any, trusted: Sequence[IpNetwork]) -> str:
    """The client's address: the socket's peer, or the address that a trusted proxy forwards.

    X-Forwarded-For is read from the right, past trusted proxies; the first other address is the client.
    """
    peer: str = scope["client"][0] if scope.get("client") else ""
    if not is_trusted_proxy(peer, trusted):
        return peer
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    hops = [hop.strip() for value in values for hop in value.split(",") if hop.strip()]
    for hop in reversed(hops):
        if not is_ip_address(hop):
            return peer
        if not is_trusted_proxy(hop, trusted):
            return hop
    real = next((value.decode("latin-1").strip() for name, value in scope["headers"] if name == b"x-real-ip"), "")
    if not hops and is_ip_address(real):
        return real
    return hops[0] if hops else peer


def is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def parse_networks(networks: Sequence[str]) -> list[IpNetwork]:
    return [ipaddress.ip_network(network, strict=False) for network in networks]


def is_trusted_proxy(address: str, trusted: Sequence[IpNetwork]) -> bool:
    if not trusted or not is_ip_address(address):
        return False
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in trusted if parsed.version == network.version)


NUL_MESSAGE = "contains a NUL character, which PostgreSQL cannot store"
ESCAPED_NUL, ESCAPED_BACKSLASH = b"\\u0000", b"\\\\"


def find_nul_field(body: bytes, default: str) -> str | None:
    """The top-level field that contains a NUL, `default` if none can be named, None if there is no NUL."""
    if not has_escaped_nul(body):
        return None
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return default
    return next((name for name, value in fields.items() if has_escaped_nul(bytes(value))), default)


def has_escaped_nul(text: bytes) -> bool:
    """Whether JSON text contains an escaped NUL. After an escaped backslash, `u0000` is plain text."""
    return ESCAPED_NUL in text and ESCAPED_NUL in text.replace(ESCAPED_BACKSLASH, b"")


MAX_QUERY_BYTES = 8192
MAX_QUERY_FIELDS = 100


def parse_query_pairs(request: Request) -> list[tuple[str, str]]:
    """The query parameters in order. A query string that no page or client of ours sends is refused unparsed."""
    query: bytes = request.scope["query_string"]
    if len(query) > MAX_QUERY_BYTES:
        raise Invalid.of_field("query", f"is longer than {MAX_QUERY_BYTES} bytes")
    try:
        return parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise Invalid.of_field("query", f"has more than {MAX_QUERY_FIELDS} parameters") from None
