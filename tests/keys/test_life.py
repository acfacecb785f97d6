"""An old key goes when nothing needs it any more, by the database's clock."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.audit.seal import seal_audit_log
from pabal.core.errors import Conflict
from pabal.hub import DatabaseUrls, Hub
from pabal.keys import rotation
from pabal.keys.key import Key, KeyState, KeyUse
from pabal.keys.rotation import check_key_retirable, read_database_clock, rewrap_all_envelopes
from support.envelopes import put_pairs
from support.wait import until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
GRACE = [(use, grace) for use, (grace, _) in rotation.RETIRE_GRACE.items()]


async def rotated(hub: Hub, use: KeyUse) -> Key:
    """Turn the keys; the one that has just left."""
    before = hub.key_ring.active(use)
    async with hub.autocommit() as tx:
        at = await read_database_clock(tx)
    with hub.key_ring.update(lambda keys: keys.rotate([use], at)):
        pass
    left = hub.key_ring.find(before.id)
    assert left
    assert left == replace(before, state=KeyState.OLD, since=at)
    return left


async def let_go(hub: Hub, key: Key, *, force: bool = False) -> None:
    async with hub.transaction() as tx:
        await check_key_retirable(tx, key, force=force)


@pytest.mark.parametrize(("use", "grace"), GRACE)
async def test_it_stays_until_what_it_made_has_run_out(hub: Hub, travel: Travel, use: KeyUse, grace: timedelta) -> None:
    left = await rotated(hub, use)
    await travel(grace - timedelta(seconds=20))
    with pytest.raises(Conflict, match=rf"^{left.id} was rotated less than .* ago; .*: wait, or use --force$"):
        await let_go(hub, left)
    await let_go(hub, left, force=True)

    await travel(timedelta(seconds=21))
    await let_go(hub, left)


async def test_it_stays_while_anything_is_encrypted_under_it(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    await put_pairs(database_urls, hub.key_ring, 3)
    left = await rotated(hub, KeyUse.ENCRYPTION)
    await travel(timedelta(days=1))
    for force in (False, True):
        with pytest.raises(Conflict, match=f"^12 values are encrypted under {left.id}: run `pabal keys rewrap` first$"):
            await let_go(hub, left, force=force)

    await rewrap_all_envelopes(hub.transaction, hub.key_ring, lambda _: None)
    await let_go(hub, left)


async def test_it_stays_while_a_seal_names_it(hub: Hub, travel: Travel) -> None:
    left = await rotated(hub, KeyUse.AUDIT)
    await travel(timedelta(days=1))
    await let_go(hub, left)
    async with hub.transaction() as tx:
        await record_audit_entry(tx, AuditEntry("cli:somebody", "key.rotated", left.id))
    await until(lambda: sealed(hub, left))

    for force in (False, True):
        with pytest.raises(Conflict, match=f"^1 seals .* with {left.id}$"):
            await let_go(hub, left, force=force)


async def sealed(hub: Hub, key: Key) -> bool:
    """Whether a seal could be made: not before every older transaction of the whole server has ended."""
    async with hub.transaction() as tx:
        return await seal_audit_log(tx, key, 100) > 0
