"""The dead letters' room: what is broken, and what is done about it: exactly what was agreed to."""

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
from pabal.events.dead_letters import (
    RECENT_HOURS,
    DeadLetterFilter,
    count_dead_letters_by_hour,
    group_dead_letters,
    resolve_dead_letters,
)
from pabal.hub import DatabaseUrls, Hub
from pabal.operators.operators import Role
from pabal.queue.outcome import Dead
from support.clusters import connected
from support.failed_events import MINA, Deaths, listed, replayed
from support.operator import HOSTILE, Signed, sign_in, unharmed
from support.wait import WAITING, until

pytestmark = pytest.mark.anyio

ROOM = "/console/dead"
Travel = Callable[[timedelta], Awaitable[None]]


def causes(page: httpx2.Response) -> dict[str, int]:
    """The groups of a page and their counts, from the top."""
    assert page.status_code == 200, page.text
    cells = re.findall(r'data-row href="[^"]+">(.*?)</a></td>\s*<td class="number"[^>]*>([\d,]+)<', page.text)
    return {cause: int(count.replace(",", "")) for cause, count in cells}


def rows(page: httpx2.Response) -> list[str]:
    assert page.status_code == 200, page.text
    return re.findall(rf'data-row href="{ROOM}/([0-9a-f-]+)"', page.text)


async def open_ones(hub: Hub) -> set[UUID]:
    return {each.id for each in await listed(hub)}


async def audited(deaths: Deaths) -> list[tuple[str, str]]:
    found = await deaths.owner.fetch(
        "select actor, action from pabal.audit_log where action like 'dead_letter.%' order by id"
    )
    return [(each["actor"], each["action"]) for each in found]


