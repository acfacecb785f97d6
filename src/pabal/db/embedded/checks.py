"""The doctor's check of the embedded server."""

from pathlib import Path

from pabal.core.finding import Finding, FindingLevel
from pabal.core.messages import Message
from pabal.db.embedded.os_user import SERVER_USERS, SHARED_USER, os_user_name


def check_server_user(data_dir: Path) -> Finding | None:
    """Whether the server has a user of its own; None before the first start. It owns the data directory."""
    owners = [path.stat().st_uid for path in data_dir.glob("postgres-*") if path.name[9:].isdigit()]
    if not owners:
        return None
    names = {os_user_name(uid) for uid in owners}
    if SHARED_USER in names:
        return Finding(
            FindingLevel.WARNING,
            "database user",
            Message(
                "the server runs as {}, so every other program of {} can change the data", SHARED_USER, SHARED_USER
            ),
            Message(
                "create the user {} with `useradd --system {}`, or set PABAL_PG_USER, and restart the hub",
                SERVER_USERS[0],
                SERVER_USERS[0],
            ),
        )
    return Finding(FindingLevel.GOOD, "database user", ", ".join(sorted(names)))
