"""`pabal token`."""

import asyncio
import re
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import InvalidToken
from pabal.core.ids import new_id
from pabal.db.doorbell.channels import Channel
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.key import KeySet
from pabal.keys.keyring import KeyRing
from pabal.settings import Settings
from pabal.tokens.issue import OAuthClient, issue_tokens
from pabal.tokens.issuer import TokenIssuer, TokenPair
from pabal.tokens.services import find_service
from pabal.tokens.verify import TokenVerifier, find_token_state
from support.clusters import open_connection
from support.pabal_process import pabal, pabal_json
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Ask = Callable[..., Any]
Travel = Callable[[timedelta], Awaitable[None]]
WRITE = "events:publish events:consume events:read notifications:send notifications:read"
NOBODYS = "01a1e1f9-3111-70f9-9be9-6446874576ca"


@pytest.fixture
def settings(folder: Path) -> Settings:
    """The settings of the commands, so that the hub of the test uses the same keys."""
    return Settings(_env_file=None, data_dir=folder / "data")  # pyright: ignore[reportCallIssue]


@pytest.fixture
def run(folder: Path, database_urls: DatabaseUrls) -> Run:
    return partial(pabal, folder=folder, PABAL_DATABASE_URL=database_urls.main)


@pytest.fixture
def ask(folder: Path, database_urls: DatabaseUrls) -> Ask:
    return partial(pabal_json, folder=folder, PABAL_DATABASE_URL=database_urls.main)


@pytest.fixture
async def trusting(hub: Hub) -> AsyncGenerator[Hub]:
    """A hub that caches a token for an hour unless it is notified."""
    with hub.doorbell.listen(Channel.TOKENS) as listener:
        yield replace(
            hub, token_verifier=TokenVerifier(hub.db, hub.token_issuer, listener, cache_lifetime=timedelta(hours=1))
        )


async def issued(hub: Hub, service: str = "minu_find") -> TokenPair:
    async with hub.transaction() as tx:
        holder = await find_service(tx, service)
        client = OAuthClient(holder.name, tuple(holder.permissions), holder.now)
        return await issue_tokens(tx, hub.token_issuer, client, client.allowed, HUB_ACTOR)


async def execute(database_urls: DatabaseUrls, statement: str, *given: object) -> None:
    async with open_connection(database_urls.main) as conn:
        await conn.execute(statement, *given)


async def test_issued_tokens_are_valid_at_the_api(hub: Hub, database_urls: DatabaseUrls, ask: Ask) -> None:
    pair = ask("token", "issue", "minu_find")
    less = ask("token", "issue", "minu_find", "--scope", "events:read", "--scope", "tokens:admin", "--no-refresh")

    assert pair.keys() == {"access_token", "refresh_token", "expires_in", "scope", "token_type", "family"}
    assert (pair["token_type"], pair["scope"]) == ("Bearer", WRITE)
    assert 3590 < pair["expires_in"] <= 3600
    assert less.keys() == pair.keys() - {"refresh_token"}
    assert less["scope"] == "events:read"
    caller = await hub.token_verifier.verify(pair["access_token"])
    assert (caller.service, str(caller.family_id)) == ("minu_find", pair["family"])
    async with open_connection(database_urls.main) as conn:
        by = await conn.fetchval("select distinct issued_by_actor from public.service_tokens")
    assert re.fullmatch(r"cli:\w+", by)


async def test_tokens_are_shown_once_and_nowhere_else(run: Run) -> None:
    loud = partial(run, PABAL_LOG_LEVEL="debug")

    given = loud("token", "issue", "minu_find")
    [access], [first] = re.findall(r"(?<!\S)eyJ\S+", given.stdout), re.findall(r"pbr_\S+", given.stdout)
    refreshed = loud("token", "refresh", "-", feed=first)
    [second] = re.findall(r"pbr_\S+", refreshed.stdout)
    others = [
        loud("token", "verify", "-", feed=access),
        loud("token", "verify", access, "--json"),
        loud("token", "list"),
        loud("token", "list", "--json", "--all"),
        loud("token", "revoke", "-", feed=second),
    ]

    assert second != first
    for shown in (given, refreshed):
        assert "shown only once" in shown.stdout
    assert given.stderr  # the log is on: it reports the keys it created
    for printed in (given.stderr, refreshed.stderr, *(item.stdout + item.stderr for item in others)):
        assert "eyJ" not in printed
        assert "pbr_" not in printed


