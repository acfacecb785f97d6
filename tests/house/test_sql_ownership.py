"""A table belongs to one package: query files of other packages reach it through SQL functions of its owner."""

import re
from pathlib import Path

import pabal

PACKAGE = Path(pabal.__file__).parent
MIGRATIONS = PACKAGE / "db" / "migrations"
FILES = sorted(path for path in PACKAGE.rglob("*.sql") if MIGRATIONS not in path.parents)

OWNERS = {
    "audit": ("pabal.audit_log", "pabal.audit_seals"),
    "db": ("pabal.created_objects",),
    "events": (
        "public.event_queue",
        "public.dead_letter_queue",
        "pabal.event_due",
        "pabal.event_fan_outs",
        "pabal.event_keys",
        "pabal.event_leases",
        "pabal.event_order",
        "pabal.event_repair_positions",
        "pabal.plain_claims",
        "pabal.subscription_patterns",
        "pabal.subscriptions",
    ),
    "limits": ("pabal.limits",),
    "notifications": (
        "notification.addresses",
        "notification.attempts",
        "notification.link_requests",
        "notification.people",
        "notification.person_tokens",
        "notification.preferences",
        "notification.requests",
        "notification.rules",
        "notification.service_links",
        "notification.stream_tickets",
        "notification.templates",
        "notification.toast_streams",
        "notification.toasts",
    ),
    "operators": ("pabal.operators", "pabal.operator_sessions"),
    "queue": ("pabal.chores", "pabal.row_locks", "pabal.throughput", "pabal.workers"),
    "relay": (
        "public.accounts",
        "public.command_answers",
        "public.conversation_codes",
        "public.conversation_mappings",
        "public.inbound_messages",
        "public.pairing_codes",
        "public.pairing_failures",
        "public.relay_control_events",
        "public.relay_replies",
        "public.relay_sessions",
        "public.relay_streams",
        "pabal.portal_sessions",
        "pabal.relay_keys",
        "pabal.relay_event_outbox",
        "pabal.relay_outbox",
    ),
    "tokens": (
        "public.services",
        "public.service_secrets",
        "pabal.service_sql_roles",
        "public.token_families",
        "public.service_tokens",
        "public.refresh_tokens",
    ),
}
SHARED = {"auth.users", "public.profiles", "identity.users", "guild.guilds"}
"""Tables of other systems, created only if they are missing."""

READ_MODELS = ("stats", "trace")
"""Packages above the domains: they may read every table and write none."""

READABLE = {"public.services": "the registry of services: every package refers to it by foreign key"}
INSERTABLE = {
    "pabal.audit_log": "the audit entry is written by the statement of the action. A data-modifying CTE always runs; "
    "a function call in a CTE that the query does not read never does"
}
ALLOWED = {
    ("keys/rotation.sql", table): "re-encrypts the columns that hold envelopes, and finds which keys are still in use"
    for table in (
        "public.service_tokens",
        "public.refresh_tokens",
        "pabal.subscriptions",
        "pabal.relay_keys",
        "pabal.audit_seals",
    )
}
"""Query files that name a table of another package, and why they may."""

TABLE = re.compile(r"(?<![\w.])((?:public|pabal|notification|auth|identity|guild)\.[a-z_]+)\b(?!\s*\()")
WRITE = re.compile(r"\b(?:insert\s+into|update|delete\s+from|truncate(?:\s+table)?|merge\s+into)\s+([a-z_]+\.[a-z_]+)")
CREATE = re.compile(r"\bcreate\s+(?:unlogged\s+)?table\s+(?:if\s+not\s+exists\s+)?([a-z]+\.[a-z_]+)")
OWNER = {table: package for package, tables in OWNERS.items() for table in tables}


def without_comments(path: Path) -> str:
    return re.sub(r"--[^\n]*", "", path.read_text("utf-8"))


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".sql")


def foreign_tables(path: Path) -> dict[str, bool]:
    """The tables of other packages that a file may not simply name, and whether it writes them."""
    sql = without_comments(path)
    written = set(WRITE.findall(sql))
    inserted_only = written - set(re.findall(r"\b(?:update|delete\s+from)\s+([a-z_]+\.[a-z_]+)", sql))
    foreign: dict[str, bool] = {}
    for table in set(TABLE.findall(sql)) & OWNER.keys():
        if OWNER[table] == package_of(path):
            continue
        if package_of(path) in READ_MODELS and table not in written:
            continue
        if table in READABLE and table not in written:
            continue
        reads = len(re.findall(rf"\b(?:from|join)\s+{re.escape(table)}\b", sql))
        if table in INSERTABLE and table in inserted_only and not reads:
            continue
        foreign[table] = table in written
    return foreign


def test_every_table_has_one_owner() -> None:
    created = {table for path in MIGRATIONS.glob("*.sql") for table in CREATE.findall(without_comments(path))}

    assert created == OWNER.keys() | SHARED
    assert len(OWNER) == sum(len(tables) for tables in OWNERS.values())


def test_a_query_file_names_only_tables_of_its_package() -> None:
    foreign = {(path.relative_to(PACKAGE).as_posix(), table) for path in FILES for table in foreign_tables(path)}

    assert foreign - ALLOWED.keys() == set()
    assert ALLOWED.keys() - foreign == set(), "no longer needed"


def test_queries_name_tables_with_their_schema() -> None:
    """The test above does not see unqualified names."""
    names = "|".join(re.escape(table.partition(".")[2]) for table in OWNER)
    unqualified = re.compile(rf"\b(?:from|join|into|update)\s+({names})\b")

    matches = {
        (path.relative_to(PACKAGE).as_posix(), match)
        for path in FILES
        for match in unqualified.findall(without_comments(path))
    }
    assert {(file, name) for file, name in matches if not is_cte(PACKAGE / file, name)} == set()


def is_cte(path: Path, name: str) -> bool:
    """Whether the name is that of a CTE of the file."""
    return re.search(rf"\b{name}\s+as\s+(?:materialized\s+)?\(", without_comments(path)) is not None
