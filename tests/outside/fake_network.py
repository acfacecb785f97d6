"""A fake network: public addresses that lead to loopback, a resolver, and a certificate authority."""

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from httpcore2 import SOCKET_OPTION, AnyIOBackend, AsyncNetworkBackend, AsyncNetworkStream, ConnectTimeout

from pabal.outside.ssrf import AllowedOrigins

LOOPBACK = "127.0.0.1"
ALLOWED_ORIGINS = AllowedOrigins.of(["http://127.0.0.1", "https://127.0.0.1", "http://hooks.house"])
"""The origins that the operator allows."""


class FakeNetwork(AsyncNetworkBackend):
    """Opens real connections: an address in `ports` leads to that port on loopback, any other to itself."""

    def __init__(self, ports: Mapping[str, int], silent: Iterable[str] = ()) -> None:
        self._ports = ports
        self._silent = {*silent}
        self._network = AnyIOBackend()
        self.connections: list[tuple[str, int]] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        self.connections.append((host, port))
        if host in self._silent:
            try:
                async with asyncio.timeout(timeout):
                    await asyncio.Event().wait()
            except TimeoutError as error:
                raise ConnectTimeout(error) from error
        destination = (LOOPBACK, self._ports[host]) if host in self._ports else (host, port)
        return await self._network.connect_tcp(*destination, timeout, local_address, socket_options)


class Resolver:
    """Returns its answers in turn, the last one repeatedly, and records the requested hosts."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = answers
        self.requested_hosts: list[str] = []

    async def __call__(self, host: str, _port: int) -> list[str]:
        self.requested_hosts.append(host)
        return self._answers[min(len(self.requested_hosts), len(self._answers)) - 1]


class Authority:
    """Signs certificates for clients that trust it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = generate_private_key(SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an authority")])
        builder = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        self.certificate = builder.sign(self._key, hashes.SHA256())

    def trust(self) -> ssl.SSLContext:
        """The TLS context of a client that trusts this authority."""
        return ssl.create_default_context(cadata=self.certificate.public_bytes(Encoding.PEM).decode())

    def server(self, *names: str) -> ssl.SSLContext:
        """The TLS context of a server with these names."""
        key = generate_private_key(SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        signed = self._builder(subject, key).add_extension(alternatives, critical=False)
        path = self._folder / f"{names[0]}.pem"
        path.write_bytes(
            signed.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
            + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(path)
        return context

    def _builder(self, subject: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
        )