@pytest.mark.parametrize(
    ("args", "code", "result"),
    [
        (["issue", "nobody"], 1, "No such service: nobody. See `pabal service list`"),
        (["issue", "minu_find", "--scope", "hub:admin"], 1, "the service has none of the requested permissions"),
        (["issue", "minu_find", "--scope", "fly"], 1, "'fly' is not a permission; use one of read, write,"),
        (["refresh", "eyJhbGciOiJFUzI1NiJ9.e30.x"], 2, "is not a refresh token; those begin with pbr_"),
        (["refresh", "pbr_nobodys"], 1, "unknown refresh token: start again with `pabal token issue`"),
        (["verify", "-"], 2, "TOKEN must not be empty"),
        (["verify", "--jsn"], 2, "'--jsn' is not an option"),
        (["revoke"], 2, "Use exactly one of TOKEN, --id, --family and --service."),
        (["revoke", "pbr_x", "--service", "minu_find"], 2, "Use exactly one of TOKEN, --id, --family and --service."),
        (["revoke", "pbr_nobodys"], 1, "not issued by this hub. See `pabal token verify`"),
        (["revoke", "--id", NOBODYS], 1, f"No valid access token {NOBODYS}. See `pabal token list`"),
        (["revoke", "--family", NOBODYS], 1, f"No valid family {NOBODYS}. See `pabal token list`"),
        (["revoke", "--family", "x"], 2, "--family"),
        (["revoke", "--service", "nobody"], 1, "No such service: nobody. See `pabal service list`"),
        (["list", "--service", "nobody"], 1, "No such service: nobody. See `pabal service list`"),
        (["list", "--cursor", "yesterday"], 1, "cursor: is not a cursor of this list"),
        (["list", "--limit", "0"], 2, "--limit"),
    ],
)
async def test_a_refusal_is_one_line_with_advice(run: Run, args: list[str], code: int, result: str) -> None:
    refused = run("token", *args, code=code, PABAL_LOG_LEVEL="warning")

    [line] = refused.stderr.splitlines()
    assert result in line
    assert refused.stdout == ""


async def test_the_help_warns_of_tokens_in_arguments(run: Run) -> None:
    for verb in ("refresh", "verify", "revoke"):
        result = " ".join(re.sub(r"[│\s]+", " ", run("token", verb, "-h").stdout).split())
        assert "`-` reads it from standard input; arguments are visible in `ps`" in result


async def test_a_reused_refresh_token_revokes_its_family(
    hub: Hub, database_urls: DatabaseUrls, run: Run, ask: Ask, travel: Travel
) -> None:
    first = ask("token", "issue", "minu_find")
    second = ask("token", "refresh", "-", feed=first["refresh_token"])
    lost = ask("token", "refresh", "-", feed=first["refresh_token"])
    assert second["family"] == first["family"]
    assert lost["refresh_token"] == second["refresh_token"] != first["refresh_token"]

    await travel(timedelta(seconds=31))
    refused = run("token", "refresh", first["refresh_token"], code=1, PABAL_LOG_LEVEL="warning")

    [line] = refused.stderr.splitlines()
    assert "was already used; all tokens of its family are revoked" in line
    assert "start again with `pabal token issue`" in line
    result = ask("token", "verify", second["access_token"], code=1)
    assert [why.rpartition(": ")[2] for why in result["why"]] == ["Refresh token reused"]
    with pytest.raises(InvalidToken):
        await hub.token_verifier.verify(second["access_token"])
    async with open_connection(database_urls.main) as conn:
        actions = await conn.fetch("select action from pabal.audit_log where subject = 'minu_find' order by id")
    assert [row["action"] for row in actions] == ["token.issued", *["token.refreshed"] * 2, "token.reused"]


async def test_a_disabled_services_refresh_token_is_not_used_up(hub: Hub, run: Run, ask: Ask) -> None:
    pair = await issued(hub)
    assert pair.refresh_token
    ask("service", "disable", "minu_find")

    refused = run("token", "refresh", "-", feed=pair.refresh_token, code=1, PABAL_LOG_LEVEL="warning")
    ask("service", "enable", "minu_find")

    assert refused.stderr == "pabal: minu_find is disabled. Enable it with `pabal service enable minu_find`\n"
    assert ask("token", "verify", "-", feed=pair.refresh_token)["good"] is True


