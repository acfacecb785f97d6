"""The reply endpoint: every response, and what each leaves in the database."""

import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from pabal.hub import DatabaseUrls
from pabal.relay.reply import reply as relay_reply
from pabal.relay.reply import send
from pabal.settings import Settings
from support.clusters import open_connection
from support.fake_kakao import FakeKakao, kakao_response, run_fake_kakao
from support.receiver import close_connection, redirect_to, respond_with, send_raw
from support.relay_rows import Chat, Owner, skill_response

pytestmark = pytest.mark.anyio

PATHS = ("/openclaw/reply", "/v1/reply", "//openclaw/reply")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"], "body_limit": 8192})


@pytest.fixture
async def fake_kakao() -> AsyncGenerator[FakeKakao]:
    async with run_fake_kakao() as server:
        yield server


@pytest.fixture
async def chat(database_urls: DatabaseUrls) -> AsyncGenerator[Chat]:
    assert database_urls.direct
    async with open_connection(database_urls.direct) as db:
        yield Chat(db)


@dataclass(frozen=True, slots=True)
class Bot:
    """A bot with a message to reply to."""

    web: httpx2.AsyncClient
    chat: Chat
    kakao: FakeKakao
    owner: Owner
    message: UUID

    async def is_untouched(self) -> bool:
        """Whether nothing has happened to the message."""
        current = await self.chat.reply(self.message), await self.chat.status(self.message), self.kakao.posts
        return current == (None, ("QUEUED", None), 0)


@pytest.fixture
async def bot(web: httpx2.AsyncClient, chat: Chat, fake_kakao: FakeKakao) -> Bot:
    owner = await chat.owner()
    return Bot(
        web, chat, fake_kakao, owner, await chat.message(owner, await chat.conversation(owner), fake_kakao.url("first"))
    )


def reply(message: object, *texts: str, **fields: Any) -> dict[str, Any]:
    return {"messageId": str(message), "response": skill_response(*texts or ("hello",))} | fields


def error_of(response: httpx2.Response) -> tuple[int, str]:
    body = response.json()
    assert body.keys() == {"error", "code", "message"}
    assert body["error"] == body["message"]
    return response.status_code, body["code"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_reply_reaches_kakao_and_returns_the_time(bot: Bot, path: str) -> None:
    before = time.time() * 1000
    body = b'{"messageId": "%s", "response": %s, "conversationKey": "channel:user", "extra": 1}' % (
        str(bot.message).encode(),
        (skill_json := json.dumps(skill_response("안녕"), ensure_ascii=False, indent=1).encode()),
    )

    response = await bot.web.post(
        httpx2.URL(f"{bot.web.base_url}".rstrip("/") + path), content=body, headers=bot.owner.header
    )

    body = response.json()
    row = await bot.chat.reply(bot.message)
    assert (response.status_code, body["success"], body["callbackSent"]) == (200, True, True)
    assert before - 1000 < body["deliveredAt"] < time.time() * 1000 + 1000
    assert row
    assert body["outboundMessageId"] == str(row["id"])
    assert (row["state"], row["spent_by"], row["status_code"]) == ("sent", "agent", 200)
    assert json.loads(row["kakao"])["taskId"] == "task-1"
    assert await bot.chat.status(bot.message) == ("ACKED", "answered")
    [request] = bot.kakao.receiver.requests
    assert request.body == skill_json  # unchanged
    assert request.headers["content-type"].startswith("application/json")


async def test_a_text_of_any_length_reaches_the_user(bot: Bot) -> None:
    """Three bubbles at once, and the rest before the next reply."""
    text = " ".join(f"{number:0>499}" for number in range(10))
    following = await bot.chat.message(bot.owner, "channel:user", bot.kakao.url("second"))

    first = await bot.web.post(
        "/v1/reply", json={"messageId": str(bot.message), "response": text}, headers=bot.owner.header
    )
    again = await bot.web.post(
        "/v1/reply", json={"messageId": str(bot.message), "response": text}, headers=bot.owner.header
    )
    second = await bot.web.post("/v1/reply", json=reply(following, "next"), headers=bot.owner.header)

    assert [first.status_code, second.status_code] == [200, 200]
    assert again.json() == first.json()
    [shown], [late] = bot.kakao.texts("first"), bot.kakao.texts("second")
    assert " ".join([*shown, *late[:-1]]) == text
    assert (len(shown), late[-1]) == (3, "next")


async def test_a_session_token_replies_like_a_relay_token(bot: Bot) -> None:
    token = await bot.chat.session(bot.owner.id)

    response = await bot.web.post("/v1/reply", json=reply(bot.message), headers={"authorization": f"bearer {token}"})

    assert response.status_code == 200
    assert bot.kakao.texts("first") == [["hello"]]


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer"}, {"authorization": "Bearer unknown"}, {"authorization": "Basic eDp5"}],
    ids=["none", "empty", "unknown", "another scheme"],
)
@pytest.mark.parametrize("content", [None, b"{", b"{}"], ids=["a valid body", "invalid JSON", "an empty object"])
async def test_an_invalid_token_is_refused_before_the_body(
    bot: Bot, headers: dict[str, str], content: bytes | None
) -> None:
    body = json.dumps(reply(bot.message)).encode() if content is None else content

    response = await bot.web.post("/openclaw/reply", content=body, headers=headers)

    assert error_of(response) == (401, "UNAUTHORIZED")
    assert await bot.is_untouched()


