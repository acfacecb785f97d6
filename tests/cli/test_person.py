"""`pabal person export|erase`."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from pabal.audit.pseudonym import person_pseudonym
from pabal.hub import DatabaseUrls
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.people.tokens import issue_person_link
from support.clusters import Connection
from support.dump import dump_database
from support.notifications import TESTER, draft_notification, register_builtin_templates, request_drafts
from support.terminal import Terminal, open_terminal

pytestmark = pytest.mark.anyio

MINA = "80351110224678912"
HELD = "4 rows (2 notifications, 0 toasts, 2 others)"


@pytest.fixture
async def terminal(folder: Path, database_urls: DatabaseUrls) -> AsyncGenerator[Terminal]:
    """A person with two notifications, preferences and a link; another person with one notification."""
    async with open_terminal(folder, database_urls) as made:
        hub = await register_builtin_templates(made.event_queue.hub)
        toast = draft_notification(hub, recipient=MINA, channel=NotificationChannel.DASHBOARD_TOAST)
        await request_drafts(
            hub, draft_notification(hub, recipient=MINA), toast, draft_notification(hub, recipient="100")
        )
        await made.run("person", "preferences", MINA, "--set", "locale=en")
        async with hub.transaction() as tx:
            await issue_person_link(tx, MINA, TESTER)
        yield made


async def test_an_export_is_one_document_or_a_private_file(terminal: Terminal) -> None:
    document = json.loads((await terminal.run("person", "export", MINA)).stdout)
    result = await terminal.run("person", "export", MINA, "--to", "theirs.json")
    again = await terminal.run("person", "export", MINA, "--to", "theirs.json", code=1)

    file = terminal.folder / "theirs.json"
    assert document["person"]["locale"] == "en"
    assert {item["recipient_type"] for item in document["requests"]} == {"user_dm", "dashboard_toast"}
    assert result.stdout == "2 notifications written to theirs.json\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(file.read_text())["requests"]) == 2
    assert again.stderr == "pabal: to: theirs.json cannot be created: File exists\n"


async def test_erase_shows_the_counts_and_asks(terminal: Terminal, database_urls: DatabaseUrls) -> None:
    refused = await terminal.run("person", "erase", MINA, feed="n\n", code=1)
    assert MINA.encode() in await dump_database(database_urls)

    done = await terminal.run("person", "erase", MINA, feed="y\n")

    assert refused.stderr == f"Erase {HELD}? [y/N] pabal: Nothing erased\n"
    assert done.stdout == f"{HELD} erased\n"
    assert MINA.encode() not in await dump_database(database_urls)
    assert await terminal.event_queue.owner.fetchval("select count(*) from notification.requests") == 1
    actor = await terminal.event_queue.owner.fetchval(
        "select actor from pabal.audit_log where subject = $1 and action = 'person.erased'", person_pseudonym(MINA)
    )
    assert actor.startswith("cli:")


async def test_yes_skips_the_question(terminal: Terminal) -> None:
    done = await terminal.read("person", "erase", MINA, "--yes")

    assert done == {"requests": 2, "toasts": 0, "others": 2, "rows": 4}


@pytest.mark.parametrize("args", [["export"], ["erase"], ["erase", "--yes"]])
async def test_an_unknown_key_is_one_line(terminal: Terminal, args: list[str]) -> None:
    refused = await terminal.run("person", *args, "nobody", code=1)

    assert (refused.stdout, refused.stderr) == ("", "pabal: No such person\n")


async def test_an_operator_links_and_unlinks_an_account(terminal: Terminal, owner: Connection) -> None:
    user = str(await owner.fetchval("insert into identity.users default values returning id"))

    without = await terminal.run("person", "link", MINA, user, code=2)
    linked = await terminal.run("person", "link", MINA, user, "--reason", "identity checked", "--json")
    shown = await terminal.run("person", "preferences", MINA)
    unlinked = await terminal.run("person", "unlink", MINA, "--reason", "wrong user", "--json")

    assert "reason" in without.stderr
    assert json.loads(linked.stdout)["user_id"] == user
    assert " by cli:" in shown.stdout
    assert json.loads(unlinked.stdout)["user_id"] is None
