"""`pabal notify export|erase`: take everything of a person along, or erase it."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from pabal.audit.pseudonym import person_pseudonym
from pabal.hub import DatabaseUrls
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.people.tokens import issue_person_link
from support.dump import dumped
from support.notifications import TESTER
from support.notifications import draft_notification as notice
from support.notifications import register_builtin_templates as registered
from support.notifications import request_drafts as asked
from support.terminal import Terminal, terminal_at

pytestmark = pytest.mark.anyio

MINA = "80351110224678912"
HELD = "4 rows (2 notifications, 0 toasts, 2 others)"


@pytest.fixture
async def terminal(folder: Path, database_urls: DatabaseUrls) -> AsyncGenerator[Terminal]:
    """A person with two notices, wishes and a link; and somebody else with one."""
    async with terminal_at(folder, database_urls) as made:
        hub = await registered(made.deaths.hub)
        toast = notice(hub, recipient=MINA, channel=NotificationChannel.DASHBOARD_TOAST)
        await asked(hub, notice(hub, recipient=MINA), toast, notice(hub, recipient="100"))
        await made.run("notify", "prefs", MINA, "--set", "locale=en")
        async with hub.transaction() as tx:
            await issue_person_link(tx, MINA, TESTER)
        yield made


async def test_an_export_is_one_document_or_a_file_nobody_else_can_read(terminal: Terminal) -> None:
    document = json.loads((await terminal.run("notify", "export", MINA)).stdout)
    told = await terminal.run("notify", "export", MINA, "--to", "theirs.json")
    again = await terminal.run("notify", "export", MINA, "--to", "theirs.json", code=1)

    file = terminal.folder / "theirs.json"
    assert document["person"]["locale"] == "en"
    assert {each["recipient_type"] for each in document["requests"]} == {"user_dm", "dashboard_toast"}
    assert told.stdout == "2 notifications written to theirs.json\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(file.read_text())["requests"]) == 2
    assert again.stderr == "pabal: to: theirs.json cannot be made: File exists\n"


async def test_an_erasure_says_how_much_it_takes_and_waits_for_a_yes(
    terminal: Terminal, database_urls: DatabaseUrls
) -> None:
    refused = await terminal.run("notify", "erase", MINA, feed="n\n", code=1)
    assert MINA.encode() in await dumped(database_urls)

    done = await terminal.run("notify", "erase", MINA, feed="y\n")

    assert refused.stderr == f"Erase {HELD}? [y/N] pabal: nothing was erased\n"
    assert done.stdout == f"{HELD} erased\n"
    assert MINA.encode() not in await dumped(database_urls)
    assert await terminal.deaths.owner.fetchval("select count(*) from notification.requests") == 1
    actor = await terminal.deaths.owner.fetchval(
        "select actor from pabal.audit_log where subject = $1 and action = 'person.erased'", person_pseudonym(MINA)
    )
    assert actor.startswith("cli:")


async def test_with_yes_nothing_is_asked(terminal: Terminal) -> None:
    done = await terminal.read("notify", "erase", MINA, "--yes")

    assert done == {"requests": 2, "toasts": 0, "others": 2, "rows": 4}


@pytest.mark.parametrize("words", [["export"], ["erase"], ["erase", "--yes"]])
async def test_who_is_not_there_is_one_line(terminal: Terminal, words: list[str]) -> None:
    refused = await terminal.run("notify", *words, "nobody", code=1)

    assert (refused.stdout, refused.stderr) == ("", "pabal: No such person\n")
