"""The secret of the Kakao webhook: from the settings, or generated in the data directory beside the keys."""

import secrets
from pathlib import Path

from pydantic import SecretStr

from pabal.core.errors import SetupError
from pabal.core.log import get_logger
from pabal.keys.private_file import ensure_private_directory, replace_private_file, write_private_draft
from pabal.settings import Settings

log = get_logger()

WEBHOOK_SECRET_FILE = "webhook-secret"  # noqa: S105 the name of the file, not the secret


def webhook_secret_path(settings: Settings) -> Path:
    return settings.data_dir / WEBHOOK_SECRET_FILE


def with_webhook_secret(settings: Settings) -> Settings:
    """The settings with the generated webhook secret, if none is set and the webhook is not open."""
    if settings.webhook_secret or settings.webhook_open:
        return settings
    secret = read_webhook_secret(webhook_secret_path(settings))
    return settings.model_copy(update={"webhook_secret": secret}) if secret else settings


def ensure_webhook_secret(settings: Settings) -> Settings:
    """Like `with_webhook_secret`, but generate the secret if there is none.

    Only the process that runs the embedded server calls this: two hosts on one database would generate two secrets.
    """
    complete = with_webhook_secret(settings)
    if complete.webhook_secret or complete.webhook_open:
        return complete
    write_webhook_secret(webhook_secret_path(settings), secrets.token_urlsafe(32))
    return with_webhook_secret(settings)


def read_webhook_secret(path: Path) -> SecretStr | None:
    """The secret in the file; None if there is no file."""
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from None
    if not text:
        raise SetupError(f"{path} is empty: delete it to generate a new webhook secret")
    return SecretStr(text)


def write_webhook_secret(path: Path, secret: str) -> None:
    """Write the file, readable by the owner of the data directory only."""
    ensure_private_directory(path)
    replace_private_file(write_private_draft(path, f"{secret}\n".encode()), path)
    log.info("webhook secret generated", file=str(path))
