"""Checks of the settings, the files with secrets, and the interpreter."""

import ipaddress
import os
import stat
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pabal.core.errors import SetupError, Unavailable
from pabal.core.finding import Finding, FindingLevel
from pabal.core.messages import Message
from pabal.core.nats_url import NatsServer
from pabal.core.network import is_loopback
from pabal.db.doorbell.nats import check_nats
from pabal.keys.key import KeyUse
from pabal.keys.keyring import KEY_FILE_NAME, find_keyring
from pabal.keys.webhook_secret import WEBHOOK_SECRET_FILE, read_webhook_secret, webhook_secret_path
from pabal.settings import ENV_PREFIX, Settings, variable_name

MIN_WEBHOOK_SECRET_LENGTH = 16
"""A shorter secret can be guessed from one signature."""
MAX_SIGNING_KEY_AGE = timedelta(days=90)
"""Age after which the signing key should be rotated."""

FIXED_PATCH_RELEASES = {(3, 11): 10, (3, 12): 6}
"""The first release of each Python version with a linear parser of cookies."""


def check_interpreter(version: tuple[int, int, int]) -> Finding:
    seen = ".".join(map(str, version))
    fixed = FIXED_PATCH_RELEASES.get(version[:2], 0)
    if version[2] < fixed:
        return Finding(
            FindingLevel.WARNING,
            "python",
            Message("{} parses cookies in quadratic time (CVE-2024-7592); the hub uses a parser of its own", seen),
            Message("upgrade to Python {} or newer", f"{version[0]}.{version[1]}.{fixed}"),
        )
    return Finding(FindingLevel.GOOD, "python", seen)


def check_keys(settings: Settings) -> Iterator[Finding]:
    """Files with secrets must be private, every host must have the same keys, and the signing key must not be old."""
    for name in ("passwords.json", KEY_FILE_NAME, WEBHOOK_SECRET_FILE):
        path = settings.data_dir / name
        if mode := mode_if_shared(path):
            yield Finding(
                FindingLevel.BAD,
                path.stem.replace("-", " "),
                Message("{} is readable by other users (mode {})", path, f"{mode:o}"),
                f"chmod 600 {path}",
            )
    try:
        key_ring = find_keyring(settings)
    except SetupError as error:
        yield Finding(
            FindingLevel.BAD,
            "keys",
            str(error),
            Message("restore the keys from a backup: encrypted values cannot be read without them"),
        )
        return
    if key_ring is None:
        yield Finding(FindingLevel.GOOD, "keys", Message("none yet; the first start creates them"))
        return
    if key_ring.path and not settings.uses_embedded_server:
        yield Finding(
            FindingLevel.WARNING,
            "keys",
            Message("in {}, but other hosts may use the same database", key_ring.path),
            Message("set PABAL_KEYS to the content of that file on every host"),
        )
    else:
        yield Finding(
            FindingLevel.GOOD, "keys", Message("in {}", key_ring.path) if key_ring.path else Message("from PABAL_KEYS")
        )
    signing_key = key_ring.active(KeyUse.SIGNING)
    if (age := datetime.now(UTC) - signing_key.since) > MAX_SIGNING_KEY_AGE:
        yield Finding(
            FindingLevel.WARNING,
            "signing key",
            Message("{} has been the signing key for {} days", signing_key.id, age.days),
            Message("run `pabal key rotate`"),
        )


