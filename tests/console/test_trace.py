"""The trace page: the whole history of whatever an id names, on one timeline."""

import re
from itertools import product
from typing import get_args
from uuid import UUID

import httpx2
import msgspec
import pytest

from pabal.console.i18n import TEXTS
from pabal.events.dead_letters.replay import replay_dead_letter
from pabal.hub import Hub
from pabal.queue.outcome import Dead
from pabal.trace.entry import TraceEntryKind
from pabal.trace.notifications import MAX_TRACED_NOTIFICATIONS
from support.failed_events import MINA, EventQueue, replay_as_operator
from support.notifications import draft_notification, register_builtin_templates, request_drafts
from support.operator import HOSTILE, SignedInOperator, is_escaped
from support.relay_rows import Chat, Owner

pytestmark = pytest.mark.anyio

TRACE_PATH = "/console/trace"


async def traced(by: SignedInOperator, name: object, language: str = "en") -> httpx2.Response:
    page = await by.get(f"{TRACE_PATH}?{httpx2.QueryParams({'id': str(name)})}", language)
    assert page.status_code == 200, page.text
    return page


def timeline(page: httpx2.Response) -> list[tuple[str, str]]:
    """The tag and the text of each entry, without links."""
    found = re.findall(r'<span class="tag">(.*?)</span>.*?<p><span>(.*?)</span>', page.text, re.DOTALL)
    return [(kind, re.sub(r"<[^>]+>", "", says)) for kind, says in found]


async def test_every_name_of_an_event_shows_the_same_timeline(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue
) -> None:
    event, letter = await event_queue.publish_failed(correlation_id="order-77")
    await replay_as_operator(hub, letter)
    [held] = await event_queue.claim()
    await event_queue.settle(held)

    pages = [await traced(admin, each) for each in (event, str(letter)[:13], letter, "order-77", f" {event} ")]

    for page in pages:
        assert [kind for kind, _ in timeline(page)] == ["Published", "Failed", "Dead letter", "Replayed", "Completed"]
        assert timeline(page)[2][1] == f"moved to the dead letters: boom; dead letter {letter}"
        assert re.search(r'<p class="verdict good" role="status">completed</p>', page.text)
        assert f'<a data-row href="/console/events/{event}">' in page.text
        assert f'<a href="/console/dead/{letter}">{letter}</a>' in page.text
        assert len(re.findall(r'<span class="after">\+[\d.]+ m?s</span>', page.text)) == 4
        assert len(re.findall(r"\(took [\d.]+ m?s\)", page.text)) == 2
        assert re.findall(r'<li(?: class="([\w-]+)")?>\s*<p class="quiet">', page.text) == [
            "",
            "warning",
            "bad",
            "recovered",
            "good",
        ]


async def test_the_entries_of_a_broadcast_name_their_delivery(admin: SignedInOperator, event_queue: EventQueue) -> None:
    await event_queue.owner.execute(
        "insert into pabal.subscriptions (service_name, mode, event_types)"
        " values ('minu_build', 'pull', '{*}'), ('minu_keep', 'pull', '{*}')"
    )
    event = await event_queue.publish(target=None)
    [held] = await event_queue.claim(service="minu_keep")
    await event_queue.settle(held, Dead("boom"))

    page = (await traced(admin, event)).text

    assert re.search(r'class="verdict bad" [^>]*>0 of 2 done, 1 dead<', page)
    assert f'<a href="/console/events/{held.id}">Event → minu_keep</a>' in page


async def test_events_with_one_correlation_id_share_a_page(admin: SignedInOperator, event_queue: EventQueue) -> None:
    paid = await event_queue.publish("order.paid", correlation_id="order-77")
    sent = await event_queue.publish("order.sent", correlation_id="order-77")

    page = await traced(admin, "order-77")

    assert '<h2 class="spaced">Correlation ID <span class="quiet">order-77</span></h2>' in page.text
    assert "verdict" not in page.text
    for each in (paid, sent):
        assert f'<a data-row href="/console/events/{each}">' in page.text
    assert len(timeline(page)) == 2


async def test_a_deleted_event_is_traced_by_its_dead_letter_on_the_page(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue
) -> None:
    event, letter = await event_queue.publish_failed()
    await event_queue.owner.execute("delete from public.event_queue")
    async with hub.transaction() as tx:
        new_event = await replay_dead_letter(tx, letter, MINA)

    page = await traced(admin, event)

    assert "its row is gone" in page.text
    assert f'href="/console/events/{event}"' not in page.text
    assert f'as the new event <a href="/console/events/{new_event}">{new_event}</a>' in page.text


async def test_a_notification_and_its_event_lead_to_each_other(
    admin: SignedInOperator, hub: Hub, event_queue: EventQueue
) -> None:
    await register_builtin_templates(hub)
    event = await event_queue.publish()
    drafts = [draft_notification(hub, recipient=str(each), event=event) for each in range(MAX_TRACED_NOTIFICATIONS + 3)]
    first, *_ = await request_drafts(hub, *drafts)

    of_event, of_notice = await traced(admin, event), await traced(admin, first.id)

    assert f'<a data-row href="/console/notifications/{first.id}">' in of_event.text
    assert "3 more notifications." in of_event.text
    assert [kind for kind, _ in timeline(of_notice)] == ["Published", "Requested", "Decided"]
    assert f'<a href="/console/events/{event}">Event' in of_notice.text
    assert re.search(r'class="verdict " role="status">pending, due', of_notice.text)


async def test_notifications_without_an_event_are_found_by_correlation_id(admin: SignedInOperator, hub: Hub) -> None:
    await register_builtin_templates(hub)
    one, other = await request_drafts(
        hub, *(draft_notification(hub, recipient=each, correlation_id="visit-1") for each in ("1", "2"))
    )

    page = await traced(admin, "visit-1")

    assert '<h2 class="spaced">Correlation ID <span class="quiet">visit-1</span></h2>' in page.text
    for each in (one, other):
        assert f'<a data-row href="/console/notifications/{each.id}">' in page.text