async def test_a_revoked_token_is_unauthenticated(bot: Bot) -> None:
    now = await bot.chat.db.fetchval("select pabal.now()")
    revoked = await bot.chat.session(bot.owner.id, revoked_at=now)
    expired = await bot.chat.session(None, expires_at=now)

    for token in (revoked, expired):
        response = await bot.web.post(
            "/v1/reply", json=reply(bot.message), headers={"authorization": f"Bearer {token}"}
        )
        assert error_of(response) == (401, "UNAUTHORIZED")
    assert await bot.is_untouched()


async def test_an_unpaired_session_is_refused(bot: Bot) -> None:
    pending = await bot.chat.session(None)
    unapproved = await bot.chat.session(bot.owner.id, paired=False)

    for token in (pending, unapproved):
        for body in (reply(bot.message), {}):
            response = await bot.web.post("/v1/reply", json=body, headers={"authorization": f"Bearer {token}"})
            assert error_of(response) == (409, "SESSION_NOT_PAIRED")
    assert await bot.is_untouched()


async def test_a_disabled_account_is_refused(bot: Bot) -> None:
    await bot.chat.db.execute("update accounts set disabled_at = pabal.now()")

    response = await bot.web.post("/v1/reply", json=reply(bot.message), headers=bot.owner.header)

    assert error_of(response) == (403, "ACCOUNT_DISABLED")
    assert await bot.is_untouched()


MALFORMED: dict[str, tuple[bytes, str]] = {
    "invalid JSON": (b"{", "body"),
    "not an object": (b"[]", "body"),
    "an empty body": (b"", "body"),
    "no message": (b'{"response": {}}', "messageId"),
    "a message id that is a number": (b'{"messageId": 5, "response": {}}', "messageId"),
    "no response": (b'{"messageId": "MESSAGE"}', "response"),
    "an empty text for a response": (b'{"messageId": "MESSAGE", "response": " "}', "response"),
    "null for a response": (b'{"messageId": "MESSAGE", "response": null}', "response"),
    "a number for a conversation": (
        b'{"messageId": "MESSAGE", "response": {}, "conversationKey": 5}',
        "conversationKey",
    ),
    "no version": (b'{"messageId": "MESSAGE", "response": {"template": {"outputs": []}}}', "response.version"),
    "no outputs": (
        b'{"messageId": "MESSAGE", "response": {"version": "2.0", "template": {"outputs": []}}}',
        "response.template.outputs",
    ),
    "NUL": (b'{"messageId": "MESSAGE", "response": {"version": "2.0", "data": {"a": "\\u0000"}}}', "response"),
    "too deep": (b'{"messageId": "MESSAGE", "response": ' + b"[" * 3000 + b"]" * 3000 + b"}", ""),
    "a number out of range": (
        b'{"messageId": "MESSAGE", "response": {"version": "2.0", "data": {"a": 1e999999}}}',
        "response",
    ),
}


