"""Describe and remove services and operators; commands that are told to change nothing."""

from functools import partial
from pathlib import Path

import pytest

from cli.test_service import Ask, Run, audit
from pabal.core.errors import InvalidClient
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from pabal.tokens.issue import authenticate_client
from support.clusters import Connection
from support.oauth_client import TESTER
from support.pabal_process import pabal, pabal_json

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(folder: Path) -> Settings:
    """The settings of the commands, so that the hub of the test uses the same keys."""
    return Settings(_env_file=None, data_dir=folder / "data")  # pyright: ignore[reportCallIssue]


@pytest.fixture
def run(folder: Path, database_urls: DatabaseUrls) -> Run:
    return partial(pabal, folder=folder, PABAL_DATABASE_URL=database_urls.main, PABAL_LOG_LEVEL="warning")


@pytest.fixture
def ask(folder: Path, database_urls: DatabaseUrls) -> Ask:
    return partial(pabal_json, folder=folder, PABAL_DATABASE_URL=database_urls.main)


async def test_a_description_is_set_and_removed(run: Run, ask: Ask, database_urls: DatabaseUrls) -> None:
    ask("service", "add", "shop", "--permission", "write", "--may-publish", "order.*")

    described = ask("service", "set", "shop", "--description", "The web shop")
    cleared = ask("service", "set", "shop", "--description", "")
    refused = run("service", "set", "shop", "--description", "two\nlines", code=1).stderr

    assert (described["description"], described["may_publish"]) == ("The web shop", ["order.*"])
    assert cleared["description"] is None
    assert refused == "pabal: description: must be one line of at most 500 characters\n"
    assert [action for _, action in await audit(database_urls, "shop")][-2:] == ["service.described"] * 2


async def test_a_removed_service_is_gone_and_its_name_is_free(
    hub: Hub, run: Run, ask: Ask, database_urls: DatabaseUrls
) -> None:
    first = ask("service", "add", "shop", "--permission", "write", "--description", "The first")

    removed = run("service", "remove", "shop").stdout
    names = [item["name"] for item in ask("service", "list")["items"]]
    missing = run("service", "remove", "shop", code=1).stderr
    again = ask("service", "add", "shop", "--permission", "read")
    shown = ask("service", "show", "shop")

    assert removed == "shop removed\n"
    assert "shop" not in names
    assert missing == "pabal: No such service: shop. See `pabal service list`\n"
    assert (shown["permissions"], shown["description"], shown["active"]) == (["read"], None, True)
    async with hub.autocommit() as tx:
        assert (await authenticate_client(tx, "shop", again["client_secret"], TESTER)).service == "shop"
        with pytest.raises(InvalidClient):
            await authenticate_client(tx, "shop", first["client_secret"], TESTER)
    assert "service.removed" in [action for _, action in await audit(database_urls, "shop")]


@pytest.mark.parametrize(
    ("use", "text"),
    [
        ("select pabal.publish('shop', 'order.paid', target => 'minu_build')", "events"),
        ("select pabal.publish('minu_build', 'order.paid', target => 'shop')", "events"),
        (
            "insert into pabal.subscriptions (service_name, mode, event_types) values ('shop', 'pull', '{a.*}')",
            "subscriptions",
        ),
        (
            "insert into public.token_families (service_name, expires_at) values ('shop', now() + interval '1 hour')",
            "valid tokens",
        ),
    ],
)
async def test_a_service_that_is_in_use_is_only_disabled(
    run: Run, ask: Ask, owner: Connection, use: str, text: str
) -> None:
    ask("service", "add", "shop", "--permission", "write")
    await owner.execute(use)

    refused = run("service", "remove", "shop", code=1).stderr

    assert refused == f"pabal: shop cannot be removed, because it has {text}. Disable it instead\n"
    assert ask("service", "show", "shop")["active"] is True


async def test_the_hub_is_not_removed(run: Run) -> None:
    assert run("service", "remove", "hub", code=1).stderr == "pabal: The hub's own service cannot be removed\n"


async def test_an_operator_is_removed_but_never_the_last_admin(
    hub: Hub, run: Run, ask: Ask, database_urls: DatabaseUrls
) -> None:
    ask("operator", "add", "mina", "--role", "admin", "--generate")
    ask("operator", "add", "jun", "--generate")

    removed = run("operator", "remove", "jun").stdout
    last = run("operator", "remove", "mina", code=1).stderr

    assert removed == "jun removed; sessions ended\n"
    assert last == "pabal: mina is the only enabled admin. Add or enable another one first\n"
    assert [item["name"] for item in ask("operator", "list")["items"]] == ["mina"]
    assert [action for _, action in await audit(database_urls, "jun")] == ["operator.added", "operator.removed"]


@pytest.mark.parametrize("command", [["account", "set", "mina"], ["service", "set", "minu_find"]])
async def test_a_command_without_a_change_is_a_usage_error(run: Run, command: list[str]) -> None:
    refused = run(*command, code=2)

    assert refused.stderr.startswith("pabal: Nothing to change: give --")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["person", "preferences", "100", "--set", "locale=fr"], "locale: must be ko or en"),
        (["person", "preferences", "somebody"], "person: must be a Discord id of up to 20 digits"),
        (["template", "preview", "payment.succeeded", "--locale", "fr"], "locale: must be ko or en"),
    ],
)
async def test_a_language_or_an_id_that_nothing_has_is_refused(run: Run, command: list[str], text: str) -> None:
    if command[0] == "template":
        run = partial(run, PABAL_DATABASE_URL="")
    assert text in run(*command, code=1).stderr
