"""What an owner asks of the pairing doors while their token ends: what had to wait is not done with a dead token."""

import asyncio
from collections.abc import AsyncGenerator

import httpx2
import pytest

from house import serving
from pabal.core.actor import Actor
from pabal.relay import accounts, roster
from pabal.wiring import Hub, Roads
from patience import waits_for_it
from relay.people import Owning, a_session, an_owner, connection_of, key_of, pair, write
from talking import Talk, talking

pytestmark = pytest.mark.anyio

MINA = "mina-plusfriend-1"
OPERATOR = Actor("operator:jun")
DEEDS = {
    "generate": "PAIRED",
    "block": "PAIRED",
    "unpair": "PAIRED",
    "unblock": "BLOCKED",
    "approve": "PENDING",
    "deny": "PENDING",
}
"""All that changes anything, and how the user stands to whom it is done."""
STANDS = "update conversation_mappings set state = $1, blocked_by = case when $1 = 'BLOCKED' then 'owner' end"


@pytest.fixture
async def talk(roads: Roads) -> AsyncGenerator[Talk]:
    async with talking(roads) as opened:
        yield opened


@pytest.fixture
async def web(hub: Hub) -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving(hub) as where, httpx2.AsyncClient(base_url=where, timeout=30) as client:
        yield client


@pytest.fixture
async def mine(hub: Hub) -> Owning:
    made = await an_owner(hub, "mine")
    await pair(hub, MINA, made.account)
    return made


@pytest.mark.parametrize("end", ["rotated", "disabled"])
@pytest.mark.parametrize("deed", DEEDS)
async def test_a_deed_that_waited_for_the_end_of_its_token_is_not_done(  # noqa: PLR0917 two of them are what it is tried with
    hub: Hub, web: httpx2.AsyncClient, mine: Owning, talk: Talk, deed: str, end: str
) -> None:
    await talk.db.execute(STANDS, DEEDS[deed])
    asks = {} if deed == "generate" else {"conversationKey": key_of(MINA)}
    before = len(await talk.deeds())

    async with hub.transaction() as tx:
        await roster.toll(tx, mine.account)
        if end == "rotated":
            await accounts.rotate_token(tx, mine.account, OPERATOR)
        else:
            await accounts.disable(tx, mine.account, OPERATOR)
        late = asyncio.create_task(web.post(f"/openclaw/pairing/{deed}", json=asks, headers=mine.bearer))
        await waits_for_it(talk.db, late)
    answer = await late

    assert answer.status_code == (401 if end == "rotated" else 403), answer.text
    assert [who for who, _ in (await talk.deeds())[before:]] == [OPERATOR.name]
    assert (await connection_of(talk.db, MINA))[0] == DEEDS[deed]
    assert await talk.count("pairing_codes where used_at is null") == 0


async def test_nor_with_a_sessions_token_that_was_ended_with_the_others(
    hub: Hub, web: httpx2.AsyncClient, talk: Talk
) -> None:
    session = await a_session(hub)
    await write(hub, MINA, f"/pair {session.code}")
    _, account = await connection_of(talk.db, MINA)
    assert account is not None

    async with hub.transaction() as tx:
        await accounts.rotate_token(tx, account, OPERATOR, sessions=True)
        bearer = {"authorization": f"Bearer {session.token}"}
        late = asyncio.create_task(web.post("/v1/pairing/generate", json={}, headers=bearer))
        await waits_for_it(talk.db, late)
    answer = await late

    assert answer.status_code == 401, answer.text
    assert await talk.count("pairing_codes where used_at is null") == 0
