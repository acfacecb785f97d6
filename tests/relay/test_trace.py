"""The trace of a message, from the webhook to the callback."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from pabal.core.errors import CallbackExpired, CallbackFailed, CallbackUnconfirmed
from pabal.core.ids import new_id
from pabal.relay.conversations import cancel_messages
from pabal.relay.delivery.lane import LANE
from pabal.relay.delivery.poll import ack_messages
from pabal.relay.messages import InboundMessage
from pabal.relay.reply.stall import build_stall_body, claim_expiring_callbacks
from pabal.relay.webhook.skill_response import chat_texts
from pabal.trace.relay import (
    MessageTrace,
    find_message_matches,
    trace_conversation,
    trace_message,
)
from pabal.trace.relay_entries import holder_text, message_status_text
from support.fake_kakao import kakao_response
from support.receiver import close_connection
from support.relay_rows import Bot

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


async def trace_of(bot: Bot, name: object, account: UUID | None = None) -> MessageTrace:
    async with bot.hub.autocommit() as tx:
        [message] = (await find_message_matches(tx, str(name), account)).values()
        return await trace_message(tx, message, account)


async def claim(bot: Bot, holder: str = "poll:tester") -> None:
    async with bot.hub.autocommit() as tx:
        assert await LANE.claim(tx, 10, MINUTE, holder, bot.owner.id)


async def expire(bot: Bot) -> None:
    async with bot.hub.transaction() as tx:
        await LANE.expire(tx, 10)


def kinds(trace: MessageTrace) -> list[str]:
    return [entry.kind for entry in trace.entries]


def text_of(trace: MessageTrace, kind: str) -> str:
    [text] = [entry.says for entry in trace.entries if entry.kind == kind]
    return text


async def test_a_trace_goes_from_the_webhook_to_kakaos_response(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    await travel(20 * SECOND)
    await claim(bot)
    await travel(10 * SECOND)
    reply = (await bot.send_reply(message, "hello")).reply_id

    trace = await trace_of(bot, message)

    assert (trace.subject, trace.kind, kinds(trace)) == (
        str(message),
        "message",
        ["accepted", "handed", "answered", "sent"],
    )
    accepted, handed, answered, sent = trace.entries
    assert accepted.says == f"accepted from {bot.key}, with a callback"
    assert handed.says.startswith("delivered to ")
    assert answered.says == f"replied through the callback: reply {reply}"
    assert sent.says == "Kakao accepted the reply: 200 SUCCESS, ok, task-1"
    assert 20 * SECOND <= handed.at - accepted.at < 30 * SECOND
    assert 10 * SECOND <= answered.at - handed.at < 20 * SECOND
    assert sent.took is not None
    assert timedelta() < sent.took < 5 * SECOND
    assert trace.reply is not None
    assert trace.reply.id == reply
    assert message_status_text(trace.messages[0], trace.now) == "ACKED, reply sent"


async def test_a_message_is_found_by_its_reply_and_by_id_prefixes(bot: Bot) -> None:
    message = await bot.insert_message("first")
    reply = (await bot.send_reply(message, "hello")).reply_id

    for name, kind in ((reply, "reply"), (str(reply).replace("-", "")[:20], "reply"), (str(message)[:13], "message")):
        trace = await trace_of(bot, name)
        assert (trace.kind, trace.messages[0].id) == (kind, message)
        assert kinds(trace) == ["accepted", "answered", "sent"]


async def test_a_message_of_another_account_has_no_trace(bot: Bot) -> None:
    message = await bot.insert_message("first")
    other = await bot.chat.owner()

    async with bot.hub.autocommit() as tx:
        assert await find_message_matches(tx, str(message), other.id) == {}
        assert (await find_message_matches(tx, str(message), bot.owner.id)).keys() == {message}
        assert await find_message_matches(tx, "not an id") == {}
        assert await trace_conversation(tx, bot.key, other.id) is None


async def test_a_refusal_is_shown_in_kakaos_words(bot: Bot) -> None:
    message = await bot.insert_message("first")
    bot.kakao.responder = kakao_response("FAIL", "callback url is used")
    with pytest.raises(CallbackFailed):
        await bot.send_reply(message, "hello")

    last_entry = (await trace_of(bot, message)).entries[-1]

    assert last_entry.kind == "refused"
    assert last_entry.says.startswith("Kakao rejected the reply: ")
    assert "callback url is used" in last_entry.says


async def test_an_unknown_outcome_is_shown_as_unknown(bot: Bot) -> None:
    message = await bot.insert_message("first")
    bot.kakao.responder = close_connection
    with pytest.raises(CallbackUnconfirmed):
        await bot.send_reply(message, "hello")

    unknown = (await trace_of(bot, message)).entries[-1]

    assert unknown.kind == "unknown"
    assert unknown.says.startswith("unknown whether Kakao accepted the reply: ")


async def test_an_unsent_reply_in_time_is_not_called_late(bot: Bot) -> None:
    message = await bot.chat.message(bot.owner, bot.key, "http://127.0.0.1:9/closed-port")
    with pytest.raises(CallbackFailed):
        await bot.send_reply(message, "hello")

    trace = await trace_of(bot, message)

    assert kinds(trace)[-1] == "late"
    assert text_of(trace, "late").startswith("replied, but Kakao could not be reached (")


async def test_a_trace_shows_the_stall_the_late_reply_and_the_message_it_was_shown_with(
    bot: Bot, travel: Travel
) -> None:
    message = await bot.insert_message("first")
    await claim(bot, f"stream:{bot.owner.id}:s1")
    await travel(51 * SECOND)
    async with bot.hub.autocommit() as tx:
        [expiring] = await claim_expiring_callbacks(tx, 50 * SECOND)
    await bot.hub.relay.callbacks.send(expiring.callback, build_stall_body(expiring, chat_texts("ko")))
    await travel(20 * SECOND)
    with pytest.raises(CallbackExpired):
        await bot.send_reply(message, "late")
    before_second = await trace_of(bot, message)
    second = await bot.insert_message("second")
    await bot.send_reply(second, "now")

    first, later = await trace_of(bot, message), await trace_of(bot, second)

    assert kinds(before_second) == ["accepted", "handed", "stalled", "sent", "late"]
    assert kinds(first) == [*kinds(before_second), "shown"]
    assert text_of(first, "stalled") == "no reply yet: the hub uses the callback for a waiting message"
    assert text_of(first, "sent").startswith("Kakao accepted the hub's waiting message: 200 SUCCESS")
    assert text_of(first, "late").startswith("replied too late for the callback; stored as reply ")
    assert text_of(first, "shown") == f"shown before the reply to {second}"
    assert message_status_text(first.messages[0], first.now) == "ACKED, reply shown"
    assert text_of(later, "carried") == f"the late reply to {message} is shown before the reply"


async def test_an_expired_late_reply_is_shown_as_never_shown(bot: Bot, travel: Travel) -> None:
    message = await bot.send_late_reply("late")
    await travel(29 * MINUTE)
    assert kinds(await trace_of(bot, message))[-1] == "late"
    await travel(MINUTE)

    last_entry = (await trace_of(bot, message)).entries[-1]

    assert (last_entry.kind, last_entry.says) == ("unseen", "discarded: the user did not write again in time")


async def test_an_expired_message_says_whether_it_was_delivered(bot: Bot, travel: Travel) -> None:
    claimed_id = await bot.insert_message("first")
    await claim(bot, f"stream:{bot.owner.id}:s1")
    unclaimed_id = await bot.insert_message("second")
    await travel(15 * MINUTE)
    await expire(bot)

    delivered, undelivered = await trace_of(bot, claimed_id), await trace_of(bot, unclaimed_id)

    assert kinds(delivered) == ["accepted", "handed", "expired"]
    assert text_of(delivered, "expired") == "expired: delivered but never answered"
    assert text_of(delivered, "handed") == f"delivered to stream s1 of {bot.owner.id}"
    assert kinds(undelivered) == ["accepted", "expired", "late"]
    assert text_of(undelivered, "expired") == "expired before it was delivered"
    assert text_of(undelivered, "late") == "the user will be told before the next reply"
    assert message_status_text(undelivered.messages[0], undelivered.now) == "EXPIRED, queue_life"


async def test_a_trace_shows_deliveries_and_the_last_holder(bot: Bot, travel: Travel) -> None:
    message = await bot.insert_message("first")
    for holder in ("poll:one", "poll:two", f"stream:{bot.owner.id}:s3"):
        await claim(bot, holder)
        await travel(MINUTE)

    trace = await trace_of(bot, message)

    assert text_of(trace, "handed") == f"delivered 3 times, last to stream s3 of {bot.owner.id}"
    [traced] = trace.messages
    assert message_status_text(traced, traced.expires_at - MINUTE) == (
        f"DELIVERED to stream s3 of {bot.owner.id}, lease ended; expires in 1 min 0 s"
    )


async def test_an_acknowledgement_before_the_reply_is_a_separate_entry(bot: Bot, travel: Travel) -> None:
    message, unanswered = await bot.insert_message("first"), await bot.insert_message("second")
    async with bot.hub.transaction() as tx:
        await ack_messages(tx, bot.owner.id, [message, unanswered])
    await travel(SECOND)
    await bot.send_reply(message, "hello")

    assert kinds(await trace_of(bot, message)) == ["accepted", "acked", "answered", "sent"]
    trace = await trace_of(bot, unanswered)
    assert kinds(trace) == ["accepted", "acked"]
    assert message_status_text(trace.messages[0], trace.now) == "ACKED, no reply"


async def test_a_cancelled_message_shows_the_reason(bot: Bot) -> None:
    message = await bot.insert_message("first")
    async with bot.hub.transaction() as tx:
        await cancel_messages(tx, bot.owner.id, "replaced", conversation=bot.key)

    trace = await trace_of(bot, message)

    assert kinds(trace) == ["accepted", "cancelled"]
    assert text_of(trace, "cancelled") == "cancelled: the conversation was paired with another account"


async def test_a_message_without_a_callback_is_marked(bot: Bot) -> None:
    message = await bot.chat.message(bot.owner, bot.key, None)

    assert text_of(await trace_of(bot, message), "accepted") == f"accepted from {bot.key}, without a callback"


async def test_a_conversation_trace_shows_its_newest_messages(bot: Bot) -> None:
    async with bot.hub.autocommit() as tx:
        assert await trace_conversation(tx, "channel:unknown") is None
        empty = await trace_conversation(tx, bot.key)
    messages = [await bot.insert_message(str(number)) for number in range(25)]

    async with bot.hub.autocommit() as tx:
        trace = await trace_conversation(tx, bot.key)

    assert empty is not None
    assert empty.messages == []
    assert trace is not None
    assert (trace.subject, trace.kind) == (bot.key, "conversation")
    assert [message.id for message in trace.messages] == messages[:4:-1]


AT = datetime(2026, 1, 31, 18, tzinfo=UTC)
QUEUED = InboundMessage(
    id=new_id(),
    seq=1,
    account_id=new_id(),
    conversation_key="channel:user",
    text="hello",
    status="QUEUED",
    reason=None,
    created_at=AT,
    delivered_at=None,
    delivery_count=0,
    held_by=None,
    leased_until=None,
    expires_at=AT + 15 * MINUTE,
    callback_expires_at=None,
    acked_at=None,
    ended_at=None,
    reply=None,
)


def test_the_status_of_a_message_is_described() -> None:
    delivered = replace(QUEUED, status="DELIVERED", held_by="poll:t", leased_until=AT + MINUTE)

    assert message_status_text(QUEUED, AT) == "QUEUED, expires in 15 min 0 s"
    assert message_status_text(QUEUED, AT + 15 * MINUTE) == "QUEUED, expired"
    assert message_status_text(delivered, AT) == "DELIVERED, held by a poller of t; the lease ends in 1 min 0 s"
    assert (
        message_status_text(delivered, AT + MINUTE) == "DELIVERED to a poller of t, lease ended; expires in 14 min 0 s"
    )
    assert message_status_text(delivered, AT + 15 * MINUTE) == "DELIVERED to a poller of t, lease ended; expired"
    assert message_status_text(replace(QUEUED, status="CANCELLED", reason="blocked"), AT) == "CANCELLED, blocked"


@pytest.mark.parametrize(
    ("held_by", "text"),
    [
        ("stream:t:s", "stream s of t"),
        ("closed:t:s", "stream s of t, closed since"),
        ("parked:t:s", "stream s of t, replaced since"),
        ("poll:t", "a poller of t"),
        ("tester", "tester"),
        (None, "the account"),
    ],
)
def test_a_holder_is_described(held_by: str | None, text: str) -> None:
    assert holder_text(held_by) == text
