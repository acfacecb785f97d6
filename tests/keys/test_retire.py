"""An old key can be retired when nothing needs it, by the database's clock."""

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
from support.envelopes import insert_envelopes
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
GRACE = [(use, grace) for use, (grace, _) in rotation.RETIRE_GRACE.items()]


async def rotate_use(hub: Hub, use: KeyUse) -> Key:
    """Rotate a use; returns the key that became old."""
    before = hub.key_ring.active(use)
    async with hub.autocommit() as tx:
        at = await read_database_clock(tx)
    with hub.key_ring.update(lambda keys: keys.rotate([use], at)):
        pass
    old_key = hub.key_ring.find(before.id)
    assert old_key
    assert old_key == replace(before, state=KeyState.OLD, since=at)
    return old_key


async def check_retirable(hub: Hub, key: Key, *, force: bool = False) -> None:
    async with hub.transaction() as tx:
        await check_key_retirable(tx, key, force=force)


@pytest.mark.parametrize(("use", "grace"), GRACE)
async def test_an_old_key_is_kept_until_its_tokens_have_expired(
    hub: Hub, travel: Travel, use: KeyUse, grace: timedelta
) -> None:
    old_key = await rotate_use(hub, use)
    await travel(grace - timedelta(seconds=20))
    with pytest.raises(Conflict, match=rf"^{old_key.id} was rotated less than .* ago; .*\. Wait, or use --force$"):
        await check_retirable(hub, old_key)
    await check_retirable(hub, old_key, force=True)

    await travel(timedelta(seconds=21))
    await check_retirable(hub, old_key)


async def test_an_old_key_is_kept_while_values_are_encrypted_under_it(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    await insert_envelopes(database_urls, hub.key_ring, 3)
    old_key = await rotate_use(hub, KeyUse.ENCRYPTION)
    await travel(timedelta(days=1))
    for force in (False, True):
        with pytest.raises(
            Conflict, match=f"^15 values are encrypted under {old_key.id}\\. Run `pabal key rewrap` first$"
        ):
            await check_retirable(hub, old_key, force=force)

    await rewrap_all_envelopes(hub.transaction, hub.key_ring, lambda _: None)
    await check_retirable(hub, old_key)


async def test_an_old_key_is_kept_while_seals_depend_on_it(hub: Hub, travel: Travel) -> None:
    old_key = await rotate_use(hub, KeyUse.AUDIT)
    await travel(timedelta(days=1))
    await check_retirable(hub, old_key)
    async with hub.transaction() as tx:
        await record_audit_entry(tx, AuditEntry("cli:root", "key.rotated", old_key.id))
    await wait_until(lambda: seal_rows(hub, old_key))

    for force in (False, True):
        with pytest.raises(Conflict, match=f"^1 seals .* with {old_key.id}$"):
            await check_retirable(hub, old_key, force=force)


async def seal_rows(hub: Hub, key: Key) -> bool:
    """Whether rows were sealed: not before all older transactions of the server have ended."""
    async with hub.transaction() as tx:
        return await seal_audit_log(tx, key, 100) is not None
