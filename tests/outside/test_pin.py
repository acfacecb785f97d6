"""A connection goes to the address that was checked, whatever the resolver says next."""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from outside.elsewhere import HERE, Authority, Resolver, World
from pabal.core.errors import Invalid
from pabal.outside.http import HttpClient, HttpResponse, NotSent
from pabal.outside.ssrf import AllowedOrigins
from support.receiver import answers, receiver

pytestmark = pytest.mark.anyio

NOBODY = AllowedOrigins()
NAME = "hooks.example.org"
PUBLIC, OTHER = "8.8.8.8", "9.9.9.9"
LONG = timedelta(seconds=10)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def test_the_name_stays_in_host_and_handshake(authority: Authority) -> None:
    asked_for: list[str | None] = []
    tls = authority.server(NAME)
    tls.sni_callback = lambda _socket, name, _context: asked_for.append(name)

    async with receiver(tls) as r:
        world = World({PUBLIC: r.port})
        async with HttpClient(NOBODY, lookup=Resolver([PUBLIC]), network=world, tls=authority.trust()) as outside:
            answer = await outside.post(f"https://{NAME}/in?a=b", b"{}", {}, time_limit=LONG)

    assert answer == HttpResponse(200, {"content-length": "0"}, b"")
    assert world.dialled == [(PUBLIC, 443)]
    assert asked_for == [NAME]
    assert (r.requests[0].headers["host"], r.requests[0].target) == (NAME, "/in?a=b")


async def test_a_resolver_that_changes_its_mind_leads_nowhere(authority: Authority) -> None:
    """The second answer is the address of a server in the house, which listens on just that port."""
    resolver = Resolver([PUBLIC], [HERE])
    async with receiver(authority.server(NAME)) as r, receiver(authority.server(NAME)) as victim:
        r.mood = answers(headers={"connection": "close"})
        world = World({PUBLIC: r.port})
        url = f"https://{NAME}:{victim.port}/"
        async with HttpClient(NOBODY, lookup=resolver, network=world, tls=authority.trust()) as outside:
            first = await outside.post(url, b"1", {}, time_limit=LONG)
            asked_once = [*resolver.asked]
            second = await outside.post(url, b"2", {}, time_limit=LONG)

        assert isinstance(first, HttpResponse)
        assert asked_once == [NAME]
        assert second == NotSent("url: resolves to an address that is not public")
        assert world.dialled == [(PUBLIC, victim.port)]
        assert [request.body for request in r.requests] == [b"1"]
        assert victim.connections == 0


async def test_a_kept_connection_needs_no_second_answer(authority: Authority) -> None:
    resolver = Resolver([PUBLIC], [HERE])
    async with receiver(authority.server(NAME)) as r:
        world = World({PUBLIC: r.port})
        async with HttpClient(NOBODY, lookup=resolver, network=world, tls=authority.trust()) as outside:
            for _ in range(3):
                assert isinstance(await outside.post(f"https://{NAME}/", b"", {}, time_limit=LONG), HttpResponse)

    assert (r.connections, world.dialled, resolver.asked) == (1, [(PUBLIC, 443)], [NAME])


async def test_two_names_at_one_address_share_no_connection(authority: Authority) -> None:
    """What the certificate has proven for one name says nothing about the other."""
    async with receiver(authority.server(NAME, "other.example.org")) as r:
        world = World({PUBLIC: r.port})
        async with HttpClient(NOBODY, lookup=Resolver([PUBLIC]), network=world, tls=authority.trust()) as outside:
            for name in (NAME, "other.example.org"):
                assert isinstance(await outside.post(f"https://{name}/", b"", {}, time_limit=LONG), HttpResponse)

    assert r.connections == 2


async def test_one_private_address_among_public_ones_spoils_them(authority: Authority) -> None:
    world = World({})
    async with HttpClient(NOBODY, lookup=Resolver([PUBLIC, HERE]), network=world, tls=authority.trust()) as outside:
        answer = await outside.post(f"https://{NAME}/", b"", {}, time_limit=LONG)

    assert answer == NotSent("url: resolves to an address that is not public")
    assert world.dialled == []


