"""Load the keys of a hub at start."""

from pabal.core.errors import SetupError
from pabal.db.pool import Database
from pabal.keys.keyring import (
    KEY_FILE_NAME,
    KeyRing,
    keyring_from_setting,
    open_or_create_keyring,
)
from pabal.keys.private_file import private_file_exists
from pabal.keys.rotation import database_uses_keys
from pabal.settings import Settings


async def load_keyring(settings: Settings, db: Database) -> KeyRing:
    """The keys of PABAL_KEYS, else those in the data folder, which the first start creates.

    A database that already uses keys must not get new ones: its encrypted values would be unreadable.
    """
    if settings.keys:
        return keyring_from_setting(settings.keys.get_secret_value())
    path = settings.data_dir / KEY_FILE_NAME
    if not private_file_exists(path):
        async with db.autocommit() as tx:
            if await database_uses_keys(tx):
                raise SetupError(
                    f"the keys that this database was written with are missing: restore {path}, or set PABAL_KEYS"
                )
    return open_or_create_keyring(settings.data_dir)
