"""What the database stores of secrets: enough to recognise them, but not to use them."""

import base64
from collections.abc import Iterator
from uuid import UUID

import pytest

from pabal.core.errors import DecryptionError, InvalidGrant, PabalError
from pabal.core.secrets import decode_base64url, hash_token
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from pabal.tokens.issuer import TokenPair
from pabal.tokens.services import rotate_service_secret
from support.dump import dump_database
from tokens.token_operations import (
    BY,
    SHOP,
    add_shop,
    add_shop_with_tokens,
    authenticate_with,
    is_accepted,
    issue_pair,
    load_token_state,
    open_two_hubs,
    owner_connection,
    present_refresh_token,
    refresh_pair,
    revoke_access,
    revoke_whole_family,
)

pytestmark = pytest.mark.anyio


def encodings(secret: str) -> Iterator[bytes]:
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


def secrets_in(text: bytes, secrets: list[str], header: str) -> list[str]:
    """The secrets that occur in the text. A JWT's header is not secret: it is the same for all."""
    header_encodings = {*encodings(header)}
    return [
        secret
        for secret in secrets
        if any(encoding in text for encoding in encodings(secret) if encoding not in header_encodings)
    ]


async def issue_secrets(hub: Hub, other: Hub) -> list[str]:
    """Run many operations; returns every secret and token that was issued."""
    secrets: list[str] = []
    for name in (SHOP, "other"):
        secret = await add_shop(hub, name)
        async with hub.transaction() as tx:
            secrets += [secret, await rotate_service_secret(tx, name, BY)]
        for number in range(4):
            first = await issue_pair(hub, secret, name)
            second = await refresh_pair(other, first.refresh_token, name)
            third = await refresh_pair(hub, second.refresh_token, name)
            assert (await refresh_pair(hub, second.refresh_token, name)).access_token == third.access_token
            for pair in (first, second, third):
                secrets += [pair.access_token, str(pair.refresh_token)]
                assert await is_accepted(other, pair.access_token)
            if number == 1:
                await revoke_access(hub, first.access_token)
            if number == 2:
                assert isinstance(await present_refresh_token(hub, first.refresh_token, name), InvalidGrant)
            if number == 3:
                await revoke_whole_family(hub, first.family_id)
    for issued in secrets:  # in the wrong field
        for secret in ("x", issued):
            with pytest.raises(PabalError):
                await authenticate_with(hub, issued, secret)
    return secrets


async def test_a_backup_contains_no_secret_and_no_token(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with open_two_hubs(settings, database_urls) as (hub, other):
        secrets = await issue_secrets(hub, other)
        text = await dump_database(database_urls)
        header = secrets[2].partition(".")[0]

        assert len({*secrets}) == len(secrets) == 2 * (2 + 4 * 6)
        assert all(hash_token(secret).hex().encode() in text for secret in secrets), (
            "the dump does not hold what was issued"
        )
        for table in (b"pabal.audit_log", b"public.event_queue", b"pabal.limits", b"public.service_secrets"):
            assert b"INSERT INTO " + table in text
        assert secrets_in(text, secrets, header) == []
        assert secrets_in(text + secrets[0].encode(), secrets, header) == secrets[:1]
        assert secrets_in(text + base64.b64encode(b"ab" + secrets[3].encode()), secrets, header) == secrets[3:4]
        assert (
            secrets_in(text + decode_base64url(secrets[-1].removeprefix("pbr_")).hex().encode(), secrets, header)
            == secrets[-1:]
        )


async def test_no_key_is_in_the_database(hub: Hub, database_urls: DatabaseUrls) -> None:
    await refresh_pair(hub, (await add_shop_with_tokens(hub)).refresh_token)
    text = await dump_database(database_urls)

    keys = hub.key_ring.keys.all_keys
    assert any(key.id.encode() in text for key in keys), "nothing was encrypted, so this proves nothing"
    for key in keys:
        for encoding in (key.secret, key.secret.hex().encode(), base64.b64encode(key.secret)[:-4]):
            assert encoding not in text
            assert encoding.replace(b"+", b"-").replace(b"/", b"_") not in text


async def test_an_envelope_can_be_decrypted_in_its_own_row_only(hub: Hub, database_urls: DatabaseUrls) -> None:
    secret = await add_shop(hub)
    first, second = await issue_pair(hub, secret), await issue_pair(hub, secret)
    first_successor, second_successor = (
        await refresh_pair(hub, first.refresh_token),
        await refresh_pair(hub, second.refresh_token),
    )
    assert (await refresh_pair(hub, first.refresh_token)).refresh_token == first_successor.refresh_token

    await copy_envelopes(database_urls, await row_ids(hub, first_successor), await row_ids(hub, second_successor))

    with pytest.raises(DecryptionError) as refusal:
        await present_refresh_token(hub, second.refresh_token)
    for pair in (first, second, first_successor, second_successor):
        assert pair.access_token not in str(refusal.value)
        assert str(pair.refresh_token) not in str(refusal.value)
    assert (await refresh_pair(hub, first.refresh_token)).refresh_token == first_successor.refresh_token


async def row_ids(hub: Hub, pair: TokenPair) -> tuple[UUID, UUID]:
    access, refresh = await load_token_state(hub, pair.access_token), await load_token_state(hub, pair.refresh_token)
    assert access is not None
    assert refresh is not None
    return access.id, refresh.id


async def copy_envelopes(database_urls: DatabaseUrls, source: tuple[UUID, UUID], target: tuple[UUID, UUID]) -> None:
    async with owner_connection(database_urls) as connection:
        for table, column, index in (("service_tokens", "access_token", 0), ("refresh_tokens", "refresh_token", 1)):
            copy = (
                f"update public.{table} t set {column} = s.{column} from public.{table} s where s.id = $1 and t.id = $2"
            )
            await connection.execute(copy, source[index], target[index])


ENVELOPES = "select access_token from public.service_tokens union all select refresh_token from public.refresh_tokens"


async def test_no_two_envelopes_are_equal(hub: Hub, database_urls: DatabaseUrls) -> None:
    secret = await add_shop(hub)
    for _ in range(5):
        await refresh_pair(hub, (await issue_pair(hub, secret)).refresh_token)

    async with owner_connection(database_urls) as connection:
        envelopes = [envelope for (envelope,) in await connection.fetch(ENVELOPES)]
    nonces = [envelope.split(".")[2] for envelope in envelopes]
    assert len({*nonces}) == len(nonces) == 20
    assert {envelope.split(".")[0] for envelope in envelopes} == {"v1"}
