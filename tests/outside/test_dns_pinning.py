"""DNS pinning: a connection goes to the address that was checked, not to a later answer of the resolver."""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from outside.fake_network import LOOPBACK, Authority, FakeNetwork, Resolver
from pabal.core.errors import Invalid
from pabal.outside.http import HttpClient, HttpResponse, NotSent, NotSentCause
from pabal.outside.ssrf import AllowedOrigins
from support.receiver import respond_with, run_receiver

pytestmark = pytest.mark.anyio

NO_ORIGINS = AllowedOrigins()
NAME = "hooks.example.org"
PUBLIC, OTHER = "8.8.8.8", "9.9.9.9"
LONG = timedelta(seconds=10)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def test_host_header_and_sni_have_the_name(authority: Authority) -> None:
    requested_names: list[str | None] = []
    tls = authority.server(NAME)
    tls.sni_callback = lambda _socket, name, _context: requested_names.append(name)

    async with run_receiver(tls) as remote:
        world = FakeNetwork({PUBLIC: remote.port})
        async with HttpClient(NO_ORIGINS, lookup=Resolver([PUBLIC]), network=world, tls=authority.trust()) as outside:
            response = await outside.post(f"https://{NAME}/in?a=b", b"{}", {}, time_limit=LONG)

    assert response == HttpResponse(200, {"content-length": "0"}, b"")
    assert world.connections == [(PUBLIC, 443)]
    assert requested_names == [NAME]
    assert (remote.requests[0].headers["host"], remote.requests[0].target) == (NAME, "/in?a=b")


async def test_a_rebound_name_is_not_connected(authority: Authority) -> None:
    """The second answer is a private address with a server on the same port."""
    resolver = Resolver([PUBLIC], [LOOPBACK])
    async with run_receiver(authority.server(NAME)) as remote, run_receiver(authority.server(NAME)) as victim:
        remote.responder = respond_with(headers={"connection": "close"})
        world = FakeNetwork({PUBLIC: remote.port})
        url = f"https://{NAME}:{victim.port}/"
        async with HttpClient(NO_ORIGINS, lookup=resolver, network=world, tls=authority.trust()) as outside:
            first = await outside.post(url, b"1", {}, time_limit=LONG)
            first_lookups = [*resolver.requested_hosts]
            second = await outside.post(url, b"2", {}, time_limit=LONG)

        assert isinstance(first, HttpResponse)
        assert first_lookups == [NAME]
        assert second == NotSent("url: resolves to an address that is not public", NotSentCause.URL)
        assert world.connections == [(PUBLIC, victim.port)]
        assert [request.body for request in remote.requests] == [b"1"]
        assert victim.connections == 0


async def test_a_kept_connection_needs_no_second_lookup(authority: Authority) -> None:
    resolver = Resolver([PUBLIC], [LOOPBACK])
    async with run_receiver(authority.server(NAME)) as remote:
        world = FakeNetwork({PUBLIC: remote.port})
        async with HttpClient(NO_ORIGINS, lookup=resolver, network=world, tls=authority.trust()) as outside:
            for _ in range(3):
                assert isinstance(await outside.post(f"https://{NAME}/", b"", {}, time_limit=LONG), HttpResponse)

    assert (remote.connections, world.connections, resolver.requested_hosts) == (1, [(PUBLIC, 443)], [NAME])


async def test_two_names_at_one_address_share_no_connection(authority: Authority) -> None:
    """A certificate verified for one name is not verified for the other."""
    async with run_receiver(authority.server(NAME, "other.example.org")) as remote:
        world = FakeNetwork({PUBLIC: remote.port})
        async with HttpClient(NO_ORIGINS, lookup=Resolver([PUBLIC]), network=world, tls=authority.trust()) as outside:
            for name in (NAME, "other.example.org"):
                assert isinstance(await outside.post(f"https://{name}/", b"", {}, time_limit=LONG), HttpResponse)

    assert remote.connections == 2


