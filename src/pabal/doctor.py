"""The doctor: looks at the ground the hub stands on and says what to do about it."""

import ipaddress
import os
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from pabal.core.errors import Failed, PabalError
from pabal.core.phrase import Phrase
from pabal.db import doorbell, migrate
from pabal.db.pool import Database, Ground, Reach, survey
from pabal.db.schema import OLDEST
from pabal.keys import rewrap
from pabal.keys.key import NAME, Use
from pabal.keys.ring import FILE, existing
from pabal.settings import PREFIX, Settings, variable
from pabal.wiring import Roads, reach

LITTLE_DISK = 1 << 30
LONG = timedelta(days=90)
"""How long a key may sign before somebody should think of the next one."""


class Level(StrEnum):
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor looked at. `advice` says what to do, and is empty when all is well."""

    level: Level
    what: str
    seen: str
    advice: str = ""


async def examine(settings: Settings, roads: Roads | None) -> list[Finding]:
    """Look at everything; one thing that fails does not hide the others."""
    findings = [finding async for finding in database(settings, roads)]
    findings += [
        disk(settings),
        *keys(settings),
        listens(settings),
        webhook(settings),
        callbacks(settings),
        proxies(settings),
    ]
    findings += unknown_variables()
    return findings


async def database(settings: Settings, roads: Roads | None) -> AsyncIterator[Finding]:
    if roads is None:
        yield Finding(
            Level.WARNING,
            "database",
            Phrase("no hub is running on {}", settings.data_dir),
            Phrase("start one with `pabal up`, or set PABAL_DATABASE_URL"),
        )
        return
    work = reach(settings, roads.work, pooler=settings.database_pooler)
    try:
        ground = await survey(work)
    except PabalError as error:
        yield Finding(Level.BAD, "database", str(error), Phrase("check PABAL_DATABASE_URL and that the server runs"))
        return
    yield version(ground)
    if ground.superuser:
        yield Finding(
            Level.WARNING,
            "database role",
            Phrase("the address logs in as a superuser")
            if ground.pooler
            else Phrase("the address logs in as a superuser; the hub puts on service_role for its work"),
            Phrase("give the hub a login of its own that is a member of service_role"),
        )
    if ground.pooler:
        yield pooled(roads)
    fit = await schema(roads)
    yield fit
    if fit.level is Level.GOOD:
        yield await envelopes(settings, work)
    direct = roads.direct or (None if ground.pooler else roads.work)
    if direct is not None:
        yield await bell(reach(settings, direct, pooler=False))


def version(ground: Ground) -> Finding:
    major, minor = divmod(ground.version, 10000)
    seen = Phrase("PostgreSQL {}.{} answers", major, minor)
    if major < OLDEST:
        return Finding(Level.BAD, "database", seen, Phrase("Pabal needs PostgreSQL {} or newer", OLDEST))
    return Finding(Level.GOOD, "database", seen)


def pooled(roads: Roads) -> Finding:
    if roads.direct:
        return Finding(Level.GOOD, "pooler", Phrase("in between; LISTEN and migrations take the direct road"))
    return Finding(
        Level.WARNING,
        "pooler",
        Phrase("a transaction pooler stands in between: no LISTEN, so lanes are looked at every second"),
        Phrase("set PABAL_DATABASE_DIRECT_URL to the same database without the pooler"),
    )


async def schema(roads: Roads) -> Finding:
    try:
        status = await migrate.status(roads.direct or roads.work)
    except PabalError as error:
        return Finding(Level.BAD, "schema", str(error), Phrase("see `pabal migrate status`"))
    if status.unknown:
        newest = status.unknown[-1].version
        return Finding(
            Level.BAD, "schema", Phrase("newer than this Pabal ({})", newest), Phrase("install the newer Pabal")
        )
    if status.changed:
        names = ", ".join(each.file for each in status.changed)
        return Finding(
            Level.BAD, "schema", Phrase("files changed after they were applied: {}", names), Phrase("restore the files")
        )
    if status.pending:
        return Finding(
            Level.WARNING,
            "schema",
            Phrase("{} migrations pending", len(status.pending)),
            Phrase("run `pabal migrate up`"),
        )
    return Finding(Level.GOOD, "schema", Phrase("{} migrations applied, none pending", len(status.applied)))


async def bell(direct: Reach) -> Finding:
    try:
        heard = await doorbell.self_test(direct)
    except PabalError as error:
        return Finding(Level.BAD, "doorbell", str(error), Phrase("check PABAL_DATABASE_DIRECT_URL"))
    if heard:
        return Finding(Level.GOOD, "doorbell", Phrase("NOTIFY reaches LISTEN"))
    return Finding(
        Level.WARNING,
        "doorbell",
        Phrase("NOTIFY does not reach LISTEN, so lanes are looked at every second"),
        Phrase("set PABAL_DATABASE_DIRECT_URL to the same database without the pooler"),
    )


def disk(settings: Settings) -> Finding:
    place = settings.data_dir
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    seen = Phrase("{} GiB free at {}", f"{free / 2**30:.1f}", settings.data_dir)
    if free < LITTLE_DISK:
        return Finding(Level.WARNING, "disk", seen, Phrase("make room, or move PABAL_DATA_DIR"))
    return Finding(Level.GOOD, "disk", seen)


def keys(settings: Settings) -> Iterator[Finding]:
    """Secrets in the data folder are for their owner's eyes only; several hosts need the same keys, none for ever."""
    for kept in (settings.data_dir / "passwords.json", settings.data_dir / FILE):
        if mode := open_to_others(kept):
            yield Finding(
                Level.BAD, kept.stem, Phrase("{} can be read by others ({})", kept, f"{mode:o}"), f"chmod 600 {kept}"
            )
    try:
        ring = existing(settings)
    except Failed as error:
        yield Finding(
            Level.BAD, "keys", str(error), Phrase("bring back a copy: without them nothing encrypted can be read")
        )
        return
    if ring is None:
        yield Finding(Level.GOOD, "keys", Phrase("none yet; the first start makes them"))
        return
    if ring.kept and not settings.embedded:
        yield Finding(
            Level.WARNING,
            "keys",
            Phrase("in {}, while the database may serve several hosts", ring.kept),
            Phrase("set PABAL_KEYS to what is in that file, the same wherever the hub runs"),
        )
    else:
        yield Finding(Level.GOOD, "keys", Phrase("in {}", ring.kept) if ring.kept else Phrase("from PABAL_KEYS"))
    signing = ring.active(Use.SIGNING)
    if (age := datetime.now(UTC) - signing.since) > LONG:
        yield Finding(
            Level.WARNING,
            "signing key",
            Phrase("{} has signed for {} days", signing.id, age.days),
            Phrase("run `pabal keys rotate`"),
        )


