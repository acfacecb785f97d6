"""Keys turn while everybody works: nobody is refused before a key is retired, and everybody it signed for after."""

import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial

import pytest
from msgspec import structs

from pabal.core.base64url import decoded
from pabal.core.errors import BadToken
from pabal.db.bells import Bell
from pabal.keys.key import Keys, State, Use
from pabal.keys.ring import Ring
from pabal.settings import Settings
from pabal.tokens import jwt
from pabal.wiring import Hub, Roads
from patience import until
from tokens.asking import added, comes_in, is_good, joined, refreshed, signed_in, two_hubs

pytestmark = pytest.mark.anyio

ROTATIONS = 5


def turn(hub: Hub, *uses: Use) -> None:
    with hub.keys.changing(lambda keys: keys.rotated(uses, datetime.now(UTC))):
        pass
    hub.doorbell.ring([Bell.TOKENS])


def retire(hub: Hub, key_id: str, *, loudly: bool = True) -> None:
    with hub.keys.changing(lambda keys: keys.without(key_id)):
        pass
    if loudly:
        hub.doorbell.ring([Bell.TOKENS])


def kids(hub: Hub) -> set[str]:
    return {key["kid"] for key in jwt.published(hub.keys)["keys"]}


def kid_of(token: str) -> str:
    return json.loads(decoded(token.partition(".")[0]))["kid"]


async def test_while_keys_turn_nobody_is_refused(settings: Settings, roads: Roads) -> None:
    async with two_hubs(settings, roads) as hubs:
        here, there = hubs
        secret = await added(here)
        tokens = [(await signed_in(here, secret)).access]
        done, rounds = asyncio.Event(), [0, 0]

        async def verify(place: int) -> None:
            while not done.is_set():
                for token in [*tokens]:
                    await hubs[place].tokens.verify(token)
                rounds[place] += 1
                await asyncio.sleep(0)  # what is believed waits for nothing, and would let nobody else work

        def they_have_seen(number: int) -> bool:
            return min(rounds) >= number

        async with asyncio.TaskGroup() as group:
            group.create_task(verify(0))
            group.create_task(verify(1))
            for number in range(ROTATIONS):
                turn(hubs[number % 2], Use.SIGNING, Use.ENCRYPTION)
                pair = await signed_in(hubs[number % 2], secret)
                tokens.append(pair.access)
                tokens.append((await refreshed(there, pair.refresh)).access)
                assert (await refreshed(here, pair.refresh)).access == tokens[-1]  # sealed there, opened here
                await until(partial(they_have_seen, min(rounds) + 2))
            done.set()

        assert len({kid_of(token) for token in tokens}) == ROTATIONS + 1
        assert {kid_of(token) for token in tokens} <= kids(here) == kids(there)


async def test_a_key_is_published_before_it_signs(hub: Hub) -> None:
    secret = await added(hub)
    for _ in range(3):
        published = kids(hub)
        turn(hub, Use.SIGNING)

        signed = kid_of((await signed_in(hub, secret)).access)

        assert signed in published
        [active] = [key.id for key in hub.keys.keys.of(Use.SIGNING) if key.state is State.ACTIVE]
        assert signed == active


async def test_a_retired_key_takes_with_it_what_it_signed(settings: Settings, roads: Roads) -> None:
    async with two_hubs(settings, roads) as (here, there):
        await until(lambda: there.doorbell.listening)
        secret = await added(here)
        old = await signed_in(here, secret)
        turn(here, Use.SIGNING)
        new = await signed_in(here, secret)
        for hub in (here, there):
            assert await comes_in(hub, old.access)

        with there.doorbell.hear(Bell.TOKENS) as ear:
            ear.heard()
            retire(here, kid_of(old.access))
            await until(ear.heard)

        for hub in (here, there):
            with pytest.raises(BadToken, match="not one of our"):
                await hub.tokens.verify(old.access)
            assert await comes_in(hub, new.access)
            assert kid_of(old.access) not in kids(hub)
        assert await is_good(here, old.refresh)


async def test_a_retired_key_is_gone_also_for_who_noticed_while_signing(settings: Settings, roads: Roads) -> None:
    """The keys are read again by whoever uses one first; what was verified under those before is then doubted too."""
    async with two_hubs(settings, roads) as (here, there):
        secret = await added(here)
        old = await signed_in(here, secret)
        turn(here, Use.SIGNING)
        assert await comes_in(there, old.access)

        retire(here, kid_of(old.access), loudly=False)
        await signed_in(there, secret)
        there.tokens.doubt()

        assert not await comes_in(there, old.access)


@pytest.mark.parametrize("uses", [[Use.ENCRYPTION], [Use.SIGNING, Use.ENCRYPTION]])
async def test_a_lost_answer_is_found_again_after_keys_have_turned(hub: Hub, uses: Iterable[Use]) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh)

    turn(hub, *uses)

    assert (await refreshed(hub, first.refresh)).access == second.access


async def test_another_hubs_keys_sign_nothing_here(hub: Hub) -> None:
    pair = await joined(hub)
    claims = jwt.read(hub.keys, pair.access, "pabal")
    forged = jwt.sign(Ring(Keys.made(datetime.now(UTC))), claims)

    assert jwt.sign(hub.keys, claims) != forged
    with pytest.raises(BadToken, match="not one of our"):
        await hub.tokens.verify(forged)


async def test_a_token_we_signed_but_never_issued_opens_nothing(hub: Hub) -> None:
    """The row is the truth: whoever has a signing key alone has nothing."""
    pair = await joined(hub)
    claims = jwt.read(hub.keys, pair.access, "pabal")
    longer = jwt.sign(hub.keys, structs.replace(claims, scope="hub:admin", exp=claims.exp + 3600))

    assert jwt.read(hub.keys, longer, "pabal").scope == "hub:admin"
    with pytest.raises(BadToken, match="expired or was revoked"):
        await hub.tokens.verify(longer)
