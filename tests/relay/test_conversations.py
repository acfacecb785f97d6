"""Owners manage their own conversations, operators all of them."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from pabal.audit.pseudonym import conversation_pseudonym
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, NotFound
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.relay.conversations import (
    Conversation,
    approve_pairing,
    block_conversation,
    deny_pairing,
    list_conversations,
    unblock_conversation,
    unpair_conversation,
)
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from relay.people import (
    TESTER,
    RelayAccount,
    add_account,
    audit_actions_of,
    control_events,
    conversation_state_of,
    create_code,
    insert_message,
    key_of_user,
    load_conversation,
    pair_user,
    send_command,
)
from support.clusters import Connection

pytestmark = pytest.mark.anyio

Action = Callable[..., Awaitable[Conversation]]


@pytest.fixture
async def bot(hub: Hub) -> RelayAccount:
    return await add_account(hub)


async def act(hub: Hub, action: Action, user: str, account: UUID | None = None) -> Conversation:
    async with hub.transaction() as tx:
        return await action(tx, key_of_user(user), TESTER, account=account)


def approve_action(hub: Hub) -> Action:
    async def approve(tx: Tx, key: str, actor: Actor, account: UUID | None = None) -> Conversation:
        return await approve_pairing(tx, key, actor, hub.relay.metrics, account)

    return approve


def actions(hub: Hub) -> list[Action]:
    return [
        unpair_conversation,
        block_conversation,
        unblock_conversation,
        deny_pairing,
        approve_action(hub),
    ]


async def request_pairing(hub: Hub, user: str, account: UUID) -> None:
    with_approval = hub.settings.model_copy(update={"pairing_approval": True})
    await send_command(hub, user, f"/pair {await create_code(hub, account)}", settings=with_approval)


async def test_a_conversation_of_another_account_is_not_found(hub: Hub, owner: Connection, bot: RelayAccount) -> None:
    other = await add_account(hub, "other")
    await pair_user(hub, "min", bot.account)
    await request_pairing(hub, "jun", bot.account)
    await pair_user(hub, "kim", bot.account)
    await act(hub, block_conversation, "kim", bot.account)
    await send_command(hub, "lee", "/help")
    message = await insert_message(owner, bot.account, "min")
    before = [await load_conversation(owner, user) for user in ("min", "jun", "kim", "lee")]
    events_before = await control_events(owner)

    for action in actions(hub):
        for user in ("min", "jun", "kim", "lee", "unknown"):
            with pytest.raises(NotFound, match="No such conversation"):
                await act(hub, action, user, other.account)

    assert [await load_conversation(owner, user) for user in ("min", "jun", "kim", "lee")] == before
    assert await owner.fetchval("select status from public.inbound_messages where id = $1", message) == "QUEUED"
    assert await control_events(owner) == events_before


async def test_a_block_is_undone_by_the_side_that_set_it(hub: Hub, owner: Connection, bot: RelayAccount) -> None:
    await pair_user(hub, "min", bot.account)
    paired_at = (await load_conversation(owner, "min"))["paired_at"]

    await act(hub, block_conversation, "min", bot.account)
    assert await conversation_state_of(owner, "min") == ("BLOCKED", bot.account)
    with pytest.raises(Conflict):
        await act(hub, unpair_conversation, "min", bot.account)  # which would allow pairing again
    await act(hub, unblock_conversation, "min", bot.account)

    row = await load_conversation(owner, "min")
    assert (row["state"], row["account_id"], row["paired_at"]) == ("PAIRED", bot.account, paired_at)
    assert [kind for kind, *_ in await control_events(owner)] == ["paired", "unpaired", "paired"]
    assert await audit_actions_of(owner, conversation_pseudonym(key_of_user("min"))) == [
        "pairing.verified",
        "conversation.blocked",
        "conversation.unblocked",
    ]


async def test_an_owner_cannot_undo_an_operators_block(hub: Hub, owner: Connection, bot: RelayAccount) -> None:
    await pair_user(hub, "min", bot.account)
    await act(hub, block_conversation, "min", bot.account)
    await act(hub, block_conversation, "min")
    await act(hub, block_conversation, "min", bot.account)  # no effect

    with pytest.raises(Conflict, match="An operator blocked"):
        await act(hub, unblock_conversation, "min", bot.account)
    await act(hub, unblock_conversation, "min")
    assert await conversation_state_of(owner, "min") == ("PAIRED", bot.account)


async def test_an_operator_can_block_an_unpaired_conversation(hub: Hub, owner: Connection, bot: RelayAccount) -> None:
    await send_command(hub, "min", "/help")
    await act(hub, block_conversation, "min")

    assert await send_command(hub, "min", f"/pair {await create_code(hub, bot.account)}") == KOREAN_TEXTS.blocked
    await act(hub, unblock_conversation, "min")
    assert await conversation_state_of(owner, "min") == ("UNPAIRED", None)


async def test_unblocking_does_not_approve_a_pending_pairing(hub: Hub, owner: Connection, bot: RelayAccount) -> None:
    await request_pairing(hub, "min", bot.account)
    await act(hub, block_conversation, "min", bot.account)

    for action in (approve_action(hub), deny_pairing):
        with pytest.raises(Conflict, match="does not wait for approval"):
            await act(hub, action, "min", bot.account)
    await act(hub, unblock_conversation, "min", bot.account)
    assert await conversation_state_of(owner, "min") == ("UNPAIRED", None)


async def test_repeated_actions_change_nothing(hub: Hub, owner: Connection, bot: RelayAccount) -> None:
    await pair_user(hub, "min", bot.account)
    events_before, entries_before = (
        await control_events(owner),
        await audit_actions_of(owner, conversation_pseudonym(key_of_user("min"))),
    )

    await act(hub, approve_action(hub), "min", bot.account)
    await act(hub, unblock_conversation, "min", bot.account)
    await send_command(hub, "jun", "/help")
    await act(hub, unpair_conversation, "jun")

    assert (await control_events(owner), await audit_actions_of(owner, conversation_pseudonym(key_of_user("min")))) == (
        events_before,
        entries_before,
    )
    assert await audit_actions_of(owner, conversation_pseudonym(key_of_user("jun"))) == []


async def test_an_owner_lists_only_their_own_conversations_in_pages(hub: Hub, bot: RelayAccount) -> None:
    other = await add_account(hub, "other")
    users = [f"user{number}" for number in range(5)]
    for user in users:
        await pair_user(hub, user, bot.account)
    await pair_user(hub, "stranger", other.account)
    listed: list[str] = []
    async with hub.autocommit() as tx:
        while page := await list_conversations(
            tx, account=bot.account, after=key_of_user(listed[-1]) if listed else None, limit=2
        ):
            listed += [conversation.plusfriend_user_key for conversation in page]
        all_conversations = await list_conversations(tx)

    assert listed == users
    assert len(all_conversations) == 6
