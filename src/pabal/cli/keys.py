"""`pabal keys list|make|rotate|rewrap|retire`."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import cyclopts
from cyclopts import Parameter
from rich.text import Text

from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.cli.context import cli_actor, with_hub
from pabal.cli.options import DatabaseUrl, DataDir, Json
from pabal.cli.output import print_error, print_json, print_table, print_text, progress_bar, stderr_console
from pabal.core.errors import SetupError
from pabal.db.channels import Channel
from pabal.hub import Hub
from pabal.keys.key import Key, KeySet, KeyUse, encode_key_set
from pabal.keys.keyring import KeyRing, find_keyring
from pabal.keys.rotation import (
    RewrapReport,
    check_key_retirable,
    count_envelopes,
    read_database_clock,
    rewrap_all_envelopes,
)
from pabal.settings import load_settings

app = cyclopts.App(name="keys", help="The keys that sign, encrypt and seal.")

KEYS_ADVICE = "these are secrets: set PABAL_KEYS to this line wherever the hub runs, then start it again there"


@app.command(name="list")
def keys_list(*, data_dir: DataDir = None, json: Json = False) -> None:
    """Show the keys there are, without their secrets."""
    ring = find_keyring(load_settings(data_dir=data_dir))
    if ring is None:
        raise SetupError("there are no keys yet: the first `pabal up` makes them")
    keys = sorted(ring.keys.all_keys, key=lambda key: (key.use, key.since))
    if json:
        print_json([{"id": key.id, "use": key.use, "state": key.state, "since": key.since} for key in keys])
    else:
        print_table(
            ("id", "use", "state", "since"),
            [(key.id, key.use, key.state, f"{key.since:%Y-%m-%d %H:%M:%S %Z}") for key in keys],
            empty="No keys.",
        )


@app.command(name="make")
def keys_make() -> None:
    """Print new keys for PABAL_KEYS, for a hub that has none yet. Nothing keeps them but you."""
    print_keys(KeySet.generate(datetime.now(UTC)))


@app.command(name="rotate")
def keys_rotate(
    *,
    use: Annotated[list[KeyUse] | None, Parameter(negative="", help="Only the keys for this. Default: all.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Let the next key become active, and the active one old. Running hubs follow at once.

    Where PABAL_KEYS brings the keys, its new text is printed instead.
    """
    uses = [*dict.fromkeys(use or KeyUse)]

    async def do(hub: Hub) -> list[tuple[Key, Key]]:
        async with hub.autocommit() as tx:
            at = await read_database_clock(tx)
        with change_keys(hub.key_ring, lambda keys: keys.rotate(uses, at)) as (before, changed):
            turned = [(changed.active(each), before.active(each)) for each in uses]
            async with hub.transaction() as tx:
                for active, old in turned:
                    facts = {"use": active.use, "before": old.id, "from": keys_origin(hub.key_ring)}
                    await record_audit_entry(tx, AuditEntry(cli_actor(), "key.rotated", active.id, facts))
        hub.doorbell.notify([Channel.TOKENS])
        return turned if hub.key_ring.path else []

    turned = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json and turned:
        print_json([{"use": active.use, "active": active.id, "old": old.id} for active, old in turned])
    elif turned:
        print_table(("use", "active", "old"), [(active.use, active.id, old.id) for active, old in turned])
    if KeyUse.ENCRYPTION in uses:
        print_notice("what is encrypted stays under its key until `pabal keys rewrap`")


@app.command(name="rewrap")
def keys_rewrap(*, data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Encrypt anew whatever is not under the active key. It may be stopped and started again, beside a running hub."""

    async def do(hub: Hub) -> RewrapReport:
        active = hub.key_ring.active(KeyUse.ENCRYPTION)
        async with hub.autocommit() as tx:
            total = sum(count for key_id, count in (await count_envelopes(tx)).items() if key_id != active.id)
        with progress_bar("rewrapping", total) as step:
            tally = await rewrap_all_envelopes(hub.transaction, hub.key_ring, lambda batch: step(batch.total))
        if tally.rewrapped:
            facts = {"rewrapped": tally.rewrapped, "unreadable": tally.unreadable, "left": tally.left}
            async with hub.transaction() as tx:
                await record_audit_entry(tx, AuditEntry(cli_actor(), "keys.rewrapped", active.id, facts))
        return tally

    tally = with_hub(do, data_dir=data_dir, database_url=database_url)
    if json:
        print_json(asdict(tally))
    else:
        print_text(f"{tally.rewrapped} rewrapped")
    for place in tally.named:
        print_error(f"{place.table}.{place.column} of {place.row} opens with no key here; it stays as it is")
    if unnamed := tally.unreadable - len(tally.named):
        print_error(f"{unnamed} more open with no key here")
    if tally.left:
        print_error(f"{tally.left} were being changed by somebody else: run it again")


@app.command(name="retire")
def keys_retire(
    key_id: Annotated[str, Parameter(name="ID", help="The key, as `pabal keys list` shows it.")],
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
        with change_keys(hub.key_ring, lambda keys: keys.without(key_id)) as (before, _):
            [going] = [each for each in before.all_keys if each.id == key_id]
            async with hub.transaction() as tx:
                await check_key_retirable(tx, going, force=force)
                facts = {"use": going.use, "forced": force, "from": keys_origin(hub.key_ring)}
                await record_audit_entry(tx, AuditEntry(cli_actor(), "key.retired", key_id, facts))
        hub.doorbell.notify([Channel.TOKENS])
        return hub.key_ring.path is not None

    done = with_hub(do, data_dir=data_dir, database_url=database_url)
    if done and json:
        print_json({"retired": key_id})
    elif done:
        print_text(f"{key_id} is gone")


@contextmanager
def change_keys(ring: KeyRing, change: Callable[[KeySet], KeySet]) -> Generator[tuple[KeySet, KeySet]]:
    """Change the kept keys, or print those that PABAL_KEYS is to bring, once the block has written it down.

    The file and the row of the audit log cannot be one transaction. The row comes first: one that tells of a change
    that a crash then prevented is found out by whoever lists the keys; a change that no row tells of, by nobody.
    """
    if ring.path:
        with ring.update(change) as both:
            yield both
        return
    changed = change(ring.keys)
    yield ring.keys, changed
    print_keys(changed)


def print_keys(keys: KeySet) -> None:
    print_text(encode_key_set(keys).decode())
    print_notice(KEYS_ADVICE)


def print_notice(text: str) -> None:
    stderr_console.print(Text(text))


def keys_origin(ring: KeyRing) -> str:
    return ring.path.name if ring.path else "PABAL_KEYS"
