"""SSRF protection: which URLs and addresses the hub connects to."""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.core.errors import Invalid
from pabal.outside.dns import SystemResolver
from pabal.outside.ssrf import (
    MAX_URL_LENGTH,
    AllowedOrigins,
    Destination,
    is_public_address,
    parse_destination,
    resolve_host,
)

pytestmark = pytest.mark.anyio

NO_ORIGINS = AllowedOrigins()

BAD_URLS = [
    # not https
    "http://hooks.example.org/",
    "ftp://hooks.example.org/",
    "file:///etc/passwd",
    "gopher://hooks.example.org/",
    "javascript:alert(1)",
    "//hooks.example.org/",
    "hooks.example.org",
    "https:hooks.example.org",
    "https:/hooks.example.org/",
    "",
    # no host, or a disguised one
    "https://",
    "https:///path",
    "https://:443/",
    "https://user@hooks.example.org/",
    "https://user:password@hooks.example.org/",
    "https://hooks.example.org@127.0.0.1/",
    "https://@hooks.example.org/",
    "https://hooks.example.org\\@127.0.0.1/",
    "https://hooks.example.org\\.evil.example/",
    "https://hooks.example.org#@127.0.0.1/",
    "https://hooks.example.org/#fragment",
    "https://hooks.example.org./",
    "https://127.0.0.1./",
    "https://.hooks.example.org/",
    "https://hooks..example.org/",
    "https://-hooks.example.org/",
    "https://hooks-.example.org/",
    f"https://{'a' * 64}.example.org/",
    f"https://{'a.' * 127}org/",
    "https://hooks%2eexample.org/",
    "https://127.0.0.1%2f@hooks.example.org/",
    "https://*.example.org/",
    # characters
    "https://hooks.example.org/a b",
    " https://hooks.example.org/",
    "https://hooks.example.org/\r\nHost: evil",
    "https://hooks.example.org/\n",
    "https://hooks.example.org/\t",
    "https://hooks.example.org/\x00",
    "https://hooks.example.org/\x7f",
    "https://한국.example/",
    "https://hooks.example.org/한국",
    "https://①②⑦.⓪.⓪.①/",
    "https://127。0。0。1/",
    "https://hooks.example.org\u200b/",
    f"https://hooks.example.org/{'a' * MAX_URL_LENGTH}",
    # ports
    "https://hooks.example.org:/",
    "https://hooks.example.org:0/",
    "https://hooks.example.org:65536/",
    "https://hooks.example.org:-1/",
    "https://hooks.example.org:443:443/",
    "https://hooks.example.org:٤٤٣/",
    # an IPv4 address that does not look like one
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://017700000001/",
    "https://127.1/",
    "https://127.0.1/",
    "https://127.0.0.01/",
    "https://0/",
    "https://256.256.256.256/",
    "https://1.2.3.4.5/",
    "https://hooks.example.0x7f/",
    # addresses that are not public
    "https://127.0.0.1/",
    "https://127.255.255.254/",
    "https://0.0.0.0/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.168.1.1/",
    "https://100.64.0.1/",
    "https://100.100.100.200/",
    "https://169.254.169.254/latest/meta-data/",
    "https://168.63.129.16/",
    "https://192.0.0.192/",
    "https://192.0.2.1/",
    "https://192.88.99.1/",
    "https://198.18.0.1/",
    "https://198.51.100.1/",
    "https://203.0.113.1/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://[::]/",
    "https://[::1]/",
    "https://[0:0:0:0:0:0:0:1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::ffff:8.8.8.8]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b::169.254.169.254]/",
    "https://[64:ff9b:1::1]/",
    "https://[2002:7f00:1::]/",
    "https://[2002:a9fe:a9fe::1]/",
    "https://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
    "https://[2001:db8::1]/",
    "https://[3fff::1]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fec0::1]/",
    "https://[ff02::1]/",
    "https://[100::1]/",
    "https://[5f00::1]/",
    "https://[::1/",
    "https://[]/",
    "https://[1.2.3.4]/",
    "https://[::1].example.org/",
    # internal names
    "https://localhost/",
    "https://LOCALHOST/",
    "https://postgres/",
    "https://anything.localhost/",
    "https://printer.local/",
    "https://metadata.google.internal/",
    "https://router.home.arpa/",
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_forbidden_url_is_refused(url: str) -> None:
    with pytest.raises(Invalid) as invalid:
        parse_destination(url, NO_ORIGINS)

    assert [error.field for error in invalid.value.errors] == ["url"]
    assert "example" not in str(invalid.value)  # a URL may be a secret: no error quotes it


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://hooks.example.org", ("https", "hooks.example.org", 443, "/")),
        ("HTTPS://Hooks.Example.ORG/In?a=b%20c", ("https", "hooks.example.org", 443, "/In?a=b%20c")),
        ("https://hooks.example.org?a", ("https", "hooks.example.org", 443, "/?a")),
        ("https://hooks.example.org:8443/a@b:c", ("https", "hooks.example.org", 8443, "/a@b:c")),
        ("https://xn--3e0b707e.example/", ("https", "xn--3e0b707e.example", 443, "/")),
        ("https://a_b.example.org/", ("https", "a_b.example.org", 443, "/")),
        ("https://8.8.8.8/", ("https", "8.8.8.8", 443, "/")),
        ("https://[2606:4700:0:0::1111]:444/", ("https", "2606:4700::1111", 444, "/")),
        ("https://[64:ff9b::8.8.8.8]/", ("https", "64:ff9b::808:808", 443, "/")),
    ],
)
def test_a_public_url_is_accepted(url: str, expected: tuple[str, str, int, str]) -> None:
    assert parse_destination(url, NO_ORIGINS) == Destination(*expected, allowed=False)


