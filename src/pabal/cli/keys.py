"""`pabal keys list|make|rotate|rewrap|retire`."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import cyclopts
from cyclopts import Parameter
from rich.text import Text

from pabal.audit.record import Deed, record
from pabal.cli import screen
from pabal.cli.errand import actor, errand
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.core.errors import Failed
from pabal.db.bells import Bell
from pabal.keys import life
from pabal.keys.document import text
from pabal.keys.key import Key, Keys, Use
from pabal.keys.rewrap import Tally, envelopes, rewrap_all
from pabal.keys.ring import Ring, existing
from pabal.settings import read
from pabal.wiring import Hub

app = cyclopts.App(name="keys", help="The keys that sign, encrypt and seal.")

WHAT_TO_DO = "these are secrets: set PABAL_KEYS to this line wherever the hub runs, then start it again there"


@app.command(name="list")
def show(*, data_dir: DataDir = None, json: Json = False) -> None:
    """Show the keys there are, without their secrets."""
    ring = existing(read(data_dir=data_dir))
    if ring is None:
        raise Failed("there are no keys yet: the first `pabal up` makes them")
    keys = sorted(ring.keys.every, key=lambda key: (key.use, key.since))
    if json:
        screen.as_json([{"id": key.id, "use": key.use, "state": key.state, "since": key.since} for key in keys])
    else:
        screen.table(
            ("id", "use", "state", "since"),
            [(key.id, key.use, key.state, f"{key.since:%Y-%m-%d %H:%M:%S %Z}") for key in keys],
            empty="No keys.",
        )


@app.command
def make() -> None:
    """Print new keys for PABAL_KEYS, for a hub that has none yet. Nothing keeps them but you."""
    hand_out(Keys.made(datetime.now(UTC)))


@app.command
def rotate(
    *,
    use: Annotated[list[Use] | None, Parameter(negative="", help="Only the keys for this. Default: all.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Let the next key become active, and the active one old. Running hubs follow at once.

    Where PABAL_KEYS brings the keys, its new text is printed instead.
    """
    uses = [*dict.fromkeys(use or Use)]

    async def do(hub: Hub) -> list[tuple[Key, Key]]:
        async with hub.autocommit() as tx:
            at = await life.now(tx)
        with changing(hub.keys, lambda keys: keys.rotated(uses, at)) as (before, changed):
            turned = [(changed.active(each), before.active(each)) for each in uses]
            async with hub.transaction() as tx:
                for active, old in turned:
                    facts = {"use": active.use, "before": old.id, "from": origin(hub.keys)}
                    await record(tx, Deed(actor(), "key.rotated", active.id, facts))
        hub.doorbell.ring([Bell.TOKENS])
        return turned if hub.keys.kept else []

    turned = errand(do, data_dir=data_dir, database_url=database_url)
    if json and turned:
        screen.as_json([{"use": active.use, "active": active.id, "old": old.id} for active, old in turned])
    elif turned:
        screen.table(("use", "active", "old"), [(active.use, active.id, old.id) for active, old in turned])
    if Use.ENCRYPTION in uses:
        notice("what is encrypted stays under its key until `pabal keys rewrap`")


@app.command
def rewrap(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Encrypt anew whatever is not under the active key. It may be stopped and started again, beside a running hub."""

    async def do(hub: Hub) -> Tally:
        active = hub.keys.active(Use.ENCRYPTION)
        async with hub.autocommit() as tx:
            total = sum(count for key_id, count in (await envelopes(tx)).items() if key_id != active.id)
        with screen.bar("rewrapping", total) as step:
            tally = await rewrap_all(hub.transaction, hub.keys, lambda batch: step(batch.seen))
        if tally.rewrapped:
            facts = {"rewrapped": tally.rewrapped, "unreadable": tally.unreadable, "left": tally.left}
            async with hub.transaction() as tx:
                await record(tx, Deed(actor(), "keys.rewrapped", active.id, facts))
        return tally

    tally = errand(do, data_dir=data_dir, database_url=database_url)
    if json:
        screen.as_json(asdict(tally))
    else:
        screen.say(f"{tally.rewrapped} rewrapped")
    for place in tally.named:
        screen.complain(f"{place.table}.{place.column} of {place.row} opens with no key here; it stays as it is")
    if unnamed := tally.unreadable - len(tally.named):
        screen.complain(f"{unnamed} more open with no key here")
    if tally.left:
        screen.complain(f"{tally.left} were being changed by somebody else: run it again")


@app.command
def retire(
    key: Annotated[str, Parameter(name="ID", help="The key, as `pabal keys list` shows it.")],
    /,
    *,
    force: Annotated[bool, Parameter(negative="", help="Do not wait until what it made has run out.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Forget an old key for good, if nothing needs it any more.

    Where PABAL_KEYS brings the keys, its new text is printed instead.
    """

    async def do(hub: Hub) -> bool:
        with changing(hub.keys, lambda keys: keys.without(key)) as (before, _):
            [going] = [each for each in before.every if each.id == key]
            async with hub.transaction() as tx:
                await life.let_go(tx, going, force=force)
                facts = {"use": going.use, "forced": force, "from": origin(hub.keys)}
                await record(tx, Deed(actor(), "key.retired", key, facts))
        hub.doorbell.ring([Bell.TOKENS])
        return hub.keys.kept is not None

    done = errand(do, data_dir=data_dir, database_url=database_url)
    if done and json:
        screen.as_json({"retired": key})
    elif done:
        screen.say(f"{key} is gone")


@contextmanager
def changing(ring: Ring, to: Callable[[Keys], Keys]) -> Generator[tuple[Keys, Keys]]:
    """Change the kept keys, or print those that PABAL_KEYS is to bring, once the block has written it down.

    The file and the row of the audit log cannot be one transaction. The row comes first: one that tells of a change
    that a crash then prevented is found out by whoever lists the keys; a change that no row tells of, by nobody.
    """
    if ring.kept:
        with ring.changing(to) as both:
            yield both
        return
    changed = to(ring.keys)
    yield ring.keys, changed
    hand_out(changed)


def hand_out(keys: Keys) -> None:
    screen.say(text(keys).decode())
    notice(WHAT_TO_DO)


def notice(words: str) -> None:
    screen.err.print(Text(words))


def origin(ring: Ring) -> str:
    return ring.kept.name if ring.kept else "PABAL_KEYS"
