"""The doctor checks the environment of a hub and says what to do about problems."""

import ipaddress
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pabal.audit.checks import check_audit_chain, check_head_file
from pabal.core.errors import PabalError, SetupError
from pabal.core.finding import Finding, FindingLevel
from pabal.core.messages import Message
from pabal.db.doorbell import check_listen_notify
from pabal.db.embedded.checks import check_server_user
from pabal.db.migrate import read_migration_status
from pabal.db.planner_check import check_planner_settings
from pabal.db.pool import ConnectOptions, Database, ServerInfo, probe_server
from pabal.db.schema import MIN_SERVER_MAJOR
from pabal.hub import DatabaseUrls, connect_options
from pabal.keys.key import KEY_ID_FORMAT, KeyUse
from pabal.keys.keyring import KEY_FILE_NAME, find_keyring
from pabal.keys.rotation import count_envelopes
from pabal.keys.webhook_secret import WEBHOOK_SECRET_FILE, read_webhook_secret, webhook_secret_path
from pabal.maintenance import check_chores
from pabal.notifications.dispatch.missing_transport import count_without_transport
from pabal.settings import ENV_PREFIX, Settings, is_loopback, variable_name
from pabal.status import check_free_space, check_status

MIN_WEBHOOK_SECRET_LENGTH = 16
"""A shorter secret can be guessed from one signature."""
MAX_SIGNING_KEY_AGE = timedelta(days=90)
"""Age after which the signing key should be rotated."""

FIXED_PATCH_RELEASES = {(3, 11): 10, (3, 12): 6}
"""The first release of each Python version with a linear parser of cookies."""


async def run_checks(
    settings: Settings, database_urls: DatabaseUrls | None, untrusted_proxy: str | None = None
) -> list[Finding]:
    """Run all checks; a failing check does not stop the others.

    `untrusted_proxy` is the address of a proxy that forwarded requests to this process without being trusted.
    """
    findings = [finding async for finding in check_database(settings, database_urls)]
    findings += [
        check_interpreter(sys.version_info[:3]),
        check_free_space(settings.data_dir),
        *check_keys(settings),
        check_head_file(settings.data_dir),
        check_listen_address(settings),
        check_webhook_secret(settings),
        check_callback_origins(settings),
        check_trusted_proxies(settings, untrusted_proxy),
    ]
    if settings.uses_embedded_server and (finding := check_server_user(settings.data_dir)):
        findings.append(finding)
    findings += check_unknown_variables()
    return findings


async def check_database(settings: Settings, database_urls: DatabaseUrls | None) -> AsyncIterator[Finding]:
    if database_urls is None:
        yield Finding(
            FindingLevel.WARNING,
            "database",
            Message("no hub is running in {}", settings.data_dir),
            Message("start one with `pabal up`, or set PABAL_DATABASE_URL"),
        )
        return
    options = connect_options(settings, database_urls.main, pooler=settings.database_pooler)
    try:
        server = await probe_server(options)
    except PabalError as error:
        yield Finding(
            FindingLevel.BAD, "database", str(error), Message("check PABAL_DATABASE_URL and that the server is running")
        )
        return
    yield check_postgres_version(server)
    if server.superuser:
        yield Finding(
            FindingLevel.WARNING,
            "database role",
            Message("PABAL_DATABASE_URL logs in as a superuser")
            if server.pooler
            else Message("PABAL_DATABASE_URL logs in as a superuser; the hub switches to service_role"),
            Message("create a login for the hub that is a member of service_role"),
        )
    if server.pooler:
        yield check_pooler(database_urls)
    schema = await check_schema_version(database_urls)
    yield schema
    if schema.level is FindingLevel.GOOD:
        if server.pooler:
            yield await check_planner_settings(options)
        yield await check_envelopes(settings, options)
        yield await check_audit(settings, options)
        yield await check_chores(options)
        yield await check_discord_token(settings, options)
        async for finding in check_status(options):
            yield finding
    direct = database_urls.direct or (None if server.pooler else database_urls.main)
    if direct is not None:
        yield await check_doorbell(connect_options(settings, direct, pooler=False))


def check_postgres_version(server: ServerInfo) -> Finding:
    major, minor = divmod(server.version, 10000)
    seen = Message("PostgreSQL {}.{} responds", major, minor)
    if major < MIN_SERVER_MAJOR:
        return Finding(
            FindingLevel.BAD, "database", seen, Message("upgrade to PostgreSQL {} or newer", MIN_SERVER_MAJOR)
        )
    return Finding(FindingLevel.GOOD, "database", seen)


def check_pooler(database_urls: DatabaseUrls) -> Finding:
    if database_urls.direct:
        return Finding(
            FindingLevel.GOOD, "pooler", Message("detected; LISTEN and migrations use the direct connection")
        )
    return Finding(
        FindingLevel.WARNING,
        "pooler",
        Message("transaction pooler detected: LISTEN does not work, so queues are polled every second"),
        Message("set PABAL_DATABASE_DIRECT_URL to the same database without the pooler"),
    )


