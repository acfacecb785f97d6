"""Key rotation under load: tokens stay valid until their key is retired, and are rejected afterwards."""

import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial

import pytest
from msgspec import structs

from pabal.core.errors import InvalidToken
from pabal.core.secrets import decode_base64url
from pabal.db.channels import Channel
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.key import KeySet, KeyState, KeyUse
from pabal.keys.keyring import KeyRing
from pabal.settings import Settings
from pabal.tokens.access import build_jwks, decode_access_token, sign_access_token
from support.wait import until
from tokens.asking import added, comes_in, is_good, joined, refreshed, signed_in, two_hubs

pytestmark = pytest.mark.anyio

ROTATIONS = 5


def turn(hub: Hub, *uses: KeyUse) -> None:
    with hub.key_ring.update(lambda keys: keys.rotate(uses, datetime.now(UTC))):
        pass
    hub.doorbell.notify([Channel.TOKENS])


def retire(hub: Hub, key_id: str, *, loudly: bool = True) -> None:
    with hub.key_ring.update(lambda keys: keys.without(key_id)):
        pass
    if loudly:
        hub.doorbell.notify([Channel.TOKENS])


def kids(hub: Hub) -> set[str]:
    return {key["kid"] for key in build_jwks(hub.key_ring)["keys"]}


def kid_of(token: str) -> str:
    return json.loads(decode_base64url(token.partition(".")[0]))["kid"]


async def test_no_token_is_refused_during_key_rotations(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with two_hubs(settings, database_urls) as hubs:
        here, there = hubs
        secret = await added(here)
        tokens = [(await signed_in(here, secret)).access_token]
        done, rounds = asyncio.Event(), [0, 0]

        async def verify(place: int) -> None:
            while not done.is_set():
                for token in [*tokens]:
                    await hubs[place].token_verifier.verify(token)
                rounds[place] += 1
                await asyncio.sleep(0)  # a cached verification does not yield to the event loop

        def they_have_seen(number: int) -> bool:
            return min(rounds) >= number

        async with asyncio.TaskGroup() as group:
            group.create_task(verify(0))
            group.create_task(verify(1))
            for number in range(ROTATIONS):
                turn(hubs[number % 2], KeyUse.SIGNING, KeyUse.ENCRYPTION)
                pair = await signed_in(hubs[number % 2], secret)
                tokens.append(pair.access_token)
                tokens.append((await refreshed(there, pair.refresh_token)).access_token)
                assert (await refreshed(here, pair.refresh_token)).access_token == tokens[
                    -1
                ]  # encrypted there, decrypted here
                await until(partial(they_have_seen, min(rounds) + 2))
            done.set()

        assert len({kid_of(token) for token in tokens}) == ROTATIONS + 1
        assert {kid_of(token) for token in tokens} <= kids(here) == kids(there)


async def test_a_key_is_published_before_it_signs(hub: Hub) -> None:
    secret = await added(hub)
    for _ in range(3):
        published = kids(hub)
        turn(hub, KeyUse.SIGNING)

        signed = kid_of((await signed_in(hub, secret)).access_token)

        assert signed in published
        [active] = [key.id for key in hub.key_ring.keys.for_use(KeyUse.SIGNING) if key.state is KeyState.ACTIVE]
        assert signed == active


async def test_tokens_of_a_retired_key_are_rejected(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with two_hubs(settings, database_urls) as (here, there):
        await until(lambda: there.doorbell.listening)
        secret = await added(here)
        old = await signed_in(here, secret)
        turn(here, KeyUse.SIGNING)
        new = await signed_in(here, secret)
        for hub in (here, there):
            assert await comes_in(hub, old.access_token)

        with there.doorbell.listen(Channel.TOKENS) as ear:
            ear.take_wakeup()
            retire(here, kid_of(old.access_token))
            await until(ear.take_wakeup)

        for hub in (here, there):
            with pytest.raises(InvalidToken, match="not an access token of this hub"):
                await hub.token_verifier.verify(old.access_token)
            assert await comes_in(hub, new.access_token)
            assert kid_of(old.access_token) not in kids(hub)
        assert await is_good(here, old.refresh_token)


async def test_a_key_set_reloaded_for_signing_also_clears_the_verified_signatures(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    """Any use of a key may reload the key file; signatures verified with the earlier keys must be checked again."""
    async with two_hubs(settings, database_urls) as (here, there):
        secret = await added(here)
        old = await signed_in(here, secret)
        turn(here, KeyUse.SIGNING)
        assert await comes_in(there, old.access_token)

        retire(here, kid_of(old.access_token), loudly=False)
        await signed_in(there, secret)
        there.token_verifier.invalidate()

        assert not await comes_in(there, old.access_token)


@pytest.mark.parametrize("uses", [[KeyUse.ENCRYPTION], [KeyUse.SIGNING, KeyUse.ENCRYPTION]])
async def test_a_lost_response_is_repeated_after_key_rotations(hub: Hub, uses: Iterable[KeyUse]) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh_token)

    turn(hub, *uses)

    assert (await refreshed(hub, first.refresh_token)).access_token == second.access_token


async def test_tokens_of_another_hubs_keys_are_rejected(hub: Hub) -> None:
    pair = await joined(hub)
    claims = decode_access_token(hub.key_ring, pair.access_token, "pabal")
    forged = sign_access_token(KeyRing(KeySet.generate(datetime.now(UTC))), claims)

    assert sign_access_token(hub.key_ring, claims) != forged
    with pytest.raises(InvalidToken, match="not an access token of this hub"):
        await hub.token_verifier.verify(forged)


async def test_a_signed_token_without_a_row_is_rejected(hub: Hub) -> None:
    """The row is decisive: a stolen signing key alone is not enough."""
    pair = await joined(hub)
    claims = decode_access_token(hub.key_ring, pair.access_token, "pabal")
    longer = sign_access_token(hub.key_ring, structs.replace(claims, scope="hub:admin", exp=claims.exp + 3600))

    assert decode_access_token(hub.key_ring, longer, "pabal").scope == "hub:admin"
    with pytest.raises(InvalidToken, match="expired or was revoked"):
        await hub.token_verifier.verify(longer)