@pytest.fixture
async def owner(event_queue: EventQueue) -> tuple[Chat, Owner]:
    chat = Chat(event_queue.owner)
    return chat, await chat.owner()


async def test_a_message_and_its_conversation(admin: SignedInOperator, owner: tuple[Chat, Owner]) -> None:
    chat, account = owner
    key = await chat.conversation(account, HOSTILE)
    message = await chat.message(account, key, None)

    one, all_of_it = await traced(admin, message), await traced(admin, key)

    assert [kind for kind, _ in timeline(one)] == ["Accepted"]
    assert is_escaped(one)
    assert is_escaped(all_of_it)
    assert re.search(r'role="status">queued, expires in', one.text)
    assert f'href="/console/relay/messages/{message}"' in all_of_it.text


async def test_an_ambiguous_prefix_lists_its_candidates(admin: SignedInOperator, event_queue: EventQueue) -> None:
    ids = [UUID(int=(0xABCDEF12 << 96) + n) for n in (1, 2)]
    for each in ids:
        await event_queue.owner.execute(
            "insert into public.event_queue (id, event_type, source_service, target_service)"
            " values ($1, 'order.paid', 'minu_find', 'minu_build')",
            each,
        )

    page = (await traced(admin, "abcdef12")).text

    assert "Several IDs begin with this." in page
    for each in ids:
        assert f'href="/console/trace?id={each}"' in page
    assert [kind for kind, _ in timeline(await traced(admin, ids[1]))] == ["Published"]


async def test_the_short_form_that_the_console_prints_finds_the_event(
    admin: SignedInOperator, event_queue: EventQueue
) -> None:
    event = await event_queue.publish()
    twin = UUID(int=event.int ^ (1 << 40))  # same beginning and same end

    by_short_form = [kind for kind, _ in timeline(await traced(admin, f"{str(event)[:8]}…{str(event)[-6:]}"))]
    await event_queue.owner.execute(
        "insert into public.event_queue (id, event_type, source_service, target_service)"
        " values ($1, 'order.paid', 'minu_find', 'minu_build')",
        twin,
    )
    several = (await traced(admin, f"{str(event)[:8]}...{str(event)[-6:]}")).text

    assert by_short_form == ["Published"]
    assert all(f'href="/console/trace?id={row}"' in several for row in (event, twin))


@pytest.mark.parametrize("name", ["order-1", "00000000", HOSTILE, "x" * 300, "%00"])
async def test_an_unknown_name_is_reported_and_escaped(admin: SignedInOperator, name: str) -> None:
    page = await traced(admin, name)

    assert "No event, dead letter, notification" in page.text
    assert is_escaped(page)


async def test_the_page_without_an_id_explains_what_to_enter(viewer: SignedInOperator) -> None:
    page = await viewer.get(TRACE_PATH)

    for words in ("Event", "Dead letter", "Correlation ID", "Conversation", "The first 8 characters"):
        assert words in page.text
    assert "앞 8자" in (await viewer.get(TRACE_PATH, "ko")).text


async def test_untrusted_text_is_escaped(admin: SignedInOperator, hub: Hub, event_queue: EventQueue) -> None:
    event = await event_queue.publish(correlation_id=HOSTILE, payload=msgspec.json.encode({HOSTILE: HOSTILE}))
    letter = await event_queue.fail(event, Dead(HOSTILE))
    await event_queue.owner.execute(
        "update public.dead_letter_queue set resolved_at = pabal.now(), resolved_by_actor = $1, resolution_notes = $1",
        HOSTILE,
    )
    await event_queue.owner.execute(
        "insert into pabal.audit_log (actor, action, subject) values ($1, 'event.looked', $2)", HOSTILE, str(event)
    )

    for name, language in product((event, letter, HOSTILE), ("ko", "en")):
        page = await traced(admin, name, language)
        assert is_escaped(page)
        assert page.text.count("&lt;script&gt;alert") > 4, name


def test_every_kind_of_entry_has_a_name_in_both_languages() -> None:
    found: set[str] = {*get_args(TraceEntryKind)}

    assert {"published", "owed", "deed", "accepted", "late", "suppressed", "archived", "expired"} <= found
    named = {text_id.removeprefix("trace.entry.") for text_id in TEXTS["ko"] if text_id.startswith("trace.entry.")}
    assert named == {*found, "dead_letter", "other"}


async def test_the_page_follows_an_event_that_goes_on(admin: SignedInOperator, event_queue: EventQueue) -> None:
    event = await event_queue.publish()
    assert 'id="trace" data-live' in (await traced(admin, event)).text
    before = len(timeline(await traced(admin, event)))
    [held] = await event_queue.claim()
    await event_queue.settle(held)

    assert len(timeline(await traced(admin, event))) == before + 1


async def test_failures_that_another_program_recorded_are_listed(
    admin: SignedInOperator, event_queue: EventQueue
) -> None:
    event, letter = await event_queue.publish_failed()
    history = '[{"message": "out of paper"}, {"error": "out of ink"}]'
    for table in ("event_queue", "dead_letter_queue"):
        await event_queue.owner.execute(f"update public.{table} set error_history = '{history}'")

    pages = [await admin.get(path, "en") for path in (f"/console/events/{event}", f"/console/dead/{letter}")]

    assert [kind for kind, _ in timeline(await traced(admin, event))] == ["Published", "Dead letter"]
    for page in pages:
        assert page.status_code == 200
        assert "out of paper" in page.text
        assert "out of ink" in page.text