def mode_if_shared(path: Path) -> int:
    """The mode of a file that other users can access, else 0."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0
    return mode if mode & (stat.S_IRWXG | stat.S_IRWXO) else 0


def check_listen_address(settings: Settings) -> Finding:
    seen = Message("listens on {}:{}", settings.host, settings.port)
    if is_loopback(settings.host):
        return Finding(FindingLevel.GOOD, "address", seen)
    if not settings.public_url or not settings.public_url.startswith("https://"):
        return Finding(
            FindingLevel.WARNING,
            "address",
            Message("{}, reachable from the network, but PABAL_PUBLIC_URL is not an https URL", seen),
            Message("put a TLS proxy in front and set PABAL_PUBLIC_URL, or listen on 127.0.0.1"),
        )
    return Finding(FindingLevel.GOOD, "address", seen)


def check_webhook_secret(settings: Settings) -> Finding:
    if settings.webhook_open:
        return Finding(
            FindingLevel.WARNING,
            "webhook secret",
            Message("PABAL_WEBHOOK_OPEN is set: every program on this computer can post as Kakao"),
            Message("unset PABAL_WEBHOOK_OPEN unless you are testing"),
        )
    if settings.webhook_secret:
        if len(settings.webhook_secret.get_secret_value()) < MIN_WEBHOOK_SECRET_LENGTH:
            return Finding(
                FindingLevel.WARNING,
                "webhook secret",
                Message("shorter than {} characters", MIN_WEBHOOK_SECRET_LENGTH),
                Message("set PABAL_WEBHOOK_SECRET to a longer random value"),
            )
        return Finding(FindingLevel.GOOD, "webhook secret", Message("set"))
    path = webhook_secret_path(settings)
    try:
        if read_webhook_secret(path):
            return Finding(FindingLevel.GOOD, "webhook secret", Message("in {}", path))
    except SetupError as error:
        return Finding(
            FindingLevel.BAD, "webhook secret", str(error), Message("fix that error, then run `pabal doctor` again")
        )
    return Finding(
        FindingLevel.WARNING,
        "webhook secret",
        Message("not set: the webhook refuses every request"),
        Message("set PABAL_WEBHOOK_SECRET and add it as a header in Kakao's skill settings"),
    )


def check_callback_origins(settings: Settings) -> Finding:
    if not settings.callback_allow:
        return Finding(FindingLevel.GOOD, "callback origins", Message("only Kakao's"))
    return Finding(
        FindingLevel.WARNING,
        "callback origins",
        Message("callbacks are also allowed to {}", ", ".join(settings.callback_allow)),
        Message("clear PABAL_CALLBACK_ALLOW in production"),
    )


def check_trusted_proxies(settings: Settings, untrusted_proxy: str | None = None) -> Finding:
    """Clients behind a proxy that is not trusted share its address, and with it the limits per address."""
    open_networks = [
        network for network in settings.trusted_proxies if ipaddress.ip_network(network, strict=False).prefixlen == 0
    ]
    if open_networks:
        return Finding(
            FindingLevel.BAD,
            "trusted proxies",
            Message("{} trusts the X-Forwarded-For header of every client", ", ".join(open_networks)),
            Message("set PABAL_TRUSTED_PROXIES to the address of your proxy"),
        )
    if untrusted_proxy:
        return Finding(
            FindingLevel.WARNING,
            "trusted proxies",
            Message("{} forwards requests but is not trusted, so all its clients share one address", untrusted_proxy),
            Message("set PABAL_TRUSTED_PROXIES to the address of your proxy"),
        )
    is_behind_proxy = bool(settings.public_url) and (
        settings.public_url.startswith("https://") or is_loopback(settings.host)
    )
    if is_behind_proxy and not settings.trusted_proxies:
        return Finding(
            FindingLevel.WARNING,
            "trusted proxies",
            Message("none, but PABAL_PUBLIC_URL needs a proxy: all clients share its address"),
            Message("set PABAL_TRUSTED_PROXIES to the address of your proxy"),
        )
    return Finding(FindingLevel.GOOD, "trusted proxies", ", ".join(settings.trusted_proxies) or Message("none"))


async def check_nats_servers(servers: Sequence[NatsServer]) -> Finding:
    """Whether NATS carries wakeups. Without it the hub works on, at the cost of NOTIFY."""
    names = ", ".join(map(str, servers))
    try:
        await check_nats(servers)
    except Unavailable as error:
        return Finding(
            FindingLevel.WARNING,
            "nats",
            Message("no server of PABAL_DOORBELL responds, so hubs use NOTIFY: {}", error),
            Message("check PABAL_DOORBELL and that the NATS server is running"),
        )
    return Finding(FindingLevel.GOOD, "nats", Message("{} responds", names))


def check_unknown_variables() -> list[Finding]:
    variables = {variable_name(name) for name in Settings.model_fields}
    return [
        Finding(
            FindingLevel.WARNING,
            "settings",
            Message("{} is not a known setting", name),
            Message("run `pabal settings` for the list"),
        )
        for name in sorted(os.environ)
        if name.startswith(ENV_PREFIX) and name not in variables
    ]
