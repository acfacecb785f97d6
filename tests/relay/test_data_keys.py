"""Data keys of accounts: what their envelopes are bound to, and how many a process keeps."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from pabal.core.errors import DecryptionError
from pabal.hub import Hub
from pabal.keys.key import KeyUse
from pabal.keys.rotation import count_envelopes, rewrap_all_envelopes
from pabal.relay.encryption.data_keys import HUB_KEY_OWNER, DataKey, DataKeyCache
from support.relay_rows import Chat


def test_an_envelope_is_bound_to_its_account_row_and_column() -> None:
    owner, column, row = UUID(int=1), b"column", b"row"
    key, other = DataKey(owner, b"1" * 32), DataKey(UUID(int=2), b"1" * 32)
    envelope = key.encrypt(b"text", column, row)

    assert key.decrypt(envelope, column, row) == b"text"
    for wrong_key, wrong_column, wrong_row in ((other, column, row), (key, b"other", row), (key, column, b"other")):
        with pytest.raises(DecryptionError):
            wrong_key.decrypt(envelope, wrong_column, wrong_row)
    with pytest.raises(DecryptionError):
        key.decrypt(envelope[:-6], column, row)


@pytest.mark.anyio
async def test_the_cache_of_keys_is_bounded(hub: Hub, chat: Chat) -> None:
    cache = DataKeyCache(hub.key_ring, max_keys=2)
    owners = [(await chat.owner()).id for _ in range(3)]
    async with hub.autocommit() as tx:
        created = await cache.load(tx, owners, create=True)
        loaded = [(await cache.load(tx, [owner]))[owner] for owner in owners]

    assert len(cache) == 2
    for key in loaded:
        envelope = created[key.owner].encrypt(b"text", b"column", b"row")
        assert key.decrypt(envelope, b"column", b"row") == b"text"


@pytest.mark.anyio
async def test_a_rotation_wraps_the_keys_of_the_accounts_and_of_the_hub_anew(hub: Hub, chat: Chat) -> None:
    owners = [HUB_KEY_OWNER, (await chat.owner()).id]
    async with hub.autocommit() as tx:
        await DataKeyCache(hub.key_ring).load(tx, owners, create=True)
    old = hub.key_ring.active(KeyUse.ENCRYPTION)

    with hub.key_ring.update(lambda keys: keys.rotate([KeyUse.ENCRYPTION], datetime.now(UTC))):
        pass
    await rewrap_all_envelopes(hub.transaction, hub.key_ring, lambda _: None)

    async with hub.autocommit() as tx:
        assert old.id not in await count_envelopes(tx)
        assert {*await DataKeyCache(hub.key_ring).load(tx, owners)} == {*owners}
