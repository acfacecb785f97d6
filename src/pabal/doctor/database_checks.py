"""Checks of the database: reachable, migrated, readable with the current keys."""

from collections.abc import AsyncIterator

from pabal.audit.checks import check_audit_chain
from pabal.core.errors import PabalError
from pabal.core.finding import Finding, FindingLevel
from pabal.core.messages import Message
from pabal.db.doorbell.notify import check_listen_notify
from pabal.db.migrate import read_migration_status
from pabal.db.planner_check import check_planner_settings
from pabal.db.pool import ConnectOptions, Database, ServerInfo, probe_server
from pabal.db.schema import MIN_SERVER_MAJOR
from pabal.hub import DatabaseUrls, connect_options
from pabal.keys.key import KEY_ID_FORMAT, KeyUse
from pabal.keys.keyring import find_keyring
from pabal.keys.rotation import count_envelopes
from pabal.maintenance import check_chores
from pabal.notifications.dispatch.missing_transport import count_without_transport
from pabal.settings import Settings
from pabal.status import check_status


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
            Message("migrations pending: {}", len(status.pending)),
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
            "no bot token is set; notifications waiting: {}, suppressed in the last day: {}",
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