async def test_a_valid_token_is_shown_with_its_claims(hub: Hub, run: Run, ask: Ask) -> None:
    pair = await issued(hub)

    access = ask("token", "verify", pair.access_token)
    refresh = ask("token", "verify", "-", feed=f"  {pair.refresh_token}\n")
    result = run("token", "verify", pair.access_token).stdout

    assert access.keys() == refresh.keys() == {"good", "why", "kind", "token", "claims"}
    assert (access["good"], access["why"], access["kind"]) == (True, [], "access")
    assert (refresh["good"], refresh["kind"], refresh["claims"]) == (True, "refresh", None)
    assert access["token"]["family"] == refresh["token"]["family"] == str(pair.family_id)
    assert access["token"]["scope"] == access["claims"]["scope"] == WRITE
    assert access["claims"]["jti"] == access["token"]["id"]
    assert (access["claims"]["sub"], access["claims"]["aud"]) == ("minu_find", "pabal")
    assert result.startswith("valid\n")
    assert access["token"]["id"] in result


async def test_an_invalid_token_is_explained(hub: Hub, database_urls: DatabaseUrls, ask: Ask, travel: Travel) -> None:
    async def problems(token: str) -> list[str]:
        """The problems of a token, without timestamps. The command and the API always agree."""
        async with hub.autocommit() as tx:
            seen = await find_token_state(tx, token)
        good = seen is not None and seen.is_valid
        result = ask("token", "verify", "-", feed=token, code=0 if good else 1)
        assert result["good"] is good
        return [re.sub(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "", why) for why in result["why"]]

    alone, family, spent, gone = [await issued(hub) for _ in range(4)]
    other = await issued(hub, "minu_keep")
    assert spent.refresh_token
    assert other.refresh_token
    ask("token", "revoke", alone.access_token)
    ask("token", "revoke", "--family", str(family.family_id))
    ask("token", "refresh", spent.refresh_token)
    await execute(database_urls, "delete from public.token_families where id = $1", gone.family_id)
    ask("service", "disable", "minu_keep")

    assert await problems(alone.access_token) == ["it was revoked at: Revoked"]
    assert await problems(family.access_token) == ["its family was revoked at: Revoked"]
    assert await problems(spent.access_token) == []
    assert await problems(spent.refresh_token) == ["it was already used and replaced by a new one"]
    assert await problems(gone.refresh_token or "") == ["it is an unknown refresh token"]
    disabled = "its service minu_keep was disabled at"
    assert await problems(other.access_token) == [disabled]

    await travel(timedelta(hours=1))
    assert await problems(spent.access_token) == ["it expired at"]
    assert await problems(other.access_token) == ["it expired at", disabled]
    await execute(database_urls, "select public.cleanup_expired_tokens()")
    assert await problems(spent.access_token) == ["it expired at"]
    assert await problems(other.refresh_token) == [disabled]


async def test_a_foreign_token_is_explained(hub: Hub, database_urls: DatabaseUrls, ask: Ask) -> None:
    def why(token: str) -> str:
        result = ask("token", "verify", "-", feed=token, code=1)
        [only] = result["why"]
        assert (result["good"], result["token"]) == (False, None)
        assert bool(result["claims"]) is ("signed by this hub" in only)  # unverified claims are not shown
        return only

    def made_by(issuer: TokenIssuer) -> str:
        now = datetime.now(UTC)
        return issuer.create_access_token(
            "minu_find", ("read",), new_id(), now=now, latest_expiry=now + timedelta(days=1)
        ).token

    ours, gone = await issued(hub), await issued(hub)
    await execute(database_urls, "delete from public.token_families where id = $1", gone.family_id)
    head, claims, signature = ours.access_token.split(".")

    assert why("nonsense") == why("\N{SNOWMAN}.x.y") == "it is not a token of this hub"
    changed = "its signature is invalid"
    assert why(f"{head}.{claims}.{signature[::-1]}") == why(f"{head}.e30.{signature}") == changed
    strange = replace(hub.token_issuer, key_ring=KeyRing(KeySet.generate(datetime.now(UTC))))
    assert why(made_by(strange)) == "it was signed with an unknown key"
    assert why(made_by(replace(hub.token_issuer, audience="you"))) == "the access token has another audience"
    assert why(gone.access_token).startswith("it was signed by this hub, but is not in this database")


