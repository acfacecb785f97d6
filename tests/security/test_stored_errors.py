"""Error texts of consumers, handlers and receivers are stored bounded and without secrets."""

from datetime import timedelta
from typing import Any

import httpx2
import pytest

from pabal.core.error_text import MAX_CODE_LENGTH, MAX_ERROR_LENGTH, MAX_STACK_LENGTH
from pabal.events.consume.lane import LANE, ClaimedEvent, EventClaimFilter
from pabal.hub import Hub
from pabal.queue.chores import Chore, ChoreRunner
from pabal.queue.lane import Settlement
from pabal.queue.outcome import Dead, Outcome, Retry, Snooze
from support.clusters import Connection
from support.event_api import Service, connect_service
from support.subscriptions import load_event, publish_test_event
from support.wait import wait_until
from support.worker import run_worker

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
SECRET = "hunter2-hunter2"
LEAKS = (
    f"connect failed: password={SECRET} host=db",
    f"Authorization: Bearer {SECRET}",
    f"cannot reach postgres://shop:{SECRET}@db/shop",
    f'{{"client_secret": "{SECRET}"}}',
    f"signed with whsec_{SECRET}",
    f"refresh token pbr_{SECRET}",
)
STORED_TEXTS = """
    select concat_ws(' ', e.last_error, e.error_code, e.error_stack, e.error_history, d.error_message, d.error_stack,
                     d.error_history, d.signature)
    from public.event_queue e left join public.dead_letter_queue d on d.original_event_id = e.id
    where e.id = $1
"""


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> Service:
    return await connect_service(hub, web, "shop")


@pytest.mark.parametrize("outcome", ["retry", "dead", "snooze"])
async def test_a_nack_with_a_huge_error_is_accepted_and_cut(shop: Service, owner: Connection, outcome: str) -> None:
    await shop.publish(target_service="shop")
    [claimed] = await shop.claim()
    body = {"receipts": [claimed["receipt"]], "error": "begin " + "x" * 450_000 + " end", "outcome": outcome}

    await shop.call("POST", "nack", json=body | {"error_stack": "y" * 450_000})

    query = "select last_error, error_stack from public.event_queue where target_service = 'shop'"
    [(error, stack)] = await owner.fetch(query)
    assert error.startswith("begin … [")
    assert error.endswith(" characters cut] … end")
    assert len(error) <= MAX_ERROR_LENGTH
    assert stack is None or len(stack) <= MAX_STACK_LENGTH


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("outcome", ["retry", "dead", "snooze"])
async def test_no_secret_of_a_nack_is_stored(shop: Service, owner: Connection, leak: str, outcome: str) -> None:
    await shop.publish(target_service="shop")
    [claimed] = await shop.claim()

    await shop.nack(claimed, error=leak, error_stack=f"line 1\n{leak}\nline 3", outcome=outcome)

    stored = await owner.fetchval(STORED_TEXTS, claimed["id"])
    assert SECRET not in stored
    assert "***" in stored


@pytest.mark.parametrize("leak", LEAKS)
async def test_no_secret_of_an_exception_in_a_handler_is_stored(hub: Hub, owner: Connection, leak: str) -> None:
    async def fail(_: ClaimedEvent) -> Outcome:
        raise RuntimeError(leak)

    row = await publish_test_event(hub, "order.paid", max_retries=0)
    async with run_worker(hub, fail):

        async def has_failed() -> bool:
            return (await load_event(hub, row)).status == "failed"

        await wait_until(has_failed)

    stored = await owner.fetchval(STORED_TEXTS, row)
    assert SECRET not in stored
    assert "RuntimeError" in stored


@pytest.mark.parametrize(
    "outcome",
    [Retry(LEAKS[0], None, "c" * 5000, LEAKS[1]), Dead(LEAKS[0], "c" * 5000, LEAKS[1]), Snooze(LEAKS[0], MINUTE)],
)
async def test_every_outcome_of_a_lane_is_cleaned(hub: Hub, owner: Connection, outcome: Any) -> None:
    row = await publish_test_event(hub, "order.paid")
    async with hub.transaction() as tx:
        [claimed] = await LANE.claim(tx, 1, MINUTE, "tester", EventClaimFilter("minu_build"))
        await LANE.settle(tx, [Settlement(claimed, outcome)])

    assert SECRET not in await owner.fetchval(STORED_TEXTS, row)
    code = await owner.fetchval("select error_code from public.event_queue")
    assert code is None or len(code) <= MAX_CODE_LENGTH


async def test_no_secret_of_a_failed_chore_is_stored(hub: Hub, owner: Connection) -> None:
    async def fail(*_: object) -> int:
        raise RuntimeError(LEAKS[2])

    await ChoreRunner(hub.db, (Chore("failing", timedelta(seconds=1), fail),)).run_due()

    assert SECRET not in await owner.fetchval("select last_error from pabal.chores where name = 'failing'")
