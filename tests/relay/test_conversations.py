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
    Owning,
    a_code,
    a_message,
    an_owner,
    connection_of,
    conversation,
    deeds,
    key_of,
    news,
    pair,
    write,
)
from support.clusters import Connection

pytestmark = pytest.mark.anyio

Verb = Callable[..., Awaitable[Conversation]]


@pytest.fixture
async def bot(hub: Hub) -> Owning:
    return await an_owner(hub)


async def do(hub: Hub, verb: Verb, user: str, account: UUID | None = None) -> Conversation:
    async with hub.transaction() as tx:
        return await verb(tx, key_of(user), TESTER, account=account)


def approving(hub: Hub) -> Verb:
    async def approve(tx: Tx, key: str, by: Actor, account: UUID | None = None) -> Conversation:
        return await approve_pairing(tx, key, by, hub.relay.metrics, account)

    return approve


def verbs(hub: Hub) -> list[Verb]:
    return [
        unpair_conversation,
        block_conversation,
        unblock_conversation,
        deny_pairing,
        approving(hub),
    ]


async def waits(hub: Hub, user: str, account: UUID) -> None:
    patient = hub.settings.model_copy(update={"pairing_approval": True})
    await write(hub, user, f"/pair {await a_code(hub, account)}", settings=patient)


async def test_a_conversation_of_another_account_is_not_found(hub: Hub, owner: Connection, bot: Owning) -> None:
    other = await an_owner(hub, "other")
    await pair(hub, "min", bot.account)
    await waits(hub, "jun", bot.account)
    await pair(hub, "kim", bot.account)
    await do(hub, block_conversation, "kim", bot.account)
    await write(hub, "lee", "/help")
    message = await a_message(owner, bot.account, "min")
    before = [await conversation(owner, user) for user in ("min", "jun", "kim", "lee")]
    told = await news(owner)

    for verb in verbs(hub):
        for user in ("min", "jun", "kim", "lee", "nobody"):
            with pytest.raises(NotFound, match="there is no such conversation"):
                await do(hub, verb, user, other.account)

    assert [await conversation(owner, user) for user in ("min", "jun", "kim", "lee")] == before
    assert await owner.fetchval("select status from public.inbound_messages where id = $1", message) == "QUEUED"
    assert await news(owner) == told


async def test_a_block_is_undone_by_the_side_that_set_it(hub: Hub, owner: Connection, bot: Owning) -> None:
    await pair(hub, "min", bot.account)
    since = (await conversation(owner, "min"))["paired_at"]

    await do(hub, block_conversation, "min", bot.account)
    assert await connection_of(owner, "min") == ("BLOCKED", bot.account)
    with pytest.raises(Conflict):
        await do(hub, unpair_conversation, "min", bot.account)  # which would allow pairing again
    await do(hub, unblock_conversation, "min", bot.account)

    row = await conversation(owner, "min")
    assert (row["state"], row["account_id"], row["paired_at"]) == ("PAIRED", bot.account, since)
    assert [kind for kind, *_ in await news(owner)] == ["paired", "unpaired", "paired"]
    assert await deeds(owner, conversation_pseudonym(key_of("min"))) == [
        "pairing.verified",
        "conversation.blocked",
        "conversation.unblocked",
    ]


async def test_an_owner_cannot_undo_an_operators_block(hub: Hub, owner: Connection, bot: Owning) -> None:
    await pair(hub, "min", bot.account)
    await do(hub, block_conversation, "min", bot.account)
    await do(hub, block_conversation, "min")
    await do(hub, block_conversation, "min", bot.account)  # no effect

    with pytest.raises(Conflict, match="an operator blocked"):
        await do(hub, unblock_conversation, "min", bot.account)
    await do(hub, unblock_conversation, "min")
    assert await connection_of(owner, "min") == ("PAIRED", bot.account)


async def test_an_operator_can_block_an_unpaired_conversation(hub: Hub, owner: Connection, bot: Owning) -> None:
    await write(hub, "min", "/help")
    await do(hub, block_conversation, "min")

    assert await write(hub, "min", f"/pair {await a_code(hub, bot.account)}") == KOREAN_TEXTS.blocked
    await do(hub, unblock_conversation, "min")
    assert await connection_of(owner, "min") == ("UNPAIRED", None)


async def test_unblocking_does_not_approve_a_pending_pairing(hub: Hub, owner: Connection, bot: Owning) -> None:
    await waits(hub, "min", bot.account)
    await do(hub, block_conversation, "min", bot.account)

    for verb in (approving(hub), deny_pairing):
        with pytest.raises(Conflict, match="does not wait for approval"):
            await do(hub, verb, "min", bot.account)
    await do(hub, unblock_conversation, "min", bot.account)
    assert await connection_of(owner, "min") == ("UNPAIRED", None)


async def test_repeated_actions_change_nothing(hub: Hub, owner: Connection, bot: Owning) -> None:
    await pair(hub, "min", bot.account)
    told, done = await news(owner), await deeds(owner, conversation_pseudonym(key_of("min")))

    await do(hub, approving(hub), "min", bot.account)
    await do(hub, unblock_conversation, "min", bot.account)
    await write(hub, "jun", "/help")
    await do(hub, unpair_conversation, "jun")

    assert (await news(owner), await deeds(owner, conversation_pseudonym(key_of("min")))) == (told, done)
    assert await deeds(owner, conversation_pseudonym(key_of("jun"))) == []


async def test_an_owner_lists_only_their_own_conversations_in_pages(hub: Hub, bot: Owning) -> None:
    other = await an_owner(hub, "other")
    users = [f"user{number}" for number in range(5)]
    for user in users:
        await pair(hub, user, bot.account)
    await pair(hub, "stranger", other.account)
    found: list[str] = []
    async with hub.autocommit() as tx:
        while page := await list_conversations(
            tx, account=bot.account, after=key_of(found[-1]) if found else None, limit=2
        ):
            found += [each.plusfriend_user_key for each in page]
        everybody = await list_conversations(tx)

    assert found == users
    assert len(everybody) == 6