async def test_an_invalid_reply_is_refused_without_spending_the_callback(bot: Bot) -> None:
    for name, (body, field) in MALFORMED.items():
        response = await bot.web.post(
            "/v1/reply", content=body.replace(b"MESSAGE", str(bot.message).encode()), headers=bot.owner.header
        )

        assert error_of(response) == (400, "INVALID_REQUEST"), name
        assert response.json()["error"].startswith(field), name
        assert await bot.is_untouched(), name


async def test_a_body_that_is_too_large_is_refused(bot: Bot) -> None:
    response = await bot.web.post("/v1/reply", json=reply(bot.message, "x" * 9000), headers=bot.owner.header)

    assert error_of(response) == (413, "TOO_LARGE")
    assert await bot.is_untouched()


async def test_a_message_of_another_account_is_not_found(bot: Bot) -> None:
    other = await bot.chat.owner()
    await bot.chat.conversation(other, "another")
    attempts = [
        (other, reply(bot.message)),
        (other, reply(bot.message, conversationKey="channel:user")),
        (bot.owner, reply(uuid4())),
        (bot.owner, reply("not-a-uuid")),
        (bot.owner, reply(bot.message, conversationKey="channel:another")),
        (bot.owner, reply(bot.message, conversationKey="")),
    ]

    for account, body in attempts:
        assert error_of(await bot.web.post("/v1/reply", json=body, headers=account.header)) == (
            404,
            "MESSAGE_NOT_FOUND",
        )
    assert await bot.is_untouched()


@pytest.mark.parametrize(
    "change",
    [
        "update inbound_messages set status = 'CANCELLED', reason = 'unpaired', ended_at = pabal.now()",
        "update inbound_messages set status = 'ACKED'; update conversation_mappings set state = 'UNPAIRED'",
        "update conversation_mappings set state = 'BLOCKED', blocked_by = 'operator'",
    ],
    ids=["cancelled", "unpaired after an ack", "blocked"],
)
async def test_an_unpaired_user_gets_no_reply(bot: Bot, change: str) -> None:
    await bot.chat.db.execute(change)

    response = await bot.web.post("/v1/reply", json=reply(bot.message), headers=bot.owner.header)

    assert error_of(response) == (404, "MESSAGE_NOT_FOUND")
    assert (bot.kakao.posts, await bot.chat.reply(bot.message)) == (0, None)


@pytest.mark.parametrize(
    "lifetime", [None, timedelta(seconds=-1), timedelta()], ids=["missing", "expired", "expiring now"]
)
async def test_a_reply_after_the_callback_expired_is_kept(bot: Bot, lifetime: timedelta | None) -> None:
    key = await bot.chat.conversation(bot.owner)
    message = await bot.chat.message(
        bot.owner, key, None if lifetime is None else bot.kakao.url("expired"), lifetime or timedelta()
    )

    response = await bot.web.post("/v1/reply", json=reply(message, "late"), headers=bot.owner.header)
    repeated = await bot.web.post("/v1/reply", json=reply(message, "late"), headers=bot.owner.header)

    assert error_of(response) == (400, "CALLBACK_EXPIRED")
    assert error_of(repeated) == (400, "CALLBACK_EXPIRED")
    assert (bot.kakao.posts, await bot.chat.state(message)) == (0, "late")
    assert await bot.chat.status(message) == ("ACKED", "answered")
    time_left = await bot.chat.db.fetchval("select kept_until - pabal.now() from relay_replies")
    assert timedelta(minutes=29) < time_left <= timedelta(minutes=30)


