"""Decrypt texts in commands, with the keys of this host."""

from typing import TYPE_CHECKING

from pabal.cli.options import Connection
from pabal.core.errors import SetupError

if TYPE_CHECKING:
    from pabal.relay.encryption.message_cipher import MessageCipher


def host_cipher(connection: Connection) -> "MessageCipher | None":
    """What decrypts the texts of messages; None if this host has no keys.

    The imports are only needed for encrypted texts.
    """
    from pabal.keys.keyring import find_keyring
    from pabal.relay.encryption.data_keys import DataKeyCache
    from pabal.relay.encryption.message_cipher import MessageCipher
    from pabal.settings import load_settings

    settings = load_settings(data_dir=connection.data_dir, database_url=connection.database_url)
    try:
        key_ring = find_keyring(settings)
    except SetupError:
        return None
    return MessageCipher(DataKeyCache(key_ring), is_on=False) if key_ring else None
