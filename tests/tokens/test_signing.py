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


def rotate_keys(hub: Hub, *uses: KeyUse) -> None:
    with hub.key_ring.update(lambda keys: keys.rotate(uses, datetime.now(UTC))):
        pass
    hub.doorbell.notify([Channel.TOKENS])


def retire(hub: Hub, key_id: str, *, notify: bool = True) -> None:
    with hub.key_ring.update(lambda keys: keys.without(key_id)):
        pass
    if notify:
        hub.doorbell.notify([Channel.TOKENS])


def key_ids(hub: Hub) -> set[str]:
    return {key["kid"] for key in build_jwks(hub.key_ring)["keys"]}


def key_id_of(token: str) -> str:
    return json.loads(decode_base64url(token.partition(".")[0]))["kid"]


async def test_no_token_is_refused_during_key_rotations(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with two_hubs(settings, database_urls) as hubs:
        first, second = hubs
        secret = await added(first)
        tokens = [(await signed_in(first, secret)).access_token]
        stop, rounds = asyncio.Event(), [0, 0]

        async def verify(index: int) -> None:
            while not stop.is_set():
                for token in [*tokens]:
                    await hubs[index].token_verifier.verify(token)
                rounds[index] += 1
                await asyncio.sleep(0)  # a cached verification does not yield to the event loop

        def are_verified(number: int) -> bool:
            return min(rounds) >= number

        async with asyncio.TaskGroup() as group:
            group.create_task(verify(0))
            group.create_task(verify(1))
            for number in range(ROTATIONS):
                rotate_keys(hubs[number % 2], KeyUse.SIGNING, KeyUse.ENCRYPTION)
                pair = await signed_in(hubs[number % 2], secret)
                tokens.append(pair.access_token)
                tokens.append((await refreshed(second, pair.refresh_token)).access_token)
                # The second hub encrypted the response, the first decrypts it.
                assert (await refreshed(first, pair.refresh_token)).access_token == tokens[-1]
                await until(partial(are_verified, min(rounds) + 2))
            stop.set()

        assert len({key_id_of(token) for token in tokens}) == ROTATIONS + 1
        assert {key_id_of(token) for token in tokens} <= key_ids(first) == key_ids(second)


async def test_a_key_is_published_before_it_signs(hub: Hub) -> None:
    secret = await added(hub)
    for _ in range(3):
        published = key_ids(hub)
        rotate_keys(hub, KeyUse.SIGNING)

        signing_key = key_id_of((await signed_in(hub, secret)).access_token)

        assert signing_key in published
        [active] = [key.id for key in hub.key_ring.keys.for_use(KeyUse.SIGNING) if key.state is KeyState.ACTIVE]
        assert signing_key == active


async def test_tokens_of_a_retired_key_are_rejected(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with two_hubs(settings, database_urls) as (retiring, listening):
        await until(lambda: listening.doorbell.listening)
        secret = await added(retiring)
        old_pair = await signed_in(retiring, secret)
        rotate_keys(retiring, KeyUse.SIGNING)
        new_pair = await signed_in(retiring, secret)
        for hub in (retiring, listening):
            assert await comes_in(hub, old_pair.access_token)

        with listening.doorbell.listen(Channel.TOKENS) as subscription:
            subscription.take_wakeup()
            retire(retiring, key_id_of(old_pair.access_token))
            await until(subscription.take_wakeup)

        for hub in (retiring, listening):
            with pytest.raises(InvalidToken, match="not an access token of this hub"):
                await hub.token_verifier.verify(old_pair.access_token)
            assert await comes_in(hub, new_pair.access_token)
            assert key_id_of(old_pair.access_token) not in key_ids(hub)
        assert await is_good(retiring, old_pair.refresh_token)


async def test_a_key_set_reloaded_for_signing_also_clears_the_verified_signatures(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    """Any use of a key may reload the key file; signatures verified with the earlier keys must be checked again."""
    async with two_hubs(settings, database_urls) as (retiring, reloading):
        secret = await added(retiring)
        old_pair = await signed_in(retiring, secret)
        rotate_keys(retiring, KeyUse.SIGNING)
        assert await comes_in(reloading, old_pair.access_token)

        retire(retiring, key_id_of(old_pair.access_token), notify=False)
        await signed_in(reloading, secret)
        reloading.token_verifier.invalidate()

        assert not await comes_in(reloading, old_pair.access_token)


@pytest.mark.parametrize("uses", [[KeyUse.ENCRYPTION], [KeyUse.SIGNING, KeyUse.ENCRYPTION]])
async def test_a_lost_response_is_repeated_after_key_rotations(hub: Hub, uses: Iterable[KeyUse]) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh_token)

    rotate_keys(hub, *uses)

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
    forged = sign_access_token(hub.key_ring, structs.replace(claims, scope="hub:admin", exp=claims.exp + 3600))

    assert decode_access_token(hub.key_ring, forged, "pabal").scope == "hub:admin"
    with pytest.raises(InvalidToken, match="expired or was revoked"):
        await hub.token_verifier.verify(forged)