@pytest.mark.parametrize("status", ["QUEUED", "DELIVERED", "ACKED"])
async def test_a_message_is_answered_once_in_every_status(bot: Bot, status: str) -> None:
    await bot.chat.db.execute("update inbound_messages set status = $1", status)

    response = await bot.web.post("/v1/reply", json=reply(bot.message), headers=bot.owner.header)
    repeated = await bot.web.post("/v1/reply", json=reply(bot.message), headers=bot.owner.header)

    assert response.status_code == 200
    assert (repeated.status_code, repeated.json()) == (200, response.json())
    assert bot.kakao.texts("first") == [["hello"]]
    lease = await bot.chat.db.fetchval(
        "select coalesce(lease::text, leased_until::text, held_by) from inbound_messages"
    )
    assert lease is None


async def test_a_reply_to_an_expired_message_is_kept_and_its_status_stays(bot: Bot) -> None:
    message = await bot.chat.message(
        bot.owner, await bot.chat.conversation(bot.owner), bot.kakao.url("expired"), timedelta(seconds=-1)
    )
    await bot.chat.db.execute("update inbound_messages set status = 'EXPIRED'")

    response = await bot.web.post("/v1/reply", json=reply(message), headers=bot.owner.header)

    assert error_of(response) == (400, "CALLBACK_EXPIRED")
    assert (await bot.chat.status(message), await bot.chat.state(message)) == (("EXPIRED", "queue_life"), "late")


KAKAO_REFUSALS = {
    "FAIL in a 200": (kakao_response("FAIL", "invalid template"), 200, "Kakao returned FAIL: invalid template"),
    "ERROR": (kakao_response("ERROR", ""), 200, "Kakao returned ERROR"),
    "a 500": (respond_with(500), 500, "Kakao returned HTTP 500"),
    "a redirect": (redirect_to("http://127.0.0.1:1/"), 302, "Kakao returned HTTP 302"),
    "a 400 with reasons": (kakao_response("FAIL", "expired", 400), 400, "Kakao returned HTTP 400: expired"),
}


@pytest.mark.parametrize("name", sorted(KAKAO_REFUSALS))
async def test_a_reply_that_kakao_refuses_fails(bot: Bot, name: str) -> None:
    bot.kakao.responder, status, error = KAKAO_REFUSALS[name]

    response = await bot.web.post("/v1/reply", json=reply(bot.message), headers=bot.owner.header)
    bot.kakao.responder = kakao_response("SUCCESS")
    repeated = await bot.web.post("/v1/reply", json=reply(bot.message), headers=bot.owner.header)

    assert error_of(response) == (502, "CALLBACK_FAILED")
    assert response.json()["error"] == error
    assert repeated.json() == response.json()
    row = await bot.chat.reply(bot.message)
    assert row
    assert (row["state"], row["status_code"], row["error"]) == ("refused", status, error)
    assert (bot.kakao.posts, await bot.chat.failures()) == (1, ["refused"])


