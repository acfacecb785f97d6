"""Headers that proxies and tunnels add to the requests they forward."""

from collections.abc import Iterable

from pabal.core.log import get_logger

log = get_logger()

FORWARDING_HEADERS = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"true-client-ip", b"fly-client-ip"}
)
FORWARDING_PREFIXES = (b"x-forwarded-", b"x-original-", b"x-envoy-", b"cf-", b"ngrok-", b"tailscale-")
"""Cloudflare, ngrok and Tailscale end their tunnels on loopback."""


def find_forwarding_header(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The first header that shows that a request was forwarded. Names are in lower case, as in an ASGI scope."""
    for name, _ in headers:
        if name in FORWARDING_HEADERS or name.startswith(FORWARDING_PREFIXES):
            return name.decode("latin-1")
    return None


class UntrustedProxyLog:
    """Remembers the first proxy that forwards requests although no setting trusts it."""

    def __init__(self) -> None:
        self.peer: str | None = None
        """Address of the proxy."""
        self.header = ""

    def observe(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Record and log the peer if the request was forwarded. Only the first one of this process is recorded."""
        if self.peer is not None or not (header := find_forwarding_header(headers)):
            return
        self.peer, self.header = peer, header
        log.warning(
            "proxy not trusted",
            peer=peer,
            header=header,
            advice="set PABAL_TRUSTED_PROXIES to its address; until then all its clients share one address",
        )
