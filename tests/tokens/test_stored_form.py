"""What the database stores of secrets: enough to recognise them, but not to use them."""

import base64
from collections.abc import Iterator
from uuid import UUID

import pytest

from pabal.core.errors import DecryptionError, InvalidGrant, PabalError
from pabal.core.secrets import decode_base64url, hash_token
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from pabal.tokens.access import TokenPair
from pabal.tokens.services import rotate_service_secret
from support.dump import dumped
from tokens.asking import (
    BY,
    SHOP,
    added,
    answered,
    comes_in,
    end_access,
    end_family,
    guess,
    joined,
    look_up,
    owner,
    refreshed,
    signed_in,
    two_hubs,
)

pytestmark = pytest.mark.anyio


def forms(secret: str) -> Iterator[bytes]:
    """The forms in which a secret may occur: itself and its bytes, in hex and in base64."""
    parts = [secret.encode()]
    for part in secret.split("."):
        bare = part.removeprefix("pbr_").removeprefix("pbs_")
        parts.append(bare.encode())
        parts.append(decode_base64url(bare))
    for part in parts:
        yield part
        yield part.hex().encode()
        for lead in range(3):  # base64 has three alignments; its ends depend on the neighbouring bytes
            text = base64.b64encode(b"\0" * lead + part)[4 if lead else 0 : -4]
            yield text
            yield text.replace(b"+", b"-").replace(b"/", b"_")


def found_in(text: bytes, secrets: list[str], header: str) -> list[str]:
    """The secrets that occur in the text. A JWT's header is not secret: it is the same for all."""
    public = {*forms(header)}
    return [each for each in secrets if any(form in text for form in forms(each) if form not in public)]


async def told(hub: Hub, other: Hub) -> list[str]:
    """Run many operations; returns every secret and token that was issued."""
    secrets: list[str] = []
    for name in (SHOP, "other"):
        secret = await added(hub, name)
        async with hub.transaction() as tx:
            secrets += [secret, await rotate_service_secret(tx, name, BY)]
        for number in range(4):
            first = await signed_in(hub, secret, name)
            second = await refreshed(other, first.refresh_token, name)
            third = await refreshed(hub, second.refresh_token, name)
            assert (await refreshed(hub, second.refresh_token, name)).access_token == third.access_token
            for pair in (first, second, third):
                secrets += [pair.access_token, str(pair.refresh_token)]
                assert await comes_in(other, pair.access_token)
            if number == 1:
                await end_access(hub, first.access_token)
            if number == 2:
                assert isinstance(await answered(hub, first.refresh_token, name), InvalidGrant)
            if number == 3:
                await end_family(hub, first.family_id)
    for place in secrets:  # in the wrong field
        for secret in ("x", place):
            with pytest.raises(PabalError):
                await guess(hub, place, secret)
    return secrets


async def test_a_backup_contains_no_secret_and_no_token(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with two_hubs(settings, database_urls) as (hub, other):
        secrets = await told(hub, other)
        text = await dumped(database_urls)
        header = secrets[2].partition(".")[0]

        assert len({*secrets}) == len(secrets) == 2 * (2 + 4 * 6)
        assert all(hash_token(secret).hex().encode() in text for secret in secrets), (
            "the dump does not hold what was issued"
        )
        for table in (b"pabal.audit_log", b"public.event_queue", b"pabal.limits", b"public.service_secrets"):
            assert b"INSERT INTO " + table in text
        assert found_in(text, secrets, header) == []
        assert found_in(text + secrets[0].encode(), secrets, header) == secrets[:1]
        assert found_in(text + base64.b64encode(b"ab" + secrets[3].encode()), secrets, header) == secrets[3:4]
        assert (
            found_in(text + decode_base64url(secrets[-1].removeprefix("pbr_")).hex().encode(), secrets, header)
            == secrets[-1:]
        )


async def test_no_key_is_in_the_database(hub: Hub, database_urls: DatabaseUrls) -> None:
    await refreshed(hub, (await joined(hub)).refresh_token)
    text = await dumped(database_urls)

    keys = hub.key_ring.keys.all_keys
    assert any(key.id.encode() in text for key in keys), "nothing was encrypted, so this proves nothing"
    for key in keys:
        for form in (key.secret, key.secret.hex().encode(), base64.b64encode(key.secret)[:-4]):
            assert form not in text
            assert form.replace(b"+", b"-").replace(b"/", b"_") not in text


async def test_an_envelope_can_be_decrypted_in_its_own_row_only(hub: Hub, database_urls: DatabaseUrls) -> None:
    secret = await added(hub)
    mine, theirs = await signed_in(hub, secret), await signed_in(hub, secret)
    next_of_mine, next_of_theirs = await refreshed(hub, mine.refresh_token), await refreshed(hub, theirs.refresh_token)
    assert (await refreshed(hub, mine.refresh_token)).refresh_token == next_of_mine.refresh_token

    await copy_envelopes(database_urls, await both_rows(hub, next_of_mine), await both_rows(hub, next_of_theirs))

    with pytest.raises(DecryptionError) as refusal:
        await answered(hub, theirs.refresh_token)
    for pair in (mine, theirs, next_of_mine, next_of_theirs):
        assert pair.access_token not in str(refusal.value)
        assert str(pair.refresh_token) not in str(refusal.value)
    assert (await refreshed(hub, mine.refresh_token)).refresh_token == next_of_mine.refresh_token


async def both_rows(hub: Hub, pair: TokenPair) -> tuple[UUID, UUID]:
    access, refresh = await look_up(hub, pair.access_token), await look_up(hub, pair.refresh_token)
    assert access is not None
    assert refresh is not None
    return access.id, refresh.id


async def copy_envelopes(database_urls: DatabaseUrls, source: tuple[UUID, UUID], target: tuple[UUID, UUID]) -> None:
    async with owner(database_urls) as connection:
        for table, column, place in (("service_tokens", "access_token", 0), ("refresh_tokens", "refresh_token", 1)):
            copy = (
                f"update public.{table} t set {column} = s.{column} from public.{table} s where s.id = $1 and t.id = $2"
            )
            await connection.execute(copy, source[place], target[place])


ENVELOPES = "select access_token from public.service_tokens union all select refresh_token from public.refresh_tokens"


async def test_no_two_envelopes_are_equal(hub: Hub, database_urls: DatabaseUrls) -> None:
    secret = await added(hub)
    for _ in range(5):
        await refreshed(hub, (await signed_in(hub, secret)).refresh_token)

    async with owner(database_urls) as connection:
        envelopes = [envelope for (envelope,) in await connection.fetch(ENVELOPES)]
    nonces = [envelope.split(".")[2] for envelope in envelopes]
    assert len({*nonces}) == len(nonces) == 20
    assert {envelope.split(".")[0] for envelope in envelopes} == {"v1"}