async def test_what_is_broken_is_grouped_by_cause(admin: Signed, hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(3, "order %s not found")
    _, letter = await deaths.dead("cart.filled", why="timed out")

    page = await admin.get(ROOM)
    assert causes(page) == {"order &lt;n&gt; not found": 3, "timed out": 1}
    assert list(causes(page)) == ["order &lt;n&gt; not found", "timed out"]
    assert causes(await admin.get(f"{ROOM}?type=cart.*")) == {"timed out": 1}
    assert causes(await admin.get(f"{ROOM}?state=resolved")) == {}
    assert rows(await admin.get(f"{ROOM}/letters?signature=timed+out")) == [str(letter)]
    await replayed(hub, letter)
    assert causes(await admin.get(f"{ROOM}?state=resolved")) == {"timed out": 1}
    assert rows(await admin.get(f"{ROOM}/letters?state=resolved")) == [str(letter)]


async def test_the_hours_of_the_last_day_are_counted_for_each_cause(
    hub: Hub, web: httpx2.AsyncClient, deaths: Deaths, travel: Travel
) -> None:
    await deaths.born_dead(5, "boom")
    await travel(timedelta(hours=23, minutes=30))
    await deaths.born_dead(2, "boom")
    await deaths.born_dead(1, "bang")
    async with hub.autocommit() as tx:
        hours = await count_dead_letters_by_hour(tx, ["boom", "bang"], DeadLetterFilter())
        assert await count_dead_letters_by_hour(tx, ["boom"], DeadLetterFilter(source="minu_keep")) == {
            "boom": [0] * RECENT_HOURS
        }
    assert hours == {"boom": [5, *[0] * 22, 2], "bang": [*[0] * 23, 1]}
    admin = await sign_in(hub, web, Role.ADMIN)
    page = (await admin.get(ROOM)).text
    assert "<title>7 in the last 24 hours, at most 5 in an hour</title>" in page

    await travel(timedelta(hours=1))
    async with hub.autocommit() as tx:
        assert (await count_dead_letters_by_hour(tx, ["boom"], DeadLetterFilter()))["boom"] == [*[0] * 22, 2, 0]


@pytest.mark.parametrize("since", ["1h", "2026-01-01T00:00", "2026-01-01T00:00:00+09:00"])
async def test_since_is_how_long_ago_or_a_moment(
    hub: Hub, web: httpx2.AsyncClient, deaths: Deaths, travel: Travel, since: str
) -> None:
    await deaths.born_dead(1, "old")
    await travel(timedelta(hours=2))
    await deaths.born_dead(1, "new")
    admin = await sign_in(hub, web, Role.ADMIN)

    shown = causes(await admin.get(f"{ROOM}?{httpx2.QueryParams({'since': since})}"))

    assert shown == ({"new": 1} if since == "1h" else {"new": 1, "old": 1})


@pytest.mark.parametrize("wrong", ["since=tomorrow", "since=99999999999999d", "since=9999-12-31T23:59-23:59"])
async def test_a_time_that_is_none_is_refused(admin: Signed, wrong: str) -> None:
    refused = await admin.get(f"{ROOM}?{wrong}")

    assert refused.status_code == 400
    assert "since: must be an age" in refused.text


async def test_a_letter_tells_everything_but_secrets(admin: Signed, deaths: Deaths) -> None:
    payload = msgspec.json.encode({"order": 7, "api_key": "sesame"})
    event = await deaths.publish(payload=payload, correlation_id="order-7")
    letter = await deaths.die(event, Dead("boom", code="E1", stack="at line 9"))

    page = (await admin.get(f"{ROOM}/{letter}")).text
    for told in ("boom", "E1", "at line 9", "order-7", "w1", "&#34;order&#34;: 7", f'href="/console/events/{event}"'):
        assert told in page, told
    assert "sesame" not in page

    await admin.post(f"{ROOM}/resolve", letter=str(letter), one="1", count="1", note="the shop was closed")
    page = (await admin.get(f"{ROOM}/{letter}")).text
    assert "operator:the-admin" in page
    assert "the shop was closed" in page
    assert 'action="/console/dead' not in page


async def test_nothing_hostile_gets_out_of_its_field(admin: Signed, hub: Hub, deaths: Deaths) -> None:
    payload = msgspec.json.encode({HOSTILE: HOSTILE})
    event = await deaths.publish(payload=payload, correlation_id=HOSTILE, ordering_key=HOSTILE)
    letter = await deaths.die(event, Dead(HOSTILE, code=HOSTILE, stack=HOSTILE))
    [group] = await admin_groups(hub)
    paths = [ROOM, f"{ROOM}/letters?{httpx2.QueryParams({'signature': group})}", f"{ROOM}/{letter}"]
    asked = await admin.post(f"{ROOM}/resolve", letter=str(letter), note=HOSTILE, type=HOSTILE)
    assert unharmed(asked)
    assert "1 dead letter will be marked" in asked.text
    for path in paths:
        page = await admin.get(path)
        assert unharmed(page), path
        assert "&lt;script&gt;alert" in page.text, path
    async with hub.transaction() as tx:
        await resolve_dead_letters(tx, [letter], MINA, HOSTILE)
    await deaths.owner.execute("update public.dead_letter_queue set resolved_by_actor = $1", HOSTILE)

    page = await admin.get(f"{ROOM}/{letter}")
    assert unharmed(page)
    assert page.text.count("&lt;script&gt;alert") > 8


async def admin_groups(hub: Hub) -> list[str]:
    async with hub.autocommit() as tx:
        return [each.signature for each in await group_dead_letters(tx, DeadLetterFilter())]


async def test_one_letter_is_replayed_at_once_and_written_down(admin: Signed, hub: Hub, deaths: Deaths) -> None:
    event, letter = await deaths.dead()

    done = await admin.post(f"{ROOM}/replay", letter=str(letter), one="1", count="1")

    assert (done.status_code, done.headers["location"]) == (303, f"{ROOM}/{letter}")
    assert (await deaths.event(event))["status"] == "pending"
    assert await deaths.audited(letter) == [("operator:the-admin", "dead_letter.replayed", str(letter))]
    again = await admin.post(f"{ROOM}/replay", letter=str(letter), one="1", count="1")
    assert again.status_code == 409
    assert "already replayed by operator:the-admin" in again.text


async def test_those_ticked_are_replayed_after_a_question(admin: Signed, hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(3)
    first, second, third = sorted(await open_ones(hub))

    asked = await admin.post(f"{ROOM}/replay", letter=[str(first), str(second)])
    assert "2 dead letters will be replayed" in asked.text
    assert asked.text.count('name="letter"') == 2
    assert await open_ones(hub) == {first, second, third}
    done = await admin.post(f"{ROOM}/replay", letter=[str(first), str(second)], count="2")

    assert done.status_code == 303
    assert await open_ones(hub) == {third}


async def test_a_letter_seen_to_meanwhile_changes_the_number_and_asks_again(
    admin: Signed, hub: Hub, deaths: Deaths
) -> None:
    await deaths.born_dead(3)
    ids = [str(each) for each in sorted(await open_ones(hub))]
    async with hub.transaction() as tx:
        await resolve_dead_letters(tx, [UUID(ids[0])], MINA, "known")

    for deed, words in (
        ("replay", "2 dead letters will be replayed"),
        ("resolve", "2 dead letters will be marked as resolved"),
    ):
        asked = await admin.post(f"{ROOM}/{deed}", letter=ids, count="3", note="known")
        assert words in asked.text
        assert 'name="count" value="2"' in asked.text
    assert len(await open_ones(hub)) == 2
    assert len(await audited(deaths)) == 1


def hidden(page: httpx2.Response) -> dict[str, str]:
    """What a question carries on to its answer."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text)
    return {name: value.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">") for name, value in found}


async def test_all_that_match_are_those_that_matched_when_it_was_asked(admin: Signed, hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(3)
    await deaths.born_dead(2, event_type="cart.filled")
    asked = await admin.post(f"{ROOM}/replay", all="1", type="order.*", since="24h")
    assert "3 dead letters will be replayed" in asked.text
    await deaths.born_dead(1)

    done = await admin.post(f"{ROOM}/replay", **hidden(asked))

    assert done.status_code == 303
    left = await listed(hub)
    assert sorted(each.original_event_type for each in left) == ["cart.filled", "cart.filled", "order.paid"]


async def test_all_of_a_cause_are_resolved_with_a_note(admin: Signed, hub: Hub, deaths: Deaths) -> None:
    await deaths.born_dead(4, "order %s not found")
    await deaths.born_dead(1, "timed out")
    said = {"all": "1", "signature": "order <n> not found", "note": "a bug of ours"}

    asked = await admin.post(f"{ROOM}/resolve", **said)
    assert "4 dead letters will be marked as resolved." in asked.text
    done = await admin.post(f"{ROOM}/resolve", **hidden(asked))

    assert done.status_code == 303
    assert [each.error_message for each in await listed(hub)] == ["timed out"]
    assert {each.resolution_notes for each in await listed(hub, state="resolved")} == {"a bug of ours"}
    assert await audited(deaths) == [("operator:the-admin", "dead_letter.resolved")] * 4


async def test_of_very_many_the_oldest_are_taken(
    admin: Signed, hub: Hub, deaths: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MAX_BATCH", 3)
    for _ in range(5):
        await deaths.dead()
    oldest = [each.id for each in await listed(hub)][-3:]

    asked = await admin.post(f"{ROOM}/replay", all="1")
    assert "The oldest 3 will be replayed" in asked.text
    assert (await admin.post(f"{ROOM}/replay", **hidden(asked))).status_code == 303

    assert {each.id for each in await listed(hub, state="resolved")} == {*oldest}


@pytest.mark.parametrize("deed", ["replay", "resolve"])
async def test_two_admins_at_once_do_it_once(
    admin: Signed, deaths: Deaths, database_urls: DatabaseUrls, deed: str
) -> None:
    done, nothing = f"dead_letters.{deed}.done", f"dead_letters.{deed}.none"
    await deaths.born_dead(20)
    both = admin, await sign_in(deaths.hub, admin.web, Role.ADMIN, "another")
    questions = [await each.post(f"{ROOM}/{deed}", all="1", note="known") for each in both]
    async with connected(database_urls.direct or "") as third:
        async with third.transaction():  # somebody holds all of it until both of them wait
            await third.execute("select from public.event_queue for update")
            await third.execute("select from public.dead_letter_queue for update")
            doing = [
                asyncio.create_task(each.post(f"{ROOM}/{deed}", **hidden(asked)))
                for each, asked in zip(both, questions, strict=True)
            ]

            async def both_wait() -> bool:
                return await deaths.owner.fetchval(WAITING) >= 2

            await until(both_wait)
        answers = await asyncio.gather(*doing)

    assert await open_ones(deaths.hub) == set()
    assert len(await audited(deaths)) == 20
    assert len({*await audited(deaths)}) == 1, "one of them did all of it"
    said = [unquote(each.headers["set-cookie"]) for each in answers]
    assert sorted(done in each for each in said) == [False, True]
    assert sorted(nothing in each for each in said) == [False, True]


async def test_all_letters_of_one_event_are_replayed_as_one_and_counted_so(
    admin: Signed, hub: Hub, deaths: Deaths
) -> None:
    event, first = await deaths.dead()
    await deaths.owner.execute(
        "update public.event_queue set status = 'pending', processed_at = null where id = $1", event
    )
    second = await deaths.die(event, Dead("boom again"))
    assert first != second

    asked = await admin.post(f"{ROOM}/replay", letter=str(first), one="1", count="1")

    assert "2 dead letters will be replayed" in asked.text
    assert await open_ones(hub) == {first, second}


@pytest.mark.parametrize("deed", ["replay", "resolve"])
async def test_a_viewer_looks_and_does_nothing(viewer: Signed, hub: Hub, deaths: Deaths, deed: str) -> None:
    _, letter = await deaths.dead()

    for path in (ROOM, f"{ROOM}/letters", f"{ROOM}/{letter}"):
        page = await viewer.get(path)
        assert page.status_code == 200
        assert 'action="/console/dead/' not in page.text
        assert 'name="letter"' not in page.text
    given: dict[str, Any] = {"letter": str(letter), "count": "1", "note": "x"}
    assert (await viewer.post(f"{ROOM}/{deed}", **given)).status_code == 403
    assert await open_ones(hub) == {letter}


@pytest.mark.parametrize("deed", ["replay", "resolve"])
async def test_a_form_that_is_not_ours_does_nothing(admin: Signed, hub: Hub, deaths: Deaths, deed: str) -> None:
    _, letter = await deaths.dead()

    refused = await admin.post(f"{ROOM}/{deed}", letter=str(letter), count="1", note="x", csrf_token="00")

    assert refused.status_code == 403
    assert await open_ones(hub) == {letter}


@pytest.mark.parametrize(
    ("deed", "given", "status", "why"),
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
async def test_what_cannot_be_is_said(admin: Signed, deed: str, given: dict[str, str], status: int, why: str) -> None:
    page = await admin.post(f"{ROOM}/{deed}", **given)

    assert page.status_code == status
    assert why in page.text


async def test_with_nothing_to_do_nothing_is_done(admin: Signed, deaths: Deaths) -> None:
    page = await admin.get(ROOM)
    assert "No dead letters. Every event has been delivered." in page.text
    assert (await admin.get(f"{ROOM}/{new_id()}")).status_code == 404
    for deed in ("replay", "resolve"):
        assert (await admin.post(f"{ROOM}/{deed}", all="1", note="x")).headers["location"] == ROOM
    assert await audited(deaths) == []
