"""A database that was adopted from the specification's own tables, to run the suite on."""

import os
from pathlib import Path

from pabal.db.adopt.adopt import adopt_database
from pabal.db.migrate import apply_migrations, load_migrations
from support.clusters import open_connection

SEEDS = Path(__file__).parents[1] / "schema" / "seeds"
IS_ADOPTED = bool(os.environ.get("PABAL_TEST_ADOPTED"))
"""Set by `make adopted`: tests run on an adopted database instead of a migrated one."""
LIKE_CREATED = """
alter table guild.guilds alter id set default gen_random_uuid();
alter table identity.users alter id set default gen_random_uuid();
comment on table guild.guilds is 'Guilds.';
comment on column guild.guilds.id is 'Id of the guild.';
comment on table identity.users is 'Users.';
comment on column identity.users.id is 'Id of the user.';
"""
"""Tests rely on the form of these tables where Pabal creates them."""


async def create_hub_database(url: str, login: str | None = None) -> None:
    """Make an empty database a hub's."""
    if not IS_ADOPTED:
        await apply_migrations(url, login=login, settings={"pabal.keep_services": "on"})  # many tests use the four
        return
    await apply_migrations(url, to=load_migrations()[0].version)  # what the specification takes for granted
    async with open_connection(url) as conn:
        await conn.execute("set search_path = public")  # a login may have the name of a schema
        for name in ("000", "001", "002"):
            await conn.execute((SEEDS / f"{name}.sql").read_text("utf-8"))
        await conn.execute(LIKE_CREATED)
    await adopt_database(url, "cli:test", login=login)
    async with open_connection(url) as conn:  # it is the first row of the adopted hub; tests count theirs
        await conn.execute("set session_replication_role = replica; truncate pabal.audit_log restart identity")
