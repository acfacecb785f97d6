"""Wrap secrets with a passphrase, for backups: scrypt derives the key, AES-256-GCM encrypts.

`v1.<salt>.<nonce>.<ciphertext>`, the last three in base64url. The cost parameters belong to the version, so that a
crafted file cannot ask for more memory.
"""

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from pabal.core.errors import DecryptionError
from pabal.core.secrets import decode_base64url, encode_base64url

WRAP_VERSION = "v1"
SALT_BYTES = 16
WRAP_NONCE_BYTES = 12
SCRYPT_COST = 1 << 17  # 128 MB and about half a second
SCRYPT_BLOCK_SIZE = 8
PURPOSE = b"pabal backup secrets v1"


def wrap_secrets(passphrase: str, content: bytes) -> bytes:
    salt, nonce = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(WRAP_NONCE_BYTES)
    ciphertext = AESGCM(derive_wrapping_key(passphrase, salt)).encrypt(nonce, content, PURPOSE)
    return ".".join((WRAP_VERSION, *map(encode_base64url, (salt, nonce, ciphertext)))).encode()


def unwrap_secrets(passphrase: str, wrapped: bytes) -> bytes:
    try:
        version, *parts = wrapped.decode("ascii").split(".")
        salt, nonce, ciphertext = map(decode_base64url, parts)
        if version != WRAP_VERSION:
            raise DecryptionError("the keys of the backup are wrapped in an unknown way: install a newer Pabal")
        return AESGCM(derive_wrapping_key(passphrase, salt)).decrypt(nonce, ciphertext, PURPOSE)
    except (ValueError, InvalidTag):
        raise DecryptionError("the passphrase is wrong: the keys of the backup cannot be decrypted") from None


def derive_wrapping_key(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=SCRYPT_COST, r=SCRYPT_BLOCK_SIZE, p=1).derive(passphrase.encode())