async def test_a_silent_address_leaves_time_for_the_next(authority: Authority) -> None:
    async with receiver(authority.server(NAME)) as r:
        world = World({OTHER: r.port}, silent=[PUBLIC])
        resolver = Resolver([PUBLIC, OTHER])
        async with HttpClient(NOBODY, lookup=resolver, network=world, tls=authority.trust()) as outside:
            answer = await outside.post(f"https://{NAME}/", b"", {}, time_limit=timedelta(seconds=2))

    assert isinstance(answer, HttpResponse)
    assert [address for address, _ in world.dialled] == [PUBLIC, OTHER]


@pytest.mark.parametrize("certified", ["evil.example.org", "*.hooks.example.org"])
async def test_another_names_certificate_ends_it_before_the_request(authority: Authority, certified: str) -> None:
    async with receiver(authority.server(certified)) as r:
        world = World({PUBLIC: r.port})
        async with HttpClient(NOBODY, lookup=Resolver([PUBLIC]), network=world, tls=authority.trust()) as outside:
            answer = await outside.post(f"https://{NAME}/", b"", {}, time_limit=LONG)

    assert isinstance(answer, NotSent)
    assert answer.error.startswith("TLS failed: Hostname mismatch")
    assert r.requests == []


async def test_an_unknown_authority_is_not_believed(authority: Authority, tmp_path: Path) -> None:
    async with receiver(Authority(tmp_path).server(NAME)) as r:
        world = World({PUBLIC: r.port})
        async with HttpClient(NOBODY, lookup=Resolver([PUBLIC]), network=world, tls=authority.trust()) as outside:
            answer = await outside.post(f"https://{NAME}/", b"", {}, time_limit=LONG)

    assert isinstance(answer, NotSent)
    assert r.requests == []


async def test_certificates_are_checked_unless_somebody_says_otherwise() -> None:
    async with HttpClient(NOBODY) as outside:
        [context] = {lines._tls for lines in outside._pools.values()}

    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


async def test_an_allowed_origin_may_be_anywhere_but_only_itself(authority: Authority) -> None:
    async with receiver(authority.server(NAME)) as r:
        origins = AllowedOrigins.of([f"https://{NAME}:{r.port}"])
        async with HttpClient(origins, lookup=Resolver([HERE]), tls=authority.trust()) as outside:
            allowed = await outside.post(f"https://{NAME}:{r.port}/", b"", {}, time_limit=LONG)
            other = await outside.post(f"https://{NAME}:{r.port + 1}/", b"", {}, time_limit=LONG)

    assert isinstance(allowed, HttpResponse)
    assert other == NotSent("url: resolves to an address that is not public")


async def test_an_ipv6_address_keeps_its_brackets_in_host() -> None:
    async with receiver() as r:
        world = World({"2606:4700::1111": r.port})
        async with HttpClient(AllowedOrigins.of(["http://[2606:4700::1111]"]), network=world) as outside:
            assert isinstance(await outside.post("http://[2606:4700:0::1111]/", b"", {}, time_limit=LONG), HttpResponse)

    assert r.requests[0].headers["host"] == "[2606:4700::1111]"


async def test_a_url_can_be_checked_before_anything_is_sent() -> None:
    async with HttpClient(NOBODY, lookup=Resolver([PUBLIC], [HERE], [])) as outside:
        assert (await outside.check_url(f"https://{NAME}/")).host == NAME
        with pytest.raises(Invalid, match="not public"):
            await outside.check_url(f"https://{NAME}/")
        with pytest.raises(Invalid, match="does not resolve"):
            await outside.check_url(f"https://{NAME}/")
        with pytest.raises(Invalid, match="https://"):
            await outside.check_url(f"http://{NAME}/")
