"""Events: the list, the page of an event, and cancelling."""

import re
from datetime import timedelta
from uuid import UUID

import httpx2
import msgspec
import pytest

from pabal.console.events import PAGE_SIZE
from pabal.events.events import MAX_SCANNED_ROWS
from pabal.events.push.push_lane import PushLane
from pabal.queue.lane import Settlement
from pabal.queue.outcome import Dead, Retry
from support.failed_events import EventQueue
from support.operator import HOSTILE, SignedInOperator, is_escaped
from support.subscriptions import subscribe

pytestmark = pytest.mark.anyio

EVENTS_PATH = "/console/events"
SUBSCRIBED = (
    "insert into pabal.subscriptions (service_name, mode, event_types)"
    " values ('minu_build', 'pull', '{*}'), ('minu_keep', 'pull', '{*}')"
)


def rows(page: httpx2.Response) -> list[str]:
    """Return the ids that a list links to, in page order."""
    assert page.status_code == 200, page.text
    return re.findall(rf'data-row href="{EVENTS_PATH}/([0-9a-f-]+)"', page.text)


async def test_events_are_filtered_by_the_query_string(admin: SignedInOperator, event_queue: EventQueue) -> None:
    paid = str(await event_queue.publish("order.paid"))
    refunded = str(await event_queue.publish("order.refunded"))
    filled = str(await event_queue.publish("cart.filled", source="minu_keep", target="minu_find"))
    failed, _ = await event_queue.publish_failed("order.lost")

    assert {*rows(await admin.get(EVENTS_PATH))} == {paid, refunded, filled, str(failed)}
    assert rows(await admin.get(f"{EVENTS_PATH}?type=order.*&status=completed")) == [refunded, paid]
    assert rows(await admin.get(f"{EVENTS_PATH}?type=cart.filled")) == [filled]
    assert rows(await admin.get(f"{EVENTS_PATH}?source=minu_keep")) == [filled]
    assert rows(await admin.get(f"{EVENTS_PATH}?target=minu_find&status=pending")) == [filled]
    assert rows(await admin.get(f"{EVENTS_PATH}?status=failed")) == [str(failed)]
    assert {*rows(await admin.get(f"{EVENTS_PATH}?status=unknown"))} == {paid, refunded, filled, str(failed)}
    nothing = await admin.get(f"{EVENTS_PATH}?type=order.%25&source=minu_keep")
    assert rows(nothing) == []
    assert "No events match these filters." in nothing.text


async def test_pagination_shows_every_event_once(admin: SignedInOperator, event_queue: EventQueue) -> None:
    await event_queue.insert_failed(PAGE_SIZE + 7)
    seen: list[str] = []
    path = EVENTS_PATH
    while path:
        page = await admin.get(path)
        seen += rows(page)
        assert ("data-live" in page.text) == (path == EVENTS_PATH)  # older pages do not refresh while they are read
        older = re.search(r'href="([^"]+)" rel="next"', page.text)
        path = older[1].replace("&amp;", "&") if older else ""

    assert len(seen) == len({*seen}) == PAGE_SIZE + 7


async def test_a_search_for_a_rare_event_says_how_far_it_scanned_and_continues(
    admin: SignedInOperator, event_queue: EventQueue
) -> None:
    rare = await event_queue.publish("cart.lost")
    await event_queue.owner.execute("set session_replication_role = replica")
    await event_queue.owner.execute(
        "insert into public.event_queue"
        " (id, event_type, source_service, target_service, status, created_at, processed_at)"
        " select pabal.uuid7(), 'order.paid', 'minu_find', 'minu_build', 'completed', at, at"
        f" from (select now() + n * interval '1 ms' as at from generate_series(1, {MAX_SCANNED_ROWS}) n) m"
    )

    first = await admin.get(f"{EVENTS_PATH}?type=cart.*")
    older = re.search(r'href="([^"]+)" rel="next"', first.text)
    assert older

    assert rows(first) == []
    assert f"Searched {MAX_SCANNED_ROWS:,} events, back to <time " in first.text
    assert rows(await admin.get(older[1].replace("&amp;", "&"))) == [str(rare)]


