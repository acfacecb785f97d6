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
from pabal.db.doorbell.channels import Channel
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.key import KeySet, KeyState, KeyUse
from pabal.keys.keyring import KeyRing
from pabal.settings import Settings
from pabal.tokens.issuer import build_jwks, decode_access_token, sign_access_token
from support.wait import wait_until
from tokens.token_operations import (
    add_shop,
    add_shop_with_tokens,
    is_accepted,
    is_valid_token,
    issue_pair,
    open_two_hubs,
    refresh_pair,
)

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
    async with open_two_hubs(settings, database_urls) as hubs:
        first, second = hubs
        secret = await add_shop(first)
        tokens = [(await issue_pair(first, secret)).access_token]
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
                pair = await issue_pair(hubs[number % 2], secret)
                tokens.append(pair.access_token)
                tokens.append((await refresh_pair(second, pair.refresh_token)).access_token)
                # The second hub encrypted the response, the first decrypts it.
                assert (await refresh_pair(first, pair.refresh_token)).access_token == tokens[-1]
                await wait_until(partial(are_verified, min(rounds) + 2))
            stop.set()

        assert len({key_id_of(token) for token in tokens}) == ROTATIONS + 1
        assert {key_id_of(token) for token in tokens} <= key_ids(first) == key_ids(second)


async def test_a_key_is_published_before_it_signs(hub: Hub) -> None:
    secret = await add_shop(hub)
    for _ in range(3):
        published = key_ids(hub)
        rotate_keys(hub, KeyUse.SIGNING)

        signing_key = key_id_of((await issue_pair(hub, secret)).access_token)

        assert signing_key in published
        [active] = [key.id for key in hub.key_ring.keys.for_use(KeyUse.SIGNING) if key.state is KeyState.ACTIVE]
        assert signing_key == active


async def test_tokens_of_a_retired_key_are_rejected(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with open_two_hubs(settings, database_urls) as (retiring, listening):
        await wait_until(lambda: listening.doorbell.listening)
        secret = await add_shop(retiring)
        old_pair = await issue_pair(retiring, secret)
        rotate_keys(retiring, KeyUse.SIGNING)
        new_pair = await issue_pair(retiring, secret)
        for hub in (retiring, listening):
            assert await is_accepted(hub, old_pair.access_token)

        with listening.doorbell.listen(Channel.TOKENS) as subscription:
            subscription.take_wakeup()
            retire(retiring, key_id_of(old_pair.access_token))
            await wait_until(subscription.take_wakeup)

        for hub in (retiring, listening):
            with pytest.raises(InvalidToken, match="not an access token of this hub"):
                await hub.token_verifier.verify(old_pair.access_token)
            assert await is_accepted(hub, new_pair.access_token)
            assert key_id_of(old_pair.access_token) not in key_ids(hub)
        assert await is_valid_token(retiring, old_pair.refresh_token)


async def test_a_key_set_reloaded_for_signing_also_clears_the_verified_signatures(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    """Any use of a key may reload the key file; signatures verified with the earlier keys must be checked again."""
    async with open_two_hubs(settings, database_urls) as (retiring, reloading):
        secret = await add_shop(retiring)
        old_pair = await issue_pair(retiring, secret)
        rotate_keys(retiring, KeyUse.SIGNING)
        assert await is_accepted(reloading, old_pair.access_token)

        retire(retiring, key_id_of(old_pair.access_token), notify=False)
        await issue_pair(reloading, secret)
        reloading.token_verifier.invalidate()

        assert not await is_accepted(reloading, old_pair.access_token)


@pytest.mark.parametrize("uses", [[KeyUse.ENCRYPTION], [KeyUse.SIGNING, KeyUse.ENCRYPTION]])
async def test_a_lost_response_is_repeated_after_key_rotations(hub: Hub, uses: Iterable[KeyUse]) -> None:
    first = await add_shop_with_tokens(hub)
    second = await refresh_pair(hub, first.refresh_token)

    rotate_keys(hub, *uses)

    assert (await refresh_pair(hub, first.refresh_token)).access_token == second.access_token


async def test_tokens_of_another_hubs_keys_are_rejected(hub: Hub) -> None:
    pair = await add_shop_with_tokens(hub)
    claims = decode_access_token(hub.key_ring, pair.access_token, "pabal")
    forged = sign_access_token(KeyRing(KeySet.generate(datetime.now(UTC))), claims)

    assert sign_access_token(hub.key_ring, claims) != forged
    with pytest.raises(InvalidToken, match="not an access token of this hub"):
        await hub.token_verifier.verify(forged)


async def test_a_signed_token_without_a_row_is_rejected(hub: Hub) -> None:
    """The row is decisive: a stolen signing key alone is not enough."""
    pair = await add_shop_with_tokens(hub)
    claims = decode_access_token(hub.key_ring, pair.access_token, "pabal")
    forged = sign_access_token(hub.key_ring, structs.replace(claims, scope="hub:admin", exp=claims.exp + 3600))

    assert decode_access_token(hub.key_ring, forged, "pabal").scope == "hub:admin"
    with pytest.raises(InvalidToken, match="expired or was revoked"):
        await hub.token_verifier.verify(forged)