async def check_schema_version(database_urls: DatabaseUrls) -> Finding:
    try:
        status = await read_migration_status(database_urls.direct or database_urls.main)
    except PabalError as error:
        return Finding(FindingLevel.BAD, "schema", str(error), Message("run `pabal migrate status`"))
    if status.unknown:
        newest = status.unknown[-1].version
        return Finding(
            FindingLevel.BAD,
            "schema",
            Message("newer than this Pabal ({})", newest),
            Message("install the newer version of Pabal"),
        )
    if status.changed:
        names = ", ".join(migration.file_name for migration in status.changed)
        return Finding(
            FindingLevel.BAD,
            "schema",
            Message("files changed after they were applied: {}", names),
            Message("restore the original files"),
        )
    if status.pending:
        return Finding(
            FindingLevel.WARNING,
            "schema",
            Message("{} migrations pending", len(status.pending)),
            Message("run `pabal migrate up`"),
        )
    return Finding(FindingLevel.GOOD, "schema", Message("{} migrations applied, none pending", len(status.applied)))


async def check_doorbell(options: ConnectOptions) -> Finding:
    try:
        notified = await check_listen_notify(options)
    except PabalError as error:
        return Finding(FindingLevel.BAD, "doorbell", str(error), Message("check PABAL_DATABASE_DIRECT_URL"))
    if notified:
        return Finding(FindingLevel.GOOD, "doorbell", Message("NOTIFY reaches LISTEN"))
    return Finding(
        FindingLevel.WARNING,
        "doorbell",
        Message("NOTIFY does not reach LISTEN, so queues are polled every second"),
        Message("set PABAL_DATABASE_DIRECT_URL to the same database without the pooler"),
    )


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


async def check_discord_token(settings: Settings, options: ConnectOptions) -> Finding:
    """Whether notifications for Discord can be sent. Without a token that is a problem only once there are any."""
    if settings.discord_dry_run:
        return Finding(
            FindingLevel.WARNING,
            "discord",
            Message("dry run: notifications are logged and marked as sent"),
            Message("unset PABAL_DISCORD_DRY_RUN to send them"),
        )
    if settings.has_discord_transport:
        return Finding(FindingLevel.GOOD, "discord", Message("a bot token is set"))
    try:
        async with Database(options) as db, db.autocommit() as tx:
            counts = await count_without_transport(tx)
    except PabalError as error:
        return Finding(
            FindingLevel.WARNING,
            "discord",
            Message("not checked: {}", error),
            Message("fix that error, then run `pabal doctor` again"),
        )
    if not counts.total:
        return Finding(FindingLevel.GOOD, "discord", Message("no bot token is set, and no notification needed one"))
    return Finding(
        FindingLevel.BAD if counts.waiting else FindingLevel.WARNING,
        "discord",
        Message(
            "no bot token is set: {} notifications wait, {} were suppressed in the last day",
            counts.waiting,
            counts.suppressed,
        ),
        Message("set PABAL_DISCORD_TOKEN and restart the hub"),
    )


async def check_envelopes(settings: Settings, options: ConnectOptions) -> Finding:
    """Whether the current keys can decrypt the values in the database."""
    try:
        key_ring = find_keyring(settings)
        key_ids = {key.id for key in key_ring.keys.for_use(KeyUse.ENCRYPTION)} if key_ring else set[str]()
        async with Database(options) as db, db.autocommit() as tx:
            counts = await count_envelopes(tx)
    except PabalError as error:
        return Finding(
            FindingLevel.WARNING,
            "encrypted values",
            Message("not checked: {}", error),
            Message("fix that error, then run `pabal doctor` again"),
        )
    unreadable = {key_id: count for key_id, count in counts.items() if key_id not in key_ids}
    if not unreadable:
        return Finding(
            FindingLevel.GOOD,
            "encrypted values",
            Message("{}, all readable with the current keys", sum(counts.values())),
        )
    names = [key_id for key_id in unreadable if key_id and KEY_ID_FORMAT.fullmatch(key_id)]
    return Finding(
        FindingLevel.BAD,
        "encrypted values",
        Message("{} of {} cannot be read with the current keys", sum(unreadable.values()), sum(counts.values())),
        Message(
            "restore {}; `pabal key rewrap` lists the rows", ", ".join(sorted(names)) or Message("the missing keys")
        ),
    )


async def check_audit(settings: Settings, options: ConnectOptions) -> Finding:
    """Whether the chain of the audit log contains the head that this host knows."""
    try:
        async with Database(options) as db, db.autocommit() as tx:
            return await check_audit_chain(tx, find_keyring(settings), settings.data_dir)
    except PabalError as error:
        return Finding(
            FindingLevel.WARNING,
            "audit chain",
            Message("not checked: {}", error),
            Message("fix that error, then run `pabal doctor` again"),
        )


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
