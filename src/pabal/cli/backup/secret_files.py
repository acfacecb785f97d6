"""The secrets of a hub in a backup: its keys and its webhook secret, wrapped with a passphrase."""

import os
import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from pabal.core.errors import BackupError, Conflict, Invalid
from pabal.keys.keyring import KEY_FILE_NAME, encode_key_file, find_keyring
from pabal.keys.private_file import (
    ensure_private_directory,
    private_file_exists,
    replace_private_file,
    write_private_draft,
)
from pabal.keys.webhook_secret import WEBHOOK_SECRET_FILE, read_webhook_secret, webhook_secret_path
from pabal.settings import Settings

PASSPHRASE_VARIABLE = "PABAL_BACKUP_PASSPHRASE"  # noqa: S105 the name of the variable
MIN_PASSPHRASE_LENGTH = 12

PassphraseFile = Annotated[
    Path | None,
    Parameter(help=f"File with the passphrase of the keys. Default: [{PASSPHRASE_VARIABLE}], else it is asked for."),
]


class BackupSecrets(msgspec.Struct, frozen=True):
    """The secrets of a backup, by the name of their file in the data directory."""

    files: dict[str, str]


def read_passphrase(file: Path | None, *, repeat: bool) -> str:
    """Read the passphrase of the keys; at a terminal, ask for it, twice with `repeat`."""
    if file is not None:
        try:
            return check_passphrase(file.read_text().strip())
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid.of_field("--passphrase-file", f"{file} cannot be read: {error}") from None
    if value := os.environ.get(PASSPHRASE_VARIABLE):
        return check_passphrase(value)
    if not sys.stdin.isatty():
        raise Invalid.of_field("--passphrase-file", f"is required without a terminal, or set {PASSPHRASE_VARIABLE}")
    passphrase = check_passphrase(getpass("Passphrase of the keys: "))
    if repeat and getpass("Repeat passphrase: ") != passphrase:
        raise Invalid.of_field("passphrase", "the two entries differ")
    return passphrase


def check_passphrase(passphrase: str) -> str:
    if len(passphrase) < MIN_PASSPHRASE_LENGTH:
        raise Invalid.of_field("passphrase", f"must have at least {MIN_PASSPHRASE_LENGTH} characters")
    return passphrase


def collect_secrets(settings: Settings) -> bytes:
    """The keys that the hub uses, and the webhook secret that it generated."""
    keyring = find_keyring(settings)
    if keyring is None:
        raise BackupError(f"there are no keys in {settings.data_dir}: leave out --with-keys")
    files = {KEY_FILE_NAME: encode_key_file(keyring.keys).decode()}
    if secret := read_webhook_secret(webhook_secret_path(settings)):
        files[WEBHOOK_SECRET_FILE] = secret.get_secret_value() + "\n"
    return msgspec.json.encode(BackupSecrets(files))


def decode_secrets(content: bytes) -> BackupSecrets:
    secrets = msgspec.json.decode(content, type=BackupSecrets)
    unknown = secrets.files.keys() - {KEY_FILE_NAME, WEBHOOK_SECRET_FILE}
    if unknown:
        raise BackupError(f"the backup contains unknown secrets: {', '.join(sorted(unknown))}")
    return secrets


def require_no_keys(settings: Settings) -> None:
    path = settings.data_dir / KEY_FILE_NAME
    if private_file_exists(path):
        raise Conflict(f"{path} exists already: move it away, or restore into another data directory")


def draft_secrets(settings: Settings, secrets: BackupSecrets) -> dict[Path, Path]:
    """Write the files under temporary names, so that only a rename is left to do. Existing files are kept."""
    drafts: dict[Path, Path] = {}
    for name, text in secrets.files.items():
        path = settings.data_dir / name
        if not private_file_exists(path):
            ensure_private_directory(path)
            drafts[write_private_draft(path, text.encode())] = path
    return drafts


def store_secrets(drafts: dict[Path, Path]) -> None:
    for draft, path in drafts.items():
        replace_private_file(draft, path)
