"""Planner settings of the hub's login, for sessions that cannot set them: those behind a transaction pooler.

They are stored for the login in its own database, and only if the login is the hub's alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from pabal.db.connect import PLANNER_SETTINGS
from pabal.db.queries import Query
from pabal.db.tx import Tx

if TYPE_CHECKING:
    MigrationConnection = asyncpg.Connection[asyncpg.Record]

IS_OWN_LOGIN_SQL = """
select not r.rolsuper and not r.rolcreaterole and not r.rolcreatedb and r.rolname <> current_user
       and not exists (
         select from pg_shdepend d
         where d.refclassid = 'pg_authid'::regclass and d.refobjid = r.oid and d.deptype = 'o')
       and not exists (
         select from pg_auth_members m
         where m.member = r.oid and m.roleid <> 'service_role'::regrole)
       and not exists (
         select from pg_stat_activity a
         where a.usesysid = r.oid and a.application_name <> 'pabal')
from pg_roles r where r.rolname = $1
"""
"""A login that owns objects, has other roles, or is used by another program is not the hub's alone."""

STORED_SETTINGS_SQL = """
select coalesce(s.setconfig, '{}') from pg_db_role_setting s
where s.setdatabase = (select oid from pg_database where datname = current_database())
  and s.setrole = $1::text::regrole
"""
ALTER_LOGIN_SQL = """
select format('alter role %I in database %I set %I = %L', $1::text, current_database(), $2::text, $3::text)
"""
RESET_LOGIN_SQL = """
select format('alter role %I in database %I reset %I', $1::text, current_database(), $2::text)
"""
LOGINS_WITH_SETTINGS_SQL = """
select r.rolname::text from pg_db_role_setting s join pg_roles r on r.oid = s.setrole
where s.setdatabase = (select oid from pg_database where datname = current_database()) and s.setconfig @> $1
"""

CURRENT_SETTINGS_QUERY = Query(
    "current_settings",
    """
    select current_setting('jit') as jit, current_setting('plan_cache_mode') as plan_cache_mode,
           current_setting('enable_seqscan') as enable_seqscan,
           quote_ident(session_user) as login, quote_ident(current_database()) as database
    """,
    (),
    "login_settings",
)


@dataclass(frozen=True, slots=True)
class PlannerState:
    """The planner settings of a session, and whose session it is."""

    jit: str
    plan_cache_mode: str
    enable_seqscan: str
    login: str
    database: str

    def missing_statements(self) -> list[str]:
        """The statements that an administrator should execute."""
        return [
            f"alter role {self.login} in database {self.database} set {name} = {setting}"
            for name, setting in PLANNER_SETTINGS.items()
            if getattr(self, name) != setting
        ]


async def read_planner_state(tx: Tx) -> PlannerState:
    return await tx.one(PlannerState, CURRENT_SETTINGS_QUERY)


async def store_planner_settings(conn: "MigrationConnection", login: str) -> None:
    """Store the planner settings for `login` in this database, if it is the hub's alone and we may change it."""
    if not await conn.fetchval(IS_OWN_LOGIN_SQL, login):
        return
    stored: list[str] = (
        await conn.fetchval(STORED_SETTINGS_SQL, await conn.fetchval("select quote_ident($1)", login)) or []
    )
    missing = [name for name, setting in PLANNER_SETTINGS.items() if f"{name}={setting}" not in stored]
    try:
        async with conn.transaction():
            for name in missing:
                await conn.execute(await conn.fetchval(ALTER_LOGIN_SQL, login, name, PLANNER_SETTINGS[name]))
    except asyncpg.InsufficientPrivilegeError:
        return  # the doctor names the statements


async def reset_planner_settings(conn: "MigrationConnection") -> None:
    """Remove the settings that `store_planner_settings` stored in this database."""
    settings = [f"{name}={setting}" for name, setting in PLANNER_SETTINGS.items()]
    for login in await conn.fetch(LOGINS_WITH_SETTINGS_SQL, settings):
        for name in PLANNER_SETTINGS:
            await conn.execute(await conn.fetchval(RESET_LOGIN_SQL, login[0], name))
