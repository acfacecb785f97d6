"""An old key goes when nothing needs it any more, by the database's clock."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from envelopes import put_pairs
from pabal.audit.record import Deed, record
from pabal.audit.seal import seal
from pabal.core.errors import Conflict
from pabal.keys import life
from pabal.keys.key import Key, State, Use
from pabal.keys.rewrap import rewrap_all
from pabal.wiring import Hub, Roads
from patience import until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
GRACE = [(use, grace) for use, (grace, _) in life.GRACE.items()]


async def rotated(hub: Hub, use: Use) -> Key:
    """Turn the keys; the one that has just left."""
    before = hub.keys.active(use)
    async with hub.autocommit() as tx:
        at = await life.now(tx)
    with hub.keys.changing(lambda keys: keys.rotated([use], at)):
        pass
    left = hub.keys.find(before.id)
    assert left
    assert left == replace(before, state=State.OLD, since=at)
    return left


async def let_go(hub: Hub, key: Key, *, force: bool = False) -> None:
    async with hub.transaction() as tx:
        await life.let_go(tx, key, force=force)


@pytest.mark.parametrize(("use", "grace"), GRACE)
async def test_it_stays_until_what_it_made_has_run_out(hub: Hub, travel: Travel, use: Use, grace: timedelta) -> None:
    left = await rotated(hub, use)
    await travel(grace - timedelta(seconds=20))
    with pytest.raises(Conflict, match=rf"^{left.id} left less than .* ago and .*: wait, or say --force$"):
        await let_go(hub, left)
    await let_go(hub, left, force=True)

    await travel(timedelta(seconds=21))
    await let_go(hub, left)


async def test_it_stays_while_anything_is_encrypted_under_it(hub: Hub, roads: Roads, travel: Travel) -> None:
    await put_pairs(roads, hub.keys, 3)
    left = await rotated(hub, Use.ENCRYPTION)
    await travel(timedelta(days=1))
    for force in (False, True):
        with pytest.raises(Conflict, match=f"^12 values are encrypted under {left.id}: run `pabal keys rewrap` first$"):
            await let_go(hub, left, force=force)

    await rewrap_all(hub.transaction, hub.keys, lambda _: None)
    await let_go(hub, left)


async def test_it_stays_while_a_seal_names_it(hub: Hub, travel: Travel) -> None:
    left = await rotated(hub, Use.AUDIT)
    await travel(timedelta(days=1))
    await let_go(hub, left)
    async with hub.transaction() as tx:
        await record(tx, Deed("cli:somebody", "key.rotated", left.id))
    await until(lambda: sealed(hub, left))

    for force in (False, True):
        with pytest.raises(Conflict, match=f"^{left.id} made 1 seals"):
            await let_go(hub, left, force=force)


async def sealed(hub: Hub, key: Key) -> bool:
    """Whether a seal could be made: not before every older transaction of the whole server has ended."""
    async with hub.transaction() as tx:
        return await seal(tx, key, 100) > 0
