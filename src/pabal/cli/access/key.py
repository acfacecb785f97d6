"""`pabal key list|generate|rotate|rewrap|retire`."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts
from cyclopts import Parameter

from pabal.audit.record import AuditEntry, record_audit_entry
from pabal.cli.context import cli_actor, with_hub
from pabal.cli.examples import examples
from pabal.cli.options import DEFAULT_CONNECTION, Connection, Json, flag, repeatable
from pabal.cli.output import (
    local_time,
    print_error,
    print_hint,
    print_json,
    print_json_items,
    print_table,
    print_text,
    progress_bar,
)
from pabal.core.errors import SetupError
from pabal.db.doorbell.channels import Channel
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

if TYPE_CHECKING:
    from pabal.hub import Hub

app = cyclopts.App(
    name="key",
    help="Manage the keys that sign, encrypt and seal.\n\nThey sign tokens, encrypt secrets and seal the audit log.",
    help_epilogue=examples("key list", "key rotate --use signing"),
)

KEYS_ADVICE = "These are secrets. Set PABAL_KEYS to this line wherever the hub runs, then restart it."


@app.command(name="list", help_epilogue=examples("key list", "key list --json"))
def key_list(
    *,
    data_dir: Annotated[Path | None, Parameter(help="Directory of the keys. [PABAL_DATA_DIR]")] = None,
    json: Json = False,
) -> None:
    """List the keys, without their secrets."""
    key_ring = find_keyring(load_settings(data_dir=data_dir))
    if key_ring is None:
        raise SetupError("There are no keys yet. The first `pabal up` creates them")
    keys = sorted(key_ring.keys.all_keys, key=lambda key: (key.use, key.since))
    if json:
        print_json_items({"id": key.id, "use": key.use, "state": key.state, "since": key.since} for key in keys)
    else:
        print_table(
            ("id", "use", "state", "since"),
            [(key.id, key.use, key.state, local_time(key.since)) for key in keys],
            empty="No keys.",
        )


@app.command(name="generate", help_epilogue=examples("key generate", "key generate > keys.json"))
def key_generate() -> None:
    """Print new keys for PABAL_KEYS, for a hub that has none yet. They are not stored anywhere."""
    print_keys(KeySet.generate(datetime.now(UTC)))


@app.command(name="rotate", help_epilogue=examples("key rotate", "key rotate --use signing --json"))
def key_rotate(
    *,
    use: Annotated[list[KeyUse] | None, repeatable("Only keys for this use. Default: all.")] = None,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Make the next key active and the active one old. Running hubs follow at once.

    If the keys come from PABAL_KEYS, prints its new value instead.
    """
    uses = [*dict.fromkeys(use or KeyUse)]

    async def rotate(hub: "Hub") -> list[tuple[Key, Key]]:
        async with hub.autocommit() as tx:
            at = await read_database_clock(tx)
        with change_keys(hub.key_ring, lambda keys: keys.rotate(uses, at)) as (before, after):
            pairs = [(after.active(key_use), before.active(key_use)) for key_use in uses]
            async with hub.transaction() as tx:
                for active, old in pairs:
                    details = {"use": active.use, "before": old.id, "from": keys_origin(hub.key_ring)}
                    await record_audit_entry(tx, AuditEntry(cli_actor().name, "key.rotated", active.id, details))
        hub.doorbell.notify([Channel.TOKENS])
        return pairs if hub.key_ring.path else []

    pairs = with_hub(connection, rotate)
    if json and pairs:
        print_json_items({"use": active.use, "active": active.id, "old": old.id} for active, old in pairs)
    elif pairs:
        print_table(("use", "active", "old"), [(active.use, active.id, old.id) for active, old in pairs])
    if KeyUse.ENCRYPTION in uses:
        print_hint("Existing secrets stay encrypted with their old key until `pabal key rewrap`.")


@app.command(name="rewrap", help_epilogue=examples("key rewrap", "key rewrap --json"))
def key_rewrap(*, connection: Connection = DEFAULT_CONNECTION, json: Json = False) -> None:
    """Encrypt every secret with the active key. Can be interrupted and repeated, also while a hub runs."""

    async def rewrap(hub: "Hub") -> RewrapReport:
        active = hub.key_ring.active(KeyUse.ENCRYPTION)
        async with hub.autocommit() as tx:
            total = sum(count for key_id, count in (await count_envelopes(tx)).items() if key_id != active.id)
        with progress_bar("rewrapping", total) as step:
            report = await rewrap_all_envelopes(hub.transaction, hub.key_ring, lambda batch: step(batch.total))
        if report.rewrapped:
            details = {"rewrapped": report.rewrapped, "unreadable": report.unreadable, "left": report.left}
            async with hub.transaction() as tx:
                await record_audit_entry(tx, AuditEntry(cli_actor().name, "keys.rewrapped", active.id, details))
        return report

    report = with_hub(connection, rewrap)
    if json:
        print_json(asdict(report))
    else:
        print_text(f"{report.rewrapped} rewrapped")
    for secret in report.named:
        print_error(f"{secret.table}.{secret.column} of {secret.row} cannot be decrypted with any key; left unchanged")
    if unnamed := report.unreadable - len(report.named):
        print_error(f"{unnamed} more cannot be decrypted with any key")
    if report.left:
        print_error(f"{report.left} were changed concurrently: run the command again")


@app.command(name="retire", help_epilogue=examples("key retire sig-7f3a", "key retire enc-19bd --force"))
def key_retire(
    key_id: Annotated[str, Parameter(name="ID", help="The key, as `pabal key list` shows it.")],
    /,
    *,
    force: Annotated[bool, flag("Do not wait until what it signed has expired.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
    json: Json = False,
) -> None:
    """Delete an old key for good, if nothing needs it any more.

    If the keys come from PABAL_KEYS, prints its new value instead.
    """

    async def retire(hub: "Hub") -> bool:
        with change_keys(hub.key_ring, lambda keys: keys.without(key_id)) as (before, _):
            [key] = [candidate for candidate in before.all_keys if candidate.id == key_id]
            async with hub.transaction() as tx:
                await check_key_retirable(tx, key, force=force)
                details = {"use": key.use, "forced": force, "from": keys_origin(hub.key_ring)}
                await record_audit_entry(tx, AuditEntry(cli_actor().name, "key.retired", key_id, details))
        hub.doorbell.notify([Channel.TOKENS])
        return hub.key_ring.path is not None

    is_stored = with_hub(connection, retire)
    if is_stored and json:
        print_json({"retired": key_id})
    elif is_stored:
        print_text(f"{key_id} retired")


@contextmanager
def change_keys(key_ring: KeyRing, change: Callable[[KeySet], KeySet]) -> Generator[tuple[KeySet, KeySet]]:
    """Change the stored keys, or print the new value of PABAL_KEYS, after the block has recorded it in the audit log.

    The file and the audit row cannot be one transaction. The row comes first: a row about a change that a crash
    prevented can be checked against the list of keys, but a change without a row would never be noticed.
    """
    if key_ring.path:
        with key_ring.update(change) as before_and_after:
            yield before_and_after
        return
    changed = change(key_ring.keys)
    yield key_ring.keys, changed
    print_keys(changed)


def print_keys(keys: KeySet) -> None:
    print_text(encode_key_set(keys).decode())
    print_hint(KEYS_ADVICE)


def keys_origin(key_ring: KeyRing) -> str:
    return key_ring.path.name if key_ring.path else "PABAL_KEYS"
