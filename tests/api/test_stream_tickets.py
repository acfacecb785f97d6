"""Stream tickets: one stream, within seconds, for one person, from a page of one origin."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx2
import pytest

from pabal.api.toasts import TICKETS_PER_PERSON
from pabal.core.redact import redact_text
from pabal.hub import Hub
from pabal.limits import block_rate_limit
from pabal.notifications.people.stream_tickets import STREAM_TICKET_LIFETIME
from pabal.notifications.people.tokens import PERSON_LINK_LIFETIME, find_person_by_token, revoke_person_token
from pabal.notifications.toasts import stream_slots
from pabal.settings import Settings
from relay.bot import StreamClient, connect_stream
from support.inbox import JUN, MINA, Inbox
from support.oauth_client import bearer
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
STREAM, TICKET = "/v1/toasts/stream", "/v1/toasts/ticket"
PAGE, OTHER_PAGE = "https://app.example.org", "https://other.example.org"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"allowed_origins": [PAGE, OTHER_PAGE]})


async def ticket(web: httpx2.AsyncClient, inbox: Inbox, origin: str | None = None, person: str = MINA) -> str:
    headers = bearer(await inbox.token(person)) | ({"origin": origin} if origin else {})
    response = await web.post(TICKET, headers=headers)
    assert response.status_code == 201, response.text
    return response.json()["ticket"]


async def stream_status(web: httpx2.AsyncClient, ticket: str, origin: str | None = None) -> int:
    """The status of a stream that is closed at once."""
    headers = {"origin": origin} if origin else {}
    async with web.stream("GET", STREAM, params={"ticket": ticket}, headers=headers) as response:
        return response.status_code


@asynccontextmanager
async def ticket_stream(web: httpx2.AsyncClient, ticket: str, after: int = 0) -> AsyncGenerator[StreamClient]:
    async with connect_stream(str(web.base_url), None, path=f"{STREAM}?after={after}&ticket={ticket}") as stream:
        assert (await stream.first()).name == "connected"
        yield stream


async def test_a_ticket_opens_the_stream_of_its_person(hub: Hub, web: httpx2.AsyncClient, inbox: Inbox) -> None:
    await inbox.insert_toast(JUN, title="not hers")
    await inbox.insert_toast(MINA, title="hers")

    async with ticket_stream(web, await ticket(web, inbox)) as stream:
        assert stream.received[0].data == {"unread": 1}
        assert (await stream.first()).data["toast"]["title"] == "hers"


async def test_a_ticket_works_once_even_if_many_try(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    one_use = await ticket(web, inbox)

    statuses = await asyncio.gather(*(stream_status(web, one_use) for _ in range(10)))

    assert sorted(statuses) == [200, *[401] * 9]


async def test_a_ticket_expires_within_seconds(web: httpx2.AsyncClient, inbox: Inbox, travel: Travel) -> None:
    in_time, late = await ticket(web, inbox), await ticket(web, inbox)
    await travel(STREAM_TICKET_LIFETIME - timedelta(seconds=5))
    assert await stream_status(web, in_time) == 200
    await travel(timedelta(seconds=5))

    assert await stream_status(web, late) == 401


async def test_a_ticket_works_only_for_the_origin_that_it_was_issued_to(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    bound, unbound = await ticket(web, inbox, PAGE), await ticket(web, inbox)

    assert await stream_status(web, bound, OTHER_PAGE) == 401
    assert await stream_status(web, bound) == 401
    assert await stream_status(web, bound, "https://evil.example") == 403
    assert await stream_status(web, unbound, PAGE) == 401
    assert await stream_status(web, bound, PAGE) == 200, "the other attempts have not used it"


async def test_a_page_that_is_not_allowed_gets_no_ticket(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    for origin in ("https://evil.example", "null", f"{PAGE}.evil.example", f"{PAGE}:8443", "http://app.example.org"):
        refused = await web.post(TICKET, headers=bearer(await inbox.token()) | {"origin": origin})

        assert (refused.status_code, refused.json()["code"]) == (403, "foreign_origin"), origin


async def test_a_page_of_the_hub_gets_a_ticket_although_its_stream_states_no_origin(
    web: httpx2.AsyncClient, inbox: Inbox
) -> None:
    own = await ticket(web, inbox, str(web.base_url).rstrip("/"))

    assert await stream_status(web, own) == 200


async def test_a_ticket_ends_with_the_token_and_so_does_its_stream(
    hub: Hub, web: httpx2.AsyncClient, inbox: Inbox, travel: Travel
) -> None:
    token = await inbox.token()
    unused = (await web.post(TICKET, headers=bearer(token))).json()["ticket"]
    used = (await web.post(TICKET, headers=bearer(token))).json()["ticket"]
    async with ticket_stream(web, used) as stream:
        async with hub.transaction() as tx:
            await revoke_person_token(tx, await find_person_by_token(tx, token, "link"))

        assert await stream.read() is None
    assert await stream_status(web, unused) == 401
    assert await inbox.db.fetchval("select count(*) from notification.stream_tickets") == 0


async def test_the_stream_of_a_ticket_ends_when_the_token_expires(
    web: httpx2.AsyncClient, inbox: Inbox, travel: Travel
) -> None:
    async with ticket_stream(web, await ticket(web, inbox)) as stream:
        await travel(PERSON_LINK_LIFETIME)

        assert await stream.read() is None


async def test_a_ticket_opens_nothing_but_the_stream(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    unused = await ticket(web, inbox)

    assert (await web.get("/me/stream", params={"ticket": unused})).status_code == 401
    assert (await web.get("/v1/toasts", params={"ticket": unused})).status_code == 401
    assert (await web.get("/v1/toasts", headers=bearer(unused))).status_code == 401
    assert (await web.post(TICKET, params={"ticket": unused})).status_code == 401
    assert (await web.get(STREAM, headers=bearer(unused))).status_code == 401
    assert await stream_status(web, unused) == 200


async def test_the_limit_of_open_streams_holds_for_tickets(
    hub: Hub, web: httpx2.AsyncClient, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_slots, "MAX_STREAMS_PER_PERSON", 1)
    first, second = await ticket(web, inbox), await ticket(web, inbox)
    async with ticket_stream(web, first):
        assert await stream_status(web, second) == 429
    await wait_until(lambda: len(hub.toast_streams) == 0)


async def test_a_person_gets_a_limited_number_of_tickets(hub: Hub, web: httpx2.AsyncClient, inbox: Inbox) -> None:
    async with hub.transaction() as tx:  # an hour of tickets at once, so that the time of the test does not matter
        await block_rate_limit(tx, TICKETS_PER_PERSON.name, MINA, timedelta(hours=1))
    refused = await web.post(TICKET, headers=bearer(await inbox.token()))

    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert (await web.post(TICKET, headers=bearer(await inbox.token(JUN)))).status_code == 201


async def test_only_the_hash_of_a_ticket_is_stored_and_logs_hide_it(web: httpx2.AsyncClient, inbox: Inbox) -> None:
    secret = await ticket(web, inbox, PAGE)
    [stored] = await inbox.db.fetch("select * from notification.stream_tickets")

    assert secret not in str(stored)
    assert stored["origin"] == PAGE
    assert secret not in redact_text(f"GET {STREAM}?after=0&ticket={secret} 200")
    assert secret not in redact_text(f"the ticket is {secret}.")
    assert "abc" not in redact_text(f"{STREAM}?ticket=abc")


async def test_expired_tickets_are_purged(hub: Hub, web: httpx2.AsyncClient, inbox: Inbox, travel: Travel) -> None:
    await ticket(web, inbox)
    await travel(STREAM_TICKET_LIFETIME)
    kept = await ticket(web, inbox)
    await hub.chores.run_due()

    assert await inbox.db.fetchval("select count(*) from notification.stream_tickets") == 1
    assert await stream_status(web, kept) == 200