async def test_an_event_shows_its_status_payload_and_attempts(admin: SignedInOperator, event_queue: EventQueue) -> None:
    payload = msgspec.json.encode({"order": 7, "card_number": "4111 1111", "buyer": {"password": "hunter2"}})
    event = await event_queue.publish(payload=payload, correlation_id="order-7", max_retries=5)
    [held] = await event_queue.claim()
    await event_queue.settle(held, Retry("shop was closed", delay=timedelta(minutes=9)))

    page = (await admin.get(f"{EVENTS_PATH}/{event}")).text

    assert re.search(r'<p class="verdict ">pending, next try in \d+ min \d+ s, attempt 2 of 6<', page)
    assert re.search(r"<dt>Next try</dt><dd><time [^>]+>[^<]+</time>, attempt 2 of 6</dd>", page)
    assert "<dd>1 / 6</dd>" in page
    assert "shop was closed" in page
    assert "attempt 1 by w1 failed: shop was closed" in page
    assert "&#34;order&#34;: 7" in page
    assert "4111 1111" not in page
    assert "hunter2" not in page
    assert f'href="/console/trace?id={event}"' in page
    assert 'href="/console/trace?id=order-7"' in page


async def test_a_push_shows_the_attempts_of_its_schedule(admin: SignedInOperator, event_queue: EventQueue) -> None:
    await subscribe(event_queue.hub, "minu_build", "order.*", url="https://receiver.example.org")
    event = await event_queue.publish()
    for _ in range(2):
        await event_queue.owner.execute("update pabal.event_due set due_at = pabal.now()")
        [slot] = await event_queue.hub.pusher.schedule()
        async with event_queue.hub.transaction() as tx:
            [delivery] = await PushLane().claim(tx, 1, timedelta(seconds=30), "w1", slot.claim_filter)
            closed = Retry("HTTP 503", delay=timedelta(minutes=9))
            await PushLane().settle(tx, [Settlement(delivery, closed)])

    page = (await admin.get(f"{EVENTS_PATH}/{event}")).text

    assert re.search(r'<p class="verdict ">pending, next try in \d+ min( \d+ s)?, attempt 3 of 8<', page)
    assert re.search(r"<dt>Next try</dt><dd><time [^>]+>[^<]+</time>, attempt 3 of 8</dd>", page)


async def test_a_broadcast_shows_its_deliveries_and_dead_letters(
    admin: SignedInOperator, event_queue: EventQueue
) -> None:
    await event_queue.owner.execute(SUBSCRIBED)
    event = await event_queue.publish(target=None)
    [held] = await event_queue.claim(service="minu_keep")
    await event_queue.settle(held, Dead("boom"))
    letter = await event_queue.find_dead_letter(held.id)

    whole, part = await admin.get(f"{EVENTS_PATH}/{event}"), await admin.get(f"{EVENTS_PATH}/{held.id}")

    assert {"minu_build", "minu_keep"} == {*re.findall(r'data-row href="[^"]+">(\w+)<', whole.text)}
    assert str(held.id) in rows(whole)
    assert f'href="/console/dead/{letter}"' in part.text
    assert f'href="{EVENTS_PATH}/{event}"' in part.text


async def test_hostile_values_are_escaped(admin: SignedInOperator, event_queue: EventQueue) -> None:
    payload = msgspec.json.encode({HOSTILE: HOSTILE, "list": [{"deep": HOSTILE}]})
    keys = {"correlation_id": HOSTILE, "ordering_key": HOSTILE, "idempotency_key": HOSTILE}
    event = await event_queue.publish(payload=payload, **keys)
    await event_queue.fail(event, Dead(HOSTILE, code=HOSTILE[:60]))
    await event_queue.owner.execute("update public.event_queue set processor_id = $1", HOSTILE)

    for path in (
        EVENTS_PATH,
        f"{EVENTS_PATH}/{event}",
        f"{EVENTS_PATH}?{httpx2.QueryParams({'type': HOSTILE, 'source': HOSTILE})}",
    ):
        page = await admin.get(path)
        assert page.status_code == 200
        assert is_escaped(page), path
        assert "&lt;script&gt;alert" in page.text
        assert "{{7*7}}" in page.text, path


async def list_audit_entries(event_queue: EventQueue) -> list[tuple[str, str]]:
    rows = await event_queue.owner.fetch(
        "select actor, action from pabal.audit_log where action like 'event.%' order by id"
    )
    return [(row["actor"], row["action"]) for row in rows]


