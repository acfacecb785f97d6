"""The doctor's check of the planner settings behind a transaction pooler."""

from pabal.core.errors import PabalError
from pabal.core.finding import Finding, FindingLevel
from pabal.core.messages import Message
from pabal.db.connect import ConnectOptions
from pabal.db.login_settings import read_planner_state
from pabal.db.pool import Database


async def check_planner_settings(options: ConnectOptions) -> Finding:
    """Whether the login has the planner settings that sessions behind a pooler cannot set themselves."""
    try:
        async with Database(options) as db, db.autocommit() as tx:
            statements = (await read_planner_state(tx)).missing_statements()
    except PabalError as error:
        return Finding(
            FindingLevel.WARNING,
            "planner settings",
            Message("not checked: {}", error),
            Message("fix that error, then run `pabal doctor` again"),
        )
    if not statements:
        return Finding(FindingLevel.GOOD, "planner settings", Message("set for the login"))
    return Finding(
        FindingLevel.WARNING,
        "planner settings",
        Message("not set for the login; behind the pooler the hub cannot set them, and its statements are slower"),
        Message("give the hub a login of its own and run `pabal migrate up`, or execute: {}", "; ".join(statements)),
    )