KAKAO_UNCLEAR_RESPONSES = {
    "closes": (close_connection, None, "the response is empty or not valid HTTP"),
    "an incomplete response": (
        send_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{"),
        200,
        "Kakao's response is incomplete",
    ),
    "no JSON": (respond_with(200, b"<html>"), 200, "Kakao's response is not a JSON object"),
    "an unknown status": (kakao_response("MAYBE"), 200, "Kakao returned MAYBE"),
}


@pytest.mark.parametrize("name", sorted(KAKAO_UNCLEAR_RESPONSES))
async def test_an_unconfirmed_reply_is_unknown_and_not_sent_again(bot: Bot, name: str) -> None:
    bot.kakao.responder, status, error = KAKAO_UNCLEAR_RESPONSES[name]

    response = await bot.web.post("/v1/reply", json=reply(bot.message), headers=bot.owner.header)
    bot.kakao.responder = kakao_response("SUCCESS")
    repeated = await bot.web.post("/v1/reply", json=reply(bot.message), headers=bot.owner.header)

    assert error_of(response) == (502, "CALLBACK_UNKNOWN")
    assert repeated.json() == response.json()
    row = await bot.chat.reply(bot.message)
    assert row
    assert (row["state"], row["status_code"], row["error"]) == ("unknown", status, error)
    assert (bot.kakao.posts, await bot.chat.failures()) == (1, ["unknown"])


async def test_a_reply_over_the_rate_limit_is_stored_and_waits(bot: Bot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "REPLY_HOLD", 0)
    owner = await bot.chat.owner(rate_limit_per_minute=3)
    key = await bot.chat.conversation(owner)
    messages = [await bot.chat.message(owner, key, bot.kakao.url(str(number))) for number in range(4)]

    responses = [await bot.web.post("/v1/reply", json=reply(message), headers=owner.header) for message in messages]

    assert [response.status_code for response in responses[:3]] == [200] * 3
    row = await bot.chat.reply(messages[3])
    assert row
    assert (responses[3].status_code, responses[3].json()) == (
        200,
        {"success": True, "outboundMessageId": str(row["id"]), "callbackSent": False},
    )
    assert bot.kakao.posts == 3


async def test_too_many_waiting_replies_are_refused(bot: Bot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "REPLY_HOLD", 0)
    monkeypatch.setattr(relay_reply, "MAX_WAITING_REPLIES", 1)
    owner = await bot.chat.owner(rate_limit_per_minute=3)
    other = await bot.chat.owner(rate_limit_per_minute=3)
    key = await bot.chat.conversation(owner)
    messages = [await bot.chat.message(owner, key, bot.kakao.url(str(number))) for number in range(5)]

    responses = [await bot.web.post("/v1/reply", json=reply(message), headers=owner.header) for message in messages]
    other_response = await bot.web.post("/v1/reply", json=reply(uuid4()), headers=other.header)

    assert [response.status_code for response in responses[:3]] == [200] * 3
    assert (responses[3].status_code, responses[3].json()["callbackSent"]) == (200, False)
    assert error_of(responses[4]) == (429, "RATE_LIMITED")
    assert 1 <= int(responses[4].headers["retry-after"]) <= 20
    assert await bot.chat.reply(messages[4]) is None
    assert bot.kakao.posts == 3
    assert error_of(other_response) == (404, "MESSAGE_NOT_FOUND")


async def test_an_invalid_body_counts_against_the_rate_limit(bot: Bot) -> None:
    owner = await bot.chat.owner(rate_limit_per_minute=2)

    responses = [await bot.web.post("/v1/reply", content=b"{", headers=owner.header) for _ in range(3)]

    assert [response.status_code for response in responses] == [400, 400, 429]


@pytest.mark.parametrize("limit", [None, 2_147_483_647])
async def test_every_allowed_rate_limit_works(bot: Bot, limit: int | None) -> None:
    owner = await bot.chat.owner(rate_limit_per_minute=limit)
    message = await bot.chat.message(owner, await bot.chat.conversation(owner), bot.kakao.url("first"))

    assert (await bot.web.post("/v1/reply", json=reply(message), headers=owner.header)).status_code == 200


async def test_responses_and_logs_contain_no_secret(bot: Bot, capsys: pytest.CaptureFixture[str]) -> None:
    key = await bot.chat.conversation(bot.owner)
    message = await bot.chat.message(bot.owner, key, bot.kakao.url("first"))
    bot.kakao.responder = respond_with(500, b"no")

    response = await bot.web.post("/v1/reply", json=reply(message, "a private text"), headers=bot.owner.header)

    payload = await bot.chat.db.fetchval("select payload::text from pabal.relay_event_outbox")
    output = capsys.readouterr()
    text = response.text + payload + output.out + output.err
    for secret in ("capability", "a private text", bot.owner.token):
        assert secret not in text