async def test_cancelling_requires_confirmation_and_is_audited(
    admin: SignedInOperator, event_queue: EventQueue
) -> None:
    event = await event_queue.publish()

    confirmation = await admin.post(f"{EVENTS_PATH}/{event}/cancel")
    assert "1 event will be cancelled." in confirmation.text
    assert (await event_queue.load_event(event))["status"] == "pending"
    assert await list_audit_entries(event_queue) == []
    done = await admin.post(f"{EVENTS_PATH}/{event}/cancel", count="1")

    assert (done.status_code, done.headers["location"]) == (303, f"{EVENTS_PATH}/{event}")
    assert (await event_queue.load_event(event))["status"] == "cancelled"
    assert await list_audit_entries(event_queue) == [("operator:the-admin", "event.cancelled")]
    again = await admin.post(f"{EVENTS_PATH}/{event}/cancel", count="1")
    assert again.status_code == 409
    assert "The event has already finished" in again.text


async def test_cancelling_a_broadcast_requires_the_exact_count(
    admin: SignedInOperator, event_queue: EventQueue
) -> None:
    await event_queue.owner.execute(SUBSCRIBED)
    event = await event_queue.publish(target=None)
    assert "2 events will be cancelled." in (await admin.post(f"{EVENTS_PATH}/{event}/cancel")).text
    [held] = await event_queue.claim(service="minu_keep")
    await event_queue.settle(held)

    confirmation = await admin.post(f"{EVENTS_PATH}/{event}/cancel", count="2")
    assert "1 event will be cancelled." in confirmation.text
    assert await list_audit_entries(event_queue) == []
    assert (await admin.post(f"{EVENTS_PATH}/{event}/cancel", count="1")).status_code == 303

    statuses = await event_queue.owner.fetch(
        "select status from public.event_queue where parent_id = $1 order by 1", event
    )
    assert [statuse["status"] for statuse in statuses] == ["cancelled", "completed"]


async def test_a_viewer_can_read_and_not_act(viewer: SignedInOperator, event_queue: EventQueue) -> None:
    event = await event_queue.publish()

    page = await viewer.get(f"{EVENTS_PATH}/{event}")
    assert page.status_code == 200
    assert "/cancel" not in page.text
    assert (await viewer.post(f"{EVENTS_PATH}/{event}/cancel", count="1")).status_code == 403
    assert (await event_queue.load_event(event))["status"] == "pending"


async def test_a_forged_form_changes_nothing(admin: SignedInOperator, event_queue: EventQueue) -> None:
    event = await event_queue.publish()

    assert (await admin.post(f"{EVENTS_PATH}/{event}/cancel", count="1", csrf_token="00")).status_code == 403
    assert (await event_queue.load_event(event))["status"] == "pending"


@pytest.mark.parametrize(
    ("path", "status"),
    [(f"{UUID(int=1 << 100)}", 404), ("nonsense", 404), ("?cursor=nonsense", 400), (f"{UUID(int=0)}", 404)],
)
async def test_a_missing_row_is_not_found(admin: SignedInOperator, path: str, status: int) -> None:
    page = await admin.get(f"{EVENTS_PATH}{path}" if path.startswith("?") else f"{EVENTS_PATH}/{path}")

    assert page.status_code == status
    assert 'role="alert"' in page.text


async def test_the_page_in_korean(admin: SignedInOperator, event_queue: EventQueue) -> None:
    event = await event_queue.publish()

    assert "대기" in (await admin.get(EVENTS_PATH, "ko")).text
    assert "페이로드" in (await admin.get(f"{EVENTS_PATH}/{event}", "ko")).text


async def test_a_broadcast_shows_the_state_of_its_deliveries(admin: SignedInOperator, event_queue: EventQueue) -> None:
    """Its status is `completed` as soon as it is published."""
    unheard = await event_queue.publish("cart.lost", target=None)
    await event_queue.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types) values ('minu_build', 'pull', '{order.*}')"
    )
    broadcast = await event_queue.publish(target=None)

    listed = await admin.get(EVENTS_PATH)
    page = (await admin.get(f"{EVENTS_PATH}/{broadcast}")).text

    assert "0 of 1 done" in listed.text
    assert "no subscribers" in listed.text
    assert "전달 1건 중 0건 완료" in (await admin.get(EVENTS_PATH, "ko")).text
    assert re.search(r'<p class="verdict ">0 of 1 done<', page)
    assert re.search(r'<p class="verdict[^>]*>no subscribers<', (await admin.get(f"{EVENTS_PATH}/{unheard}")).text)
