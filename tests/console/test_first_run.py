"""The first page of a new hub: commands to type, and ticks for what has happened."""

import pytest

from pabal.console.first_run import is_unused, read_first_cards
from pabal.db.queries import Query
from pabal.hub import Hub
from pabal.notifications.decision.decide import NotificationChannel
from support.clusters import Connection
from support.notifications import draft_notification, register_builtin_templates, request_drafts
from support.operator import SignedInOperator
from support.relay_rows import Chat
from support.subscriptions import load_event, publish_test_event

pytestmark = pytest.mark.anyio

START = "/console/start"
DISABLE = "update public.services set is_active = false, disabled_at = now() where name <> 'hub'"

ROWS_READ = Query(
    "rows_read",
    "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::integer from pg_stat_xact_user_tables"
    " where relname in ('conversation_mappings', 'relay_replies', 'event_queue', 'requests')",
    (),
    "test_first_run",
)


async def done_steps(hub: Hub) -> list[str]:
    async with hub.autocommit() as tx:
        cards = await read_first_cards(tx, "https://hub.example.org")
    return [step.name for card in cards for step in card.steps if step.is_done]


async def test_a_new_hub_has_no_ticks_and_the_overview_leads_there(
    hub: Hub, viewer: SignedInOperator, owner: Connection
) -> None:
    await owner.execute(DISABLE)

    page, overview = await viewer.get(START), await viewer.get("/console")
    korean = await viewer.get(START, "ko")

    assert page.status_code == 200
    assert page.text.count("○") == 8
    assert "✓" not in page.text
    assert f'href="{START}"' in overview.text
    assert "카카오톡 연결" in korean.text
    assert await done_steps(hub) == []


async def test_a_step_is_ticked_when_it_has_happened(hub: Hub, viewer: SignedInOperator, owner: Connection) -> None:
    chat = Chat(owner)
    account = await chat.owner()
    await chat.conversation(account, "mina")
    assert await done_steps(hub) == ["webhook", "pair", "service"]

    event = await publish_test_event(hub, "order.paid", "minu_build")
    assert "publish" in await done_steps(hub)
    await owner.execute("update public.event_queue set status = 'completed', processed_at = now() where id = $1", event)
    assert "receive" in await done_steps(hub)

    await register_builtin_templates(hub)
    await request_drafts(hub, draft_notification(hub, channel=NotificationChannel.DASHBOARD_TOAST))
    assert "request" in await done_steps(hub)
    await owner.execute("update notification.requests set state = 'sent', sent_at = now(), ended_at = now()")
    assert await done_steps(hub) == ["webhook", "pair", "service", "publish", "receive", "request", "sent"]

    page = (await viewer.get(START)).text
    assert (page.count("✓"), page.count("○")) == (7, 1)
    assert f'href="{START}"' not in (await viewer.get("/console")).text


async def test_the_hubs_own_events_do_not_count(hub: Hub, owner: Connection) -> None:
    await owner.execute("select pabal.publish('hub', 'token.issued')")

    assert "publish" not in await done_steps(hub)


async def test_a_broadcast_without_subscribers_is_not_received(hub: Hub) -> None:
    event = await publish_test_event(hub, "order.paid", None)
    assert (await load_event(hub, event)).status == "completed"

    assert "receive" not in await done_steps(hub)


async def test_a_late_reply_is_a_reply(hub: Hub, owner: Connection) -> None:
    chat = Chat(owner)
    account = await chat.owner()
    await chat.message(account, await chat.conversation(account, "mina"), None)
    assert "reply" not in await done_steps(hub)

    await owner.execute(
        "insert into public.relay_replies (message_id, account_id, conversation_key, response, answered_at, kept_until)"
        " select id, account_id, conversation_key, '{}', pabal.now(), pabal.now() + interval '1 hour'"
        " from public.inbound_messages"
    )

    assert "reply" in await done_steps(hub)


async def test_the_overview_does_not_search_a_large_hub_for_its_first_steps(hub: Hub, owner: Connection) -> None:
    await Chat(owner).conversation(await Chat(owner).owner(), "mina")
    await owner.execute(
        "set session_replication_role = replica;"  # past foreign keys: only that the rows are there matters
        " insert into public.relay_replies"
        " (message_id, account_id, conversation_key, spent_by, outcome, fence, spent_at, settled_at)"
        " select pabal.uuid7(), pabal.uuid7(), 'channel:mina', 'hub', 'sent', pabal.uuid7(), pabal.now(), pabal.now()"
        " from generate_series(1, 500); reset session_replication_role"
    )

    async with hub.transaction() as tx:
        assert not await is_unused(tx)
        assert await tx.value(ROWS_READ) <= 1
