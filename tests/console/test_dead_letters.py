"""Dead letters: groups by cause, and replaying and resolving exactly what was confirmed."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import httpx2
import msgspec
import pytest

from pabal.console import dead_letters
from pabal.core.ids import new_id
from pabal.events.dead_letters.dead_letters import (
    RECENT_HOURS,
    DeadLetterFilter,
    count_dead_letters_by_hour,
    group_dead_letters,
    resolve_dead_letters,
)
from pabal.hub import DatabaseUrls, Hub
from pabal.operators.operators import Role
from pabal.queue.outcome import Dead
from support.clusters import open_connection
from support.failed_events import MINA, EventQueue, read_dead_letters, replay_as_operator
from support.operator import HOSTILE, SignedInOperator, is_escaped, sign_in
from support.wait import COUNT_LOCK_WAITS, wait_until

pytestmark = pytest.mark.anyio

DEAD_LETTERS_PATH = "/console/dead"
Travel = Callable[[timedelta], Awaitable[None]]


def list_causes(page: httpx2.Response) -> dict[str, int]:
    """Return the groups of a page with their counts, in page order."""
    assert page.status_code == 200, page.text
    cells = re.findall(r'data-row href="[^"]+">(.*?)</a></td>\s*<td class="number"[^>]*>([\d,]+)<', page.text)
    return {cause: int(count.replace(",", "")) for cause, count in cells}


def rows(page: httpx2.Response) -> list[str]:
    assert page.status_code == 200, page.text
    return re.findall(rf'data-row href="{DEAD_LETTERS_PATH}/([0-9a-f-]+)"', page.text)


async def list_unresolved(hub: Hub) -> set[UUID]:
    return {letter.id for letter in await read_dead_letters(hub)}


async def list_audit_entries(event_queue: EventQueue) -> list[tuple[str, str]]:
    matches = await event_queue.owner.fetch(
        "select actor, action from pabal.audit_log where action like 'dead_letter.%' order by id"
    )
    return [(row["actor"], row["action"]) for row in matches]


async def test_dead_letters_are_grouped_by_cause(admin: SignedInOperator, hub: Hub, event_queue: EventQueue) -> None:
    await event_queue.insert_failed(3, "order %s not found")
    _, letter = await event_queue.publish_failed("cart.filled", why="timed out")

    page = await admin.get(DEAD_LETTERS_PATH)
    assert list_causes(page) == {"order &lt;n&gt; not found": 3, "timed out": 1}
    assert list(list_causes(page)) == ["order &lt;n&gt; not found", "timed out"]
    assert list_causes(await admin.get(f"{DEAD_LETTERS_PATH}?type=cart.*")) == {"timed out": 1}
    assert list_causes(await admin.get(f"{DEAD_LETTERS_PATH}?state=resolved")) == {}
    assert rows(await admin.get(f"{DEAD_LETTERS_PATH}/letters?signature=timed+out")) == [str(letter)]
    await replay_as_operator(hub, letter)
    assert list_causes(await admin.get(f"{DEAD_LETTERS_PATH}?state=resolved")) == {"timed out": 1}
    assert rows(await admin.get(f"{DEAD_LETTERS_PATH}/letters?state=resolved")) == [str(letter)]


async def test_each_cause_counts_the_hours_of_the_last_day(
    hub: Hub, web: httpx2.AsyncClient, event_queue: EventQueue, travel: Travel
) -> None:
    await event_queue.insert_failed(5, "boom")
    await travel(timedelta(hours=23, minutes=30))
    await event_queue.insert_failed(2, "boom")
    await event_queue.insert_failed(1, "bang")
    async with hub.autocommit() as tx:
        hours = await count_dead_letters_by_hour(tx, ["boom", "bang"], DeadLetterFilter())
        assert await count_dead_letters_by_hour(tx, ["boom"], DeadLetterFilter(source="minu_keep")) == {
            "boom": [0] * RECENT_HOURS
        }
    assert hours == {"boom": [5, *[0] * 22, 2], "bang": [*[0] * 23, 1]}
    admin = await sign_in(hub, web, Role.ADMIN)
    page = (await admin.get(DEAD_LETTERS_PATH)).text
    assert "<title>7 in the last 24 hours, at most 5 in an hour</title>" in page

    await travel(timedelta(hours=1))
    async with hub.autocommit() as tx:
        assert (await count_dead_letters_by_hour(tx, ["boom"], DeadLetterFilter()))["boom"] == [*[0] * 22, 2, 0]


@pytest.mark.parametrize("since", ["1h", "2026-01-01T00:00", "2026-01-01T00:00:00+09:00"])
async def test_since_accepts_a_duration_or_a_timestamp(
    hub: Hub, web: httpx2.AsyncClient, event_queue: EventQueue, travel: Travel, since: str
) -> None:
    await event_queue.insert_failed(1, "old")
    await travel(timedelta(hours=2))
    await event_queue.insert_failed(1, "new")
    admin = await sign_in(hub, web, Role.ADMIN)

    shown = list_causes(await admin.get(f"{DEAD_LETTERS_PATH}?{httpx2.QueryParams({'since': since})}"))

    assert shown == ({"new": 1} if since == "1h" else {"new": 1, "old": 1})


@pytest.mark.parametrize("wrong", ["since=tomorrow", "since=99999999999999d", "since=9999-12-31T23:59-23:59"])
async def test_an_invalid_time_is_refused(admin: SignedInOperator, wrong: str) -> None:
    refused = await admin.get(f"{DEAD_LETTERS_PATH}?{wrong}")

    assert refused.status_code == 400
    assert "since: must be an age" in refused.text


async def test_a_dead_letter_shows_everything_but_secrets(admin: SignedInOperator, event_queue: EventQueue) -> None:
    payload = msgspec.json.encode({"order": 7, "api_key": "sesame"})
    event = await event_queue.publish(payload=payload, correlation_id="order-7")
    letter = await event_queue.fail(event, Dead("boom", code="E1", stack="at line 9"))

    page = (await admin.get(f"{DEAD_LETTERS_PATH}/{letter}")).text
    for text in ("boom", "E1", "at line 9", "order-7", "w1", "&#34;order&#34;: 7", f'href="/console/events/{event}"'):
        assert text in page, text
    assert "sesame" not in page

    await admin.post(f"{DEAD_LETTERS_PATH}/resolve", letter=str(letter), one="1", count="1", note="the shop was closed")
    page = (await admin.get(f"{DEAD_LETTERS_PATH}/{letter}")).text
    assert "operator:the-admin" in page
    assert "the shop was closed" in page
    assert 'action="/console/dead' not in page


async def test_hostile_values_are_escaped(admin: SignedInOperator, hub: Hub, event_queue: EventQueue) -> None:
    payload = msgspec.json.encode({HOSTILE: HOSTILE})
    event = await event_queue.publish(payload=payload, correlation_id=HOSTILE, ordering_key=HOSTILE)
    letter = await event_queue.fail(event, Dead(HOSTILE, code=HOSTILE, stack=HOSTILE))
    [group] = await admin_groups(hub)
    paths = [
        DEAD_LETTERS_PATH,
        f"{DEAD_LETTERS_PATH}/letters?{httpx2.QueryParams({'signature': group})}",
        f"{DEAD_LETTERS_PATH}/{letter}",
    ]
    confirmation = await admin.post(f"{DEAD_LETTERS_PATH}/resolve", letter=str(letter), note=HOSTILE, type=HOSTILE)
    assert is_escaped(confirmation)
    assert "1 dead letter will be marked" in confirmation.text
    for path in paths:
        page = await admin.get(path)
        assert is_escaped(page), path
        assert "&lt;script&gt;alert" in page.text, path
    async with hub.transaction() as tx:
        await resolve_dead_letters(tx, [letter], MINA, HOSTILE)
    await event_queue.owner.execute("update public.dead_letter_queue set resolved_by_actor = $1", HOSTILE)

    page = await admin.get(f"{DEAD_LETTERS_PATH}/{letter}")
    assert is_escaped(page)
    assert page.text.count("&lt;script&gt;alert") > 8


async def admin_groups(hub: Hub) -> list[str]:
    async with hub.autocommit() as tx:
        return [group_dead_letter.signature for group_dead_letter in await group_dead_letters(tx, DeadLetterFilter())]


async def test_one_dead_letter_is_replayed_at_once_and_audited(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue
) -> None:
    event, letter = await event_queue.publish_failed()

    done = await admin.post(f"{DEAD_LETTERS_PATH}/replay", letter=str(letter), one="1", count="1")

    assert (done.status_code, done.headers["location"]) == (303, f"{DEAD_LETTERS_PATH}/{letter}")
    assert (await event_queue.load_event(event))["status"] == "pending"
    assert await event_queue.audit_entries(letter) == [("operator:the-admin", "dead_letter.replayed", str(letter))]
    again = await admin.post(f"{DEAD_LETTERS_PATH}/replay", letter=str(letter), one="1", count="1")
    assert again.status_code == 409
    assert "already replayed by operator:the-admin" in again.text


async def test_selected_dead_letters_are_replayed_after_confirmation(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue
) -> None:
    await event_queue.insert_failed(3)
    first, second, third = sorted(await list_unresolved(hub))

    confirmation = await admin.post(f"{DEAD_LETTERS_PATH}/replay", letter=[str(first), str(second)])
    assert "2 dead letters will be replayed" in confirmation.text
    assert confirmation.text.count('name="letter"') == 2
    assert await list_unresolved(hub) == {first, second, third}
    done = await admin.post(f"{DEAD_LETTERS_PATH}/replay", letter=[str(first), str(second)], count="2")

    assert done.status_code == 303
    assert await list_unresolved(hub) == {third}


async def test_a_dead_letter_resolved_in_the_meantime_changes_the_count_and_asks_again(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue
) -> None:
    await event_queue.insert_failed(3)
    ids = [str(open_one) for open_one in sorted(await list_unresolved(hub))]
    async with hub.transaction() as tx:
        await resolve_dead_letters(tx, [UUID(ids[0])], MINA, "known")

    for action, text in (
        ("replay", "2 dead letters will be replayed"),
        ("resolve", "2 dead letters will be marked as resolved"),
    ):
        confirmation = await admin.post(f"{DEAD_LETTERS_PATH}/{action}", letter=ids, count="3", note="known")
        assert text in confirmation.text
        assert 'name="count" value="2"' in confirmation.text
    assert len(await list_unresolved(hub)) == 2
    assert len(await list_audit_entries(event_queue)) == 1


def hidden_fields(page: httpx2.Response) -> dict[str, str]:
    """Return the hidden fields of a confirmation form."""
    matches = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text)
    return {name: value.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">") for name, value in matches}


async def test_a_bulk_action_covers_only_what_matched_at_confirmation(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue
) -> None:
    await event_queue.insert_failed(3)
    await event_queue.insert_failed(2, event_type="cart.filled")
    confirmation = await admin.post(f"{DEAD_LETTERS_PATH}/replay", all="1", type="order.*", since="24h")
    assert "3 dead letters will be replayed" in confirmation.text
    await event_queue.insert_failed(1)

    done = await admin.post(f"{DEAD_LETTERS_PATH}/replay", **hidden_fields(confirmation))

    assert done.status_code == 303
    left = await read_dead_letters(hub)
    assert sorted(letter.original_event_type for letter in left) == ["cart.filled", "cart.filled", "order.paid"]


async def test_all_dead_letters_of_a_cause_are_resolved_with_a_note(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue
) -> None:
    await event_queue.insert_failed(4, "order %s not found")
    await event_queue.insert_failed(1, "timed out")
    cookies = {"all": "1", "signature": "order <n> not found", "note": "a bug of ours"}

    confirmation = await admin.post(f"{DEAD_LETTERS_PATH}/resolve", **cookies)
    assert "4 dead letters will be marked as resolved." in confirmation.text
    done = await admin.post(f"{DEAD_LETTERS_PATH}/resolve", **hidden_fields(confirmation))

    assert done.status_code == 303
    assert [letter.error_message for letter in await read_dead_letters(hub)] == ["timed out"]
    assert {letter.resolution_notes for letter in await read_dead_letters(hub, state="resolved")} == {"a bug of ours"}
    assert await list_audit_entries(event_queue) == [("operator:the-admin", "dead_letter.resolved")] * 4


async def test_a_bulk_action_takes_the_oldest_dead_letters_first(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MAX_BATCH", 3)
    for _ in range(5):
        await event_queue.publish_failed()
    oldest = [letter.id for letter in await read_dead_letters(hub)][-3:]

    confirmation = await admin.post(f"{DEAD_LETTERS_PATH}/replay", all="1")
    assert "The oldest 3 will be replayed" in confirmation.text
    assert (await admin.post(f"{DEAD_LETTERS_PATH}/replay", **hidden_fields(confirmation))).status_code == 303

    assert {letter.id for letter in await read_dead_letters(hub, state="resolved")} == {*oldest}


@pytest.mark.parametrize("action", ["replay", "resolve"])
async def test_replaying_twice_replays_once(
    admin: SignedInOperator, event_queue: EventQueue, database_urls: DatabaseUrls, action: str
) -> None:
    done, nothing = f"dead_letters.{action}.done", f"dead_letters.{action}.none"
    await event_queue.insert_failed(20)
    both = admin, await sign_in(event_queue.hub, admin.web, Role.ADMIN, "another")
    questions = [await operator.post(f"{DEAD_LETTERS_PATH}/{action}", all="1", note="known") for operator in both]
    async with open_connection(database_urls.direct or "") as third:
        async with third.transaction():  # hold all rows until both requests wait
            await third.execute("select from public.event_queue for update")
            await third.execute("select from public.dead_letter_queue for update")
            doing = [
                asyncio.create_task(operator.post(f"{DEAD_LETTERS_PATH}/{action}", **hidden_fields(confirmation)))
                for operator, confirmation in zip(both, questions, strict=True)
            ]

            async def both_wait() -> bool:
                return await event_queue.owner.fetchval(COUNT_LOCK_WAITS) >= 2

            await wait_until(both_wait)
        responses = await asyncio.gather(*doing)

    assert await list_unresolved(event_queue.hub) == set()
    assert len(await list_audit_entries(event_queue)) == 20
    assert len({*await list_audit_entries(event_queue)}) == 1, "one of them did all of it"
    cookies = [unquote(response.headers["set-cookie"]) for response in responses]
    assert sorted(done in cookie for cookie in cookies) == [False, True]
    assert sorted(nothing in cookie for cookie in cookies) == [False, True]


async def test_all_dead_letters_of_one_event_are_replayed_and_counted_once(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue
) -> None:
    event, first = await event_queue.publish_failed()
    await event_queue.owner.execute(
        "update public.event_queue set status = 'pending', processed_at = null where id = $1", event
    )
    second = await event_queue.fail(event, Dead("boom again"))
    assert first != second

    confirmation = await admin.post(f"{DEAD_LETTERS_PATH}/replay", letter=str(first), one="1", count="1")

    assert "2 dead letters will be replayed" in confirmation.text
    assert await list_unresolved(hub) == {first, second}


@pytest.mark.parametrize("action", ["replay", "resolve"])
async def test_a_viewer_can_read_and_not_act(
    viewer: SignedInOperator, hub: Hub, event_queue: EventQueue, action: str
) -> None:
    _, letter = await event_queue.publish_failed()

    for path in (DEAD_LETTERS_PATH, f"{DEAD_LETTERS_PATH}/letters", f"{DEAD_LETTERS_PATH}/{letter}"):
        page = await viewer.get(path)
        assert page.status_code == 200
        assert 'action="/console/dead/' not in page.text
        assert 'name="letter"' not in page.text
    fields: dict[str, Any] = {"letter": str(letter), "count": "1", "note": "x"}
    assert (await viewer.post(f"{DEAD_LETTERS_PATH}/{action}", **fields)).status_code == 403
    assert await list_unresolved(hub) == {letter}


@pytest.mark.parametrize("action", ["replay", "resolve"])
async def test_a_forged_form_changes_nothing(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue, action: str
) -> None:
    _, letter = await event_queue.publish_failed()

    refused = await admin.post(
        f"{DEAD_LETTERS_PATH}/{action}", letter=str(letter), count="1", note="x", csrf_token="00"
    )

    assert refused.status_code == 403
    assert await list_unresolved(hub) == {letter}


@pytest.mark.parametrize(
    ("action", "fields", "status", "why"),
    [
        ("replay", {}, 400, "letter: is missing"),
        ("replay", {"letter": "nonsense"}, 400, "letter: is not a valid id"),
        ("replay", {"letter": str(new_id()), "count": "1"}, 404, ""),
        ("replay", {"all": "1", "since": "soon"}, 400, "since: must be an age"),
        ("resolve", {"all": "1"}, 400, "note: must have 1 to 2000 characters"),
        ("resolve", {"all": "1", "note": " "}, 400, "note: must have 1 to 2000 characters"),
        ("resolve", {"all": "1", "note": "x" * 2001}, 400, "note: must have 1 to 2000 characters"),
    ],
)
async def test_impossible_actions_are_refused_with_a_reason(
    admin: SignedInOperator, action: str, fields: dict[str, str], status: int, why: str
) -> None:
    page = await admin.post(f"{DEAD_LETTERS_PATH}/{action}", **fields)

    assert page.status_code == status
    assert why in page.text


async def test_a_lane_without_backlog_needs_no_estimate(admin: SignedInOperator, event_queue: EventQueue) -> None:
    page = await admin.get(DEAD_LETTERS_PATH)
    assert "No dead letters." in page.text
    assert (await admin.get(f"{DEAD_LETTERS_PATH}/{new_id()}")).status_code == 404
    for action in ("replay", "resolve"):
        assert (await admin.post(f"{DEAD_LETTERS_PATH}/{action}", all="1", note="x")).headers[
            "location"
        ] == DEAD_LETTERS_PATH
    assert await list_audit_entries(event_queue) == []