async def test_one_private_address_among_public_ones_refuses_the_host(authority: Authority) -> None:
    world = FakeNetwork({})
    async with HttpClient(
        NO_ORIGINS, lookup=Resolver([PUBLIC, LOOPBACK]), network=world, tls=authority.trust()
    ) as outside:
        response = await outside.post(f"https://{NAME}/", b"", {}, time_limit=LONG)

    assert response == NotSent("url: resolves to an address that is not public", NotSentCause.URL)
    assert world.connections == []


async def test_an_unresponsive_address_leaves_time_for_the_next(authority: Authority) -> None:
    async with run_receiver(authority.server(NAME)) as remote:
        world = FakeNetwork({OTHER: remote.port}, silent=[PUBLIC])
        resolver = Resolver([PUBLIC, OTHER])
        async with HttpClient(NO_ORIGINS, lookup=resolver, network=world, tls=authority.trust()) as outside:
            response = await outside.post(f"https://{NAME}/", b"", {}, time_limit=timedelta(seconds=2))

    assert isinstance(response, HttpResponse)
    assert [address for address, _ in world.connections] == [PUBLIC, OTHER]


@pytest.mark.parametrize("certified", ["evil.example.org", "*.hooks.example.org"])
async def test_a_certificate_of_another_name_is_refused_before_the_request(
    authority: Authority, certified: str
) -> None:
    async with run_receiver(authority.server(certified)) as remote:
        world = FakeNetwork({PUBLIC: remote.port})
        async with HttpClient(NO_ORIGINS, lookup=Resolver([PUBLIC]), network=world, tls=authority.trust()) as outside:
            response = await outside.post(f"https://{NAME}/", b"", {}, time_limit=LONG)

    assert isinstance(response, NotSent)
    assert response.error.startswith("TLS failed: Hostname mismatch")
    assert remote.requests == []


async def test_a_certificate_of_an_unknown_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    async with run_receiver(Authority(tmp_path).server(NAME)) as remote:
        world = FakeNetwork({PUBLIC: remote.port})
        async with HttpClient(NO_ORIGINS, lookup=Resolver([PUBLIC]), network=world, tls=authority.trust()) as outside:
            response = await outside.post(f"https://{NAME}/", b"", {}, time_limit=LONG)

    assert isinstance(response, NotSent)
    assert remote.requests == []


async def test_certificates_are_verified_by_default() -> None:
    async with HttpClient(NO_ORIGINS) as outside:
        [context] = {pool._tls for pool in outside._pools.values()}

    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


async def test_an_allowed_origin_may_be_private_on_its_own_port(authority: Authority) -> None:
    async with run_receiver(authority.server(NAME)) as remote:
        origins = AllowedOrigins.of([f"https://{NAME}:{remote.port}"])
        async with HttpClient(origins, lookup=Resolver([LOOPBACK]), tls=authority.trust()) as outside:
            allowed = await outside.post(f"https://{NAME}:{remote.port}/", b"", {}, time_limit=LONG)
            other = await outside.post(f"https://{NAME}:{remote.port + 1}/", b"", {}, time_limit=LONG)

    assert isinstance(allowed, HttpResponse)
    assert other == NotSent("url: resolves to an address that is not public", NotSentCause.URL)


async def test_an_ipv6_address_keeps_its_brackets_in_host() -> None:
    async with run_receiver() as remote:
        world = FakeNetwork({"2606:4700::1111": remote.port})
        async with HttpClient(AllowedOrigins.of(["http://[2606:4700::1111]"]), network=world) as outside:
            assert isinstance(await outside.post("http://[2606:4700:0::1111]/", b"", {}, time_limit=LONG), HttpResponse)

    assert remote.requests[0].headers["host"] == "[2606:4700::1111]"


async def test_a_url_can_be_checked_before_anything_is_sent() -> None:
    async with HttpClient(NO_ORIGINS, lookup=Resolver([PUBLIC], [LOOPBACK], [])) as outside:
        assert (await outside.check_url(f"https://{NAME}/")).host == NAME
        with pytest.raises(Invalid, match="not public"):
            await outside.check_url(f"https://{NAME}/")
        with pytest.raises(Invalid, match="does not resolve"):
            await outside.check_url(f"https://{NAME}/")
        with pytest.raises(Invalid, match="https://"):
            await outside.check_url(f"http://{NAME}/")
