"""`pabal service set` and `pabal service sql-role`."""

from functools import partial
from pathlib import Path

import pytest

from cli.test_service import Ask, Run, audit
from pabal.hub import DatabaseUrls
from support.clusters import Connection
from support.pabal_process import pabal, pabal_json

pytestmark = pytest.mark.anyio


@pytest.fixture
def run(folder: Path, database_urls: DatabaseUrls) -> Run:
    return partial(pabal, folder=folder, PABAL_DATABASE_URL=database_urls.main)


@pytest.fixture
def ask(folder: Path, database_urls: DatabaseUrls) -> Ask:
    return partial(pabal_json, folder=folder, PABAL_DATABASE_URL=database_urls.main)


async def test_an_option_replaces_its_values_and_keeps_the_others(
    run: Run, ask: Ask, database_urls: DatabaseUrls
) -> None:
    ask("service", "add", "shop", "--permission", "write", "--may-publish", "order.*", "--may-subscribe", "billing.*")

    added = ask("service", "show", "shop")
    permitted = ask("service", "set", "shop", "--permission", "write", "--permission", "people:token")
    patterns = ask("service", "set", "shop", "--may-publish", "order.paid", "--may-publish", "refund.*")
    everything = ask("service", "set", "shop", "--may-publish", "*")
    printed = run("service", "show", "shop").stdout

    assert (added["may_publish"], added["may_subscribe"]) == (["order.*"], ["billing.*"])
    assert permitted["permissions"] == patterns["permissions"] == ["write", "people:token"]
    assert (permitted["may_publish"], patterns["may_publish"]) == (["order.*"], ["order.paid", "refund.*"])
    assert everything["may_publish"] is None
    assert everything["may_subscribe"] == ["billing.*"]
    assert [line.split("  ")[-1].strip() for line in printed.splitlines() if line.startswith("may ")] == [
        "all but the hub's",
        "billing.*",
    ]
    actions = [action for _, action in await audit(database_urls, "shop")]
    assert actions == ["service.added", "service.secret_rotated", *["service.rights_changed"] * 3]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["set", "minu_find", "--may-publish", "Order"], "may_publish: must be up to 50 types such as order.paid"),
        (["set", "minu_find", "--permission", "people"], "permission: 'people' is not a permission"),
        (["set", "hub", "--permission", "read"], "The rights of the hub's own service cannot be changed"),
        (["set", "nobody", "--permission", "read"], "No such service: nobody. See `pabal service list`"),
        (["sql-role", "add", "minu_find", "nobody"], "No such database role: nobody"),
        (["sql-role", "add", "nobody", "pabal_publisher"], "No such service: nobody"),
        (["sql-role", "add", "hub", "pabal_publisher"], "No database role acts as the hub"),
        (["sql-role", "remove", "minu_find", "pabal_publisher"], "pabal_publisher does not act as minu_find"),
    ],
)
async def test_a_refused_change_is_one_line(run: Run, args: list[str], text: str) -> None:
    refused = run("service", *args, code=1, PABAL_LOG_LEVEL="warning")

    [line] = refused.stderr.splitlines()
    assert text in line


async def test_database_roles_are_added_listed_and_removed(
    run: Run, ask: Ask, owner: Connection, database_urls: DatabaseUrls
) -> None:
    assert "No database role acts as a service." in run("service", "sql-role", "list").stdout

    added = run("service", "sql-role", "add", "minu_find", "pabal_publisher").stdout
    again = run("service", "sql-role", "add", "minu_find", "pabal_publisher").stdout
    listed = ask("service", "sql-role", "list", "--service", "minu_find")["items"]
    await owner.execute("set role pabal_publisher")
    await owner.fetchval("select pabal.publish('minu_find', 'order.paid')")
    shown = ask("service", "show", "minu_find")
    removed = ask("service", "sql-role", "remove", "minu_find", "pabal_publisher")

    assert (added, again) == (
        "pabal_publisher acts as minu_find\n",
        "pabal_publisher already acts as minu_find\n",
    )
    assert [(item["service"], item["role"], item["role_exists"]) for item in listed] == [
        ("minu_find", "pabal_publisher", True)
    ]
    assert shown["sql_roles"] == ["pabal_publisher"]
    assert removed == {"service": "minu_find", "role": "pabal_publisher", "removed": True}
    assert [action for _, action in await audit(database_urls, "minu_find")] == [
        "service.sql_role_added",
        "service.sql_role_removed",
    ]


async def test_an_operator_records_consent_only_with_a_reason(run: Run, ask: Ask, owner: Connection) -> None:
    consent = ["person", "preferences", "100", "--set", "night_consent=on"]

    refused = run(*consent, code=2, PABAL_LOG_LEVEL="warning")
    blank = run(*consent, "--reason", " ", code=2, PABAL_LOG_LEVEL="warning")
    before = await owner.fetchval("select count(*) from notification.people")
    given = ask(*consent, "--reason", "consent form of 3 May")
    withdrawn = ask("person", "preferences", "100", "--set", "night_consent=off")

    assert "--reason is required to set night_consent" in refused.stderr
    assert "--reason must be one line" in blank.stderr
    assert before == 0
    assert given["night_consent_at"] is not None
    assert withdrawn["night_consent_at"] is None
    details = await owner.fetchval(
        "select details from pabal.audit_log where action = 'preferences.changed' order by id limit 1"
    )
    assert '"reason": "consent form of 3 May"' in details