async def test_tokens_are_revoked_by_token_id_family_or_service(hub: Hub, run: Run, ask: Ask) -> None:
    async def alive(*pairs: TokenPair) -> list[bool]:
        async with hub.autocommit() as tx:
            seen = [await find_token_state(tx, item.access_token) for item in pairs]
        return [item is not None and item.is_valid for item in seen]

    one, two, three, four = [await issued(hub) for _ in range(4)]
    bystander = await issued(hub, "minu_keep")
    assert two.refresh_token
    name = (await hub.token_verifier.verify(one.access_token)).token_id

    assert ask("token", "revoke", "--id", str(name)) == {
        "token": str(name),
        "family": None,
        "service": None,
        "revoked": 1,
    }
    assert await alive(one, two, three, four) == [False, True, True, True]
    assert ask("token", "verify", "-", feed=one.refresh_token)["good"] is True  # its family stays valid
    assert ask("token", "revoke", "-", feed=one.access_token)["revoked"] == 0
    assert run("token", "revoke", one.access_token).stdout == f"access token {name} was no longer valid\n"

    assert ask("token", "revoke", two.refresh_token)["family"] == str(two.family_id)
    assert run("token", "revoke", "--family", str(three.family_id)).stdout == f"family {three.family_id} revoked\n"
    assert await alive(two, three, four) == [False, False, True]

    assert ask("token", "revoke", "--service", "minu_find")["revoked"] == 2  # one's and four's
    assert run("token", "revoke", "--service", "minu_find").stdout == "0 token families of minu_find revoked\n"
    assert await alive(four, bystander) == [False, True]


async def test_tokens_are_listed_in_pages(hub: Hub, run: Run, ask: Ask) -> None:
    finds = [await issued(hub) for _ in range(5)]
    keeps = await issued(hub, "minu_keep")
    families = [str(pair.family_id) for pair in reversed(finds)]
    ask("token", "revoke", "--family", families[0])

    seen: list[dict[str, Any]] = []
    cursor = ["--service", "minu_find"]
    for size in (3, 2):
        page = ask("token", "list", "--all", "--limit", "3", *cursor)
        assert page.keys() == {"items", "cursor"}
        assert len(page["items"]) == size
        seen += page["items"]
        cursor = ["--service", "minu_find", "--cursor", page["cursor"]]
    assert page["cursor"] is None
    assert [item["family"] for item in seen] == families
    assert [item["good"] for item in seen] == [False, True, True, True, True]
    assert seen[0].keys() == {"id", "family", "service", "scope", "good", "created_at", "expires_at"}
    assert {item["scope"] for item in seen} == {WRITE}

    live = ask("token", "list")["items"]
    assert [item["family"] for item in live] == [str(keeps.family_id), *families[1:]]
    table = run("token", "list", "--limit", "1").stdout
    assert live[0]["id"] in table
    assert "older: --cursor " in table


@pytest.mark.parametrize(
    "args",
    [("token", "revoke", "{token}"), ("token", "revoke", "--service", "hub"), ("service", "disable", "minu_find")],
    ids=" ".join,
)
async def test_a_running_hub_refuses_revoked_tokens_at_once(trusting: Hub, run: Run, args: tuple[str, ...]) -> None:
    holder = "hub" if "hub" in args else "minu_find"
    token = (await issued(trusting, holder)).access_token
    await wait_until(lambda: trusting.doorbell.listening)

    async def refused() -> bool:
        try:
            await trusting.token_verifier.verify(token)
        except InvalidToken:
            return True
        return False

    async with serve_hub(trusting) as address, httpx2.AsyncClient(base_url=address) as web:
        brought = {"authorization": f"Bearer {token}"}
        assert (await web.post("/oauth/revoke", headers=brought, data={"token": "nobodys"})).status_code == 200

        await asyncio.to_thread(run, *(arg.format(token=token) for arg in args))
        await wait_until(refused)  # without a notification it would take an hour

        assert (await web.post("/oauth/revoke", headers=brought, data={"token": "nobodys"})).status_code == 401
