"""What became of each message that a bot read: the hub's record, compared with what the bot was told and Kakao got."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import httpx2

from support.clusters import Connection
from support.fake_kakao import FakeKakao

LEFT = "left before it was told"
"""The bot's connection ended, or the bot gave up, between reading the message and the response to its reply."""
FATES = """
select m.normalized ->> 'text' as text, m.status, m.reason, r.state, r.shown_at is not null as is_shown, r.error
from public.inbound_messages m
left join public.relay_replies r on r.message_id = m.id
where m.normalized ->> 'text' = any($1::text[])
"""
OPEN = """
select count(*)
from public.inbound_messages m
left join public.relay_replies r on r.message_id = m.id
where m.normalized ->> 'text' = any($1::text[]) and (m.status in ('QUEUED', 'DELIVERED') or r.outcome = 'sending')
"""


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """What the hub has recorded about a message. `state` is that of its reply; None without one."""

    text: str
    status: str
    reason: str | None
    state: str | None
    is_shown: bool
    error: str | None


@dataclass(frozen=True, slots=True)
class Fates:
    """How many messages ended in which way, and those whose records contradict each other or say nothing."""

    counts: Counter[str]
    unexplained: list[str]


def describe_response(response: httpx2.Response) -> str:
    """What a bot is told about its reply."""
    body = response.json()
    if response.is_success:
        return "sent" if body.get("callbackSent", True) else "kept"
    return str(body.get("code") or response.status_code)


def explain(record: MessageRecord, times_shown: int) -> str | None:
    """What became of a message, if the hub's record says it and the user has seen the answer as often as it says."""
    match record:
        case MessageRecord(state="sent") if times_shown == 1:
            fate = "answered"
        case MessageRecord(state="late", is_shown=True) if times_shown == 1:
            fate = "late answer, shown with another one"
        case MessageRecord(state="late", is_shown=False) if times_shown == 0:
            fate = "late answer, kept for the user"
        case MessageRecord(state="unknown") if times_shown <= 1:
            fate = f"outcome unknown: {record.error}"
        case MessageRecord(state="refused") if times_shown <= 1:
            fate = f"refused: {record.error}"
        case MessageRecord(state="awaited", status="ACKED" | "EXPIRED" | "CANCELLED") if times_shown == 0:
            fate = f"no answer, only the waiting text; {record.reason}"
        case MessageRecord(state=None, status="EXPIRED" | "CANCELLED") if times_shown == 0:
            fate = f"no answer; {record.reason}"
        case _:
            fate = None
    return fate


async def count_open_messages(db: Connection, texts: list[str]) -> int:
    """How many of these messages wait for a bot, are with one, or have an answer on its way to Kakao."""
    return await db.fetchval(OPEN, texts)


async def judge_fates(
    db: Connection, kakao: FakeKakao, results: Mapping[str, str], shown_in_responses: Iterable[str] = ()
) -> Fates:
    """Explain the messages that bots read. `results`: what each bot was told about its reply to the message."""
    shown = Counter(
        output["simpleText"]["text"]
        for request in kakao.receiver.requests
        for output in json.loads(request.body)["template"]["outputs"]
    )
    shown.update(shown_in_responses)
    counts, unexplained = Counter[str](), list[str]()
    records = {row["text"]: MessageRecord(**row) for row in await db.fetch(FATES, [*results])}
    for text, result in results.items():
        record = records.get(text)
        fate = explain(record, shown[text]) if record else None
        if fate is None or (result == "sent" and fate != "answered"):
            unexplained.append(f"{text}: {record}, seen by the user {shown[text]} times, the bot: {result}")
        else:
            counts[fate if result == "sent" else f"{fate}; the bot: {result}"] += 1
    return Fates(counts, unexplained)