def open_to_others(kept: Path) -> int:
    """The mode of a file that not only its owner may use, else 0."""
    try:
        mode = stat.S_IMODE(kept.stat().st_mode)
    except OSError:
        return 0
    return mode if mode & (stat.S_IRWXG | stat.S_IRWXO) else 0


async def envelopes(settings: Settings, work: Reach) -> Finding:
    """Whether the keys here open what the database holds."""
    try:
        ring = existing(settings)
        known = {key.id for key in ring.keys.of(Use.ENCRYPTION)} if ring else set[str]()
        async with Database(work) as db, db.autocommit() as tx:
            counts = await rewrap.envelopes(tx)
    except PabalError as error:
        return Finding(
            Level.WARNING,
            "encrypted values",
            Phrase("not looked at: {}", error),
            Phrase("look again when that is mended"),
        )
    lost = {key_id: count for key_id, count in counts.items() if key_id not in known}
    if not lost:
        return Finding(Level.GOOD, "encrypted values", Phrase("{}, all under keys that are here", sum(counts.values())))
    names = [key_id for key_id in lost if key_id and NAME.fullmatch(key_id)]
    return Finding(
        Level.BAD,
        "encrypted values",
        Phrase("{} of {} are under no key that is here", sum(lost.values()), sum(counts.values())),
        Phrase("bring back {}; `pabal keys rewrap` names the rows", ", ".join(sorted(names)) or Phrase("the keys")),
    )


def listens(settings: Settings) -> Finding:
    seen = Phrase("listens on {}:{}", settings.host, settings.port)
    if is_loopback(settings.host):
        return Finding(Level.GOOD, "address", seen)
    if not settings.public_url or not settings.public_url.startswith("https://"):
        return Finding(
            Level.WARNING,
            "address",
            Phrase("{}, reachable from outside, and no https PABAL_PUBLIC_URL is set", seen),
            Phrase("put TLS in front and set PABAL_PUBLIC_URL, or listen on 127.0.0.1"),
        )
    return Finding(Level.GOOD, "address", seen)


def webhook(settings: Settings) -> Finding:
    if settings.webhook_secret:
        return Finding(Level.GOOD, "webhook secret", Phrase("set"))
    return Finding(
        Level.WARNING,
        "webhook secret",
        Phrase("not set: anybody who knows the address can post as Kakao"),
        Phrase("set PABAL_WEBHOOK_SECRET and send it as a header from Kakao's skill settings"),
    )


def callbacks(settings: Settings) -> Finding:
    if not settings.callback_allow:
        return Finding(Level.GOOD, "callback origins", Phrase("Kakao's own only"))
    return Finding(
        Level.WARNING,
        "callback origins",
        Phrase("callbacks may also go to {}", ", ".join(settings.callback_allow)),
        Phrase("empty PABAL_CALLBACK_ALLOW outside development"),
    )


def proxies(settings: Settings) -> Finding:
    wide = [each for each in settings.trusted_proxies if ipaddress.ip_network(each, strict=False).prefixlen == 0]
    if wide:
        return Finding(
            Level.BAD,
            "trusted proxies",
            Phrase("{} trusts everybody's X-Forwarded-For", ", ".join(wide)),
            Phrase("name your proxy's address in PABAL_TRUSTED_PROXIES"),
        )
    return Finding(Level.GOOD, "trusted proxies", ", ".join(settings.trusted_proxies) or Phrase("none"))


def unknown_variables() -> list[Finding]:
    known = {variable(name) for name in Settings.model_fields}
    return [
        Finding(Level.WARNING, "settings", Phrase("{} is not a setting of Pabal", name), Phrase("see `pabal settings`"))
        for name in sorted(os.environ)
        if name.startswith(PREFIX) and name not in known
    ]


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