@pytest.mark.parametrize(
    ("host", "port", "authority"),
    [
        ("hooks.example.org", 443, "hooks.example.org"),
        ("hooks.example.org", 80, "hooks.example.org:80"),
        ("::1", 443, "[::1]"),
        ("::1", 9000, "[::1]:9000"),
    ],
)
def test_the_authority_has_the_port_of_the_url(host: str, port: int, authority: str) -> None:
    assert Destination("https", host, port, "/", allowed=False).authority == authority


ALLOWED = AllowedOrigins.of(["http://127.0.0.1", "https://Receiver:9000", "http://[0::1]:80/"])


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://127.0.0.1/", True),
        ("http://127.0.0.1:9000/x", True),
        ("https://127.0.0.1/", False),
        ("http://127.0.0.2/", False),
        ("https://receiver:9000/", True),
        ("https://receiver:9001/", False),
        ("https://receiver/", False),
        ("http://receiver:9000/", False),
        ("http://[::1]/", True),
        ("http://[::1]:81/", False),
        ("http://127.0.0.1@10.0.0.1/", False),
        ("http://127.0.0.1.evil.example/", False),
        ("http://2130706433/", False),
        ("http://127.0.0.1./", False),
        ("http://user@127.0.0.1/", False),
    ],
)
def test_an_origin_is_allowed_exactly(url: str, allowed: bool) -> None:
    if allowed:
        assert parse_destination(url, ALLOWED).allowed
    else:
        with pytest.raises(Invalid):
            parse_destination(url, ALLOWED)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_that_python_calls_private_is_not_public(address: IPv4Address) -> None:
    """Compare with the lists of Python: ours may be stricter, never looser."""
    if address.is_private or address.is_multicast or address.is_reserved or address.is_loopback:
        assert not is_public_address(address)


@given(st.ip_addresses(v=6) | st.ip_addresses(network=IPv6Network("2000::/3")))
def test_an_ipv6_address_that_python_calls_private_is_not_public(address: IPv6Address) -> None:
    if not address.is_global or address.ipv4_mapped or address.sixtofour or address.teredo:
        assert not is_public_address(address) or address in IPv6Network("64:ff9b::/96")


@given(st.ip_addresses(v=4))
def test_a_nat64_address_is_checked_as_its_ipv4_address(address: IPv4Address) -> None:
    wrapped = IPv6Address(int(IPv6Address("64:ff9b::")) + int(address))

    assert is_public_address(wrapped) == is_public_address(address)


@pytest.mark.parametrize("network", ["8.0.0.0/9", "172.32.0.0/11", "100.128.0.0/9", "168.63.129.17/32"])
def test_addresses_next_to_private_ranges_are_public(network: str) -> None:
    assert all(is_public_address(IPv4Network(network)[end]) for end in (0, -1))


async def test_one_private_address_refuses_the_host() -> None:
    async def mixed(_host: str, _port: int) -> list[str]:
        return ["8.8.8.8", "2606:4700::1111", "10.0.0.1"]

    with pytest.raises(Invalid, match="not public"):
        await resolve_host("hooks.example.org", 443, mixed, allowed=False)

    assert await resolve_host("hooks.example.org", 443, mixed, allowed=True) == [
        ip_address(text) for text in await mixed("", 0)
    ]


async def test_an_address_is_not_looked_up() -> None:
    async def must_not_resolve(_host: str, _port: int) -> list[str]:
        raise AssertionError

    assert await resolve_host("8.8.8.8", 443, must_not_resolve, allowed=False) == [IPv4Address("8.8.8.8")]
    with pytest.raises(Invalid):
        await resolve_host("127.0.0.1", 443, must_not_resolve, allowed=False)


async def test_a_name_without_addresses_does_not_resolve() -> None:
    async def empty(_host: str, _port: int) -> list[str]:
        return []

    with pytest.raises(socket.gaierror):
        await resolve_host("hooks.example.org", 443, empty, allowed=False)


async def test_the_system_resolver_resolves_localhost() -> None:
    resolve = SystemResolver().resolve

    assert {*await resolve("localhost", 443)} <= {"127.0.0.1", "::1"}
    with pytest.raises(Invalid, match="not public"):
        await resolve_host("localhost", 443, resolve, allowed=False)
