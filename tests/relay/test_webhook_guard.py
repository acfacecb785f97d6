"""Authenticity and rate limits of the webhook, and its response when the database is slow or unavailable."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import httpx2
import pytest
from pydantic import SecretStr

from pabal.core.errors import RateLimited
from pabal.db.errors import CheckViolation
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.webhook import handle
from pabal.relay.webhook.payload import InboundPayload
from pabal.relay.webhook.receive import InboundDraft, ReceiveResult
from pabal.relay.webhook.skill_response import KOREAN_TEXTS, text_response
from pabal.settings import Settings
from relay.skills import USE_CALLBACK, send_message, skill_payload, text_of
from support.fault_proxy import run_fault_proxy
from support.relay_rows import Chat, Owner
from support.server import serve_hub
from support.webhook import WEBHOOK_HEADERS

pytestmark = pytest.mark.anyio


FAIL_ONCE = """
create sequence public.tries;
grant usage on sequence public.tries to public;
create function public.fail_once() returns trigger language plpgsql as $$
begin
  if new.normalized ->> 'text' = 'fails once' and nextval('public.tries') = 1 then
    raise exception 'a simulated deadlock' using errcode = 'deadlock_detected';
  end if;
  return new;
end
$$;
create trigger fail_once before insert on public.inbound_messages for each row execute function public.fail_once();
"""


def build_draft(text: str, payload: str = "{}") -> InboundDraft:
    return InboundDraft(InboundPayload("channel", "user", text, None, text, payload), is_command=False)


@pytest.fixture
async def owner(chat: Chat) -> Owner:
    return await chat.owner()


@asynccontextmanager
async def hub_with(
    database_urls: DatabaseUrls, settings: Settings, **changes: object
) -> AsyncGenerator[httpx2.AsyncClient]:
    """A hub with changed settings, and a client."""
    async with (
        open_hub(settings.model_copy(update=changes), database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, headers=WEBHOOK_HEADERS) as client,
    ):
        yield client


class TestAuthenticity:
    SECRETS = ("new secret", "old secret")

    @pytest.fixture
    async def guarded_web(self, database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[httpx2.AsyncClient]:
        new, old = map(SecretStr, self.SECRETS)
        async with hub_with(
            database_urls, settings, webhook_secret=new, webhook_secret_previous=old, webhook_header="X-Our-Secret"
        ) as client:
            yield client

    @staticmethod
    def sign(secret: str, body: bytes) -> str:
        return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()

    async def test_either_secret_is_accepted_as_signature_or_header(self, guarded_web: httpx2.AsyncClient) -> None:
        body = json.dumps(skill_payload("hello")).encode()
        for secret in self.SECRETS:
            signature = self.sign(secret, body)
            for header in (
                {"x-kakao-signature": signature},
                {"x-kakao-signature": f"sha256={signature.upper()}"},
                {"x-our-secret": secret},
            ):
                assert (await guarded_web.post("/kakao/webhook", content=body, headers=header)).status_code == 200

    async def test_other_requests_are_refused_and_not_stored(self, guarded_web: httpx2.AsyncClient, chat: Chat) -> None:
        body = json.dumps(skill_payload("hello")).encode()
        for header in (
            {},
            {"x-kakao-signature": ""},
            {"x-our-secret": ""},
            {"x-our-secret": "wrong"},
            {"x-pabal-secret": "new secret"},
            {"x-kakao-signature": self.sign("wrong", body)},
            {"x-kakao-signature": self.sign("new secret", body + b" ")},
        ):
            response = await guarded_web.post("/kakao/webhook", content=body, headers=header)
            assert response.status_code == 401
            assert response.json()["code"] == "UNAUTHORIZED"
        assert await chat.db.fetchval("select count(*) from conversation_mappings") == 0


def is_rejected(response: httpx2.Response) -> bool:
    """Whether the user reads that there were too many messages. Kakao shows only responses with status 200."""
    assert response.status_code == 200
    return response.json() == text_response(KOREAN_TEXTS.rate_limited)


class TestLimits:
    async def test_a_flooding_conversation_is_limited_and_others_are_not(
        self, database_urls: DatabaseUrls, settings: Settings
    ) -> None:
        async with hub_with(database_urls, settings, webhook_per_conversation=5, webhook_per_channel=0) as web:
            flooding = [
                await web.post("/kakao/webhook", json=skill_payload(f"{number}", "loud")) for number in range(8)
            ]
            other = await web.post("/kakao/webhook", json=skill_payload("hello", "calm"))

        assert [is_rejected(response) for response in flooding] == [False] * 5 + [True] * 3
        assert not is_rejected(other)

    @pytest.mark.usefixtures("stopped_clock")
    async def test_a_channels_limit_counts_all_users_in_all_processes(
        self, database_urls: DatabaseUrls, settings: Settings
    ) -> None:
        changed = {"webhook_per_conversation": 0, "webhook_per_channel": 20}
        async with (
            hub_with(database_urls, settings, **changed) as first_web,
            hub_with(database_urls, settings, **changed) as second_web,
        ):
            responses = await asyncio.gather(
                *(
                    web.post("/kakao/webhook", json=skill_payload("x", f"u{number}"))
                    for number in range(20)
                    for web in (first_web, second_web)
                )
            )

        assert sorted(is_rejected(response) for response in responses) == [False] * 20 + [True] * 20

    async def test_a_retried_batch_counts_once(
        self, database_urls: DatabaseUrls, settings: Settings, chat: Chat, owner: Owner
    ) -> None:
        await chat.conversation(owner)
        await chat.db.execute(FAIL_ONCE)
        changed = {"webhook_per_conversation": 3, "webhook_per_channel": 3}
        async with open_hub(settings.model_copy(update=changed), database_urls) as hub:
            puts = [hub.relay.webhook_batcher.put(build_draft(text)) for text in ("first", "fails once")]
            results = await asyncio.gather(*puts)
            third = await hub.relay.webhook_batcher.put(build_draft("third"))
            with pytest.raises(RateLimited):
                await hub.relay.webhook_batcher.put(build_draft("fourth"))

        assert await chat.db.fetchval("select last_value from public.tries") == 2
        assert all(result.message_id and result.duplicate_of is None for result in (*results, third))

    async def test_a_webhook_that_postgres_cannot_store_fails_alone(
        self, database_urls: DatabaseUrls, settings: Settings, chat: Chat, owner: Owner
    ) -> None:
        await chat.conversation(owner)
        changed = {"webhook_per_conversation": 3, "webhook_per_channel": 3}
        async with open_hub(settings.model_copy(update=changed), database_urls) as hub:
            drafts = (build_draft("first"), build_draft("bad", payload="no JSON"), build_draft("third"))
            puts = [hub.relay.webhook_batcher.put(draft) for draft in drafts]
            first, error, third = await asyncio.gather(*puts, return_exceptions=True)
            assert isinstance(error, CheckViolation)
            await hub.relay.webhook_batcher.put(build_draft("fourth"))
            with pytest.raises(RateLimited):
                await hub.relay.webhook_batcher.put(build_draft("fifth"))

        rows = await chat.db.fetch("select id, source_event_id as text from inbound_messages order by seq")
        assert [row["text"] for row in rows] == ["first", "third", "fourth"]
        assert [result.message_id for result in (first, third) if isinstance(result, ReceiveResult)] == [
            rows[0]["id"],
            rows[1]["id"],
        ]


class TestSlowDatabase:
    async def test_a_late_store_gets_a_text_in_time_and_loses_its_callback(
        self,
        hub: Hub,
        web: httpx2.AsyncClient,
        database_urls: DatabaseUrls,
        chat: Chat,
        owner: Owner,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        await chat.conversation(owner)
        assert await send_message(web, "first") == USE_CALLBACK
        monkeypatch.setattr(handle, "WEBHOOK_TIMEOUT", 0.3)
        assert database_urls.direct
        blocker = await asyncpg.connect(database_urls.direct)
        try:
            transaction = blocker.transaction()
            await transaction.start()
            await blocker.execute("select from conversation_mappings for update")
            response = await send_message(web, "second")
            await transaction.rollback()
        finally:
            blocker.terminate()

        assert text_of(response) == KOREAN_TEXTS.too_late
        await hub.relay.recalls.drain()
        rows = await chat.db.fetch(
            "select callback_url, callback_expires_at, status from inbound_messages order by seq"
        )
        first, second = [tuple(row) for row in rows]
        assert first[0] is not None
        assert second == (None, None, "QUEUED")

    async def test_without_a_database_the_user_gets_a_text_at_once(
        self, database_urls: DatabaseUrls, settings: Settings, chat: Chat, owner: Owner
    ) -> None:
        await chat.conversation(owner)
        async with AsyncExitStack() as stack:
            proxy_stack = AsyncExitStack()
            proxy, url = await proxy_stack.enter_async_context(run_fault_proxy(database_urls.main))
            hub = await stack.enter_async_context(open_hub(settings, DatabaseUrls(url, None)))
            address = await stack.enter_async_context(serve_hub(hub))
            web = await stack.enter_async_context(httpx2.AsyncClient(base_url=address))
            assert await send_message(web, "first") == USE_CALLBACK

            await proxy_stack.aclose()
            proxy.reset()
            response = await send_message(web, "second")

        assert text_of(response) == KOREAN_TEXTS.unavailable
        assert await chat.db.fetchval("select count(*) from inbound_messages") == 1

    def test_the_timeout_leaves_a_second_for_the_network(self) -> None:
        assert handle.WEBHOOK_TIMEOUT == 4.0


class TestLockedConversation:
    async def test_only_its_own_webhook_waits(
        self, web: httpx2.AsyncClient, database_urls: DatabaseUrls, chat: Chat, owner: Owner
    ) -> None:
        for user in ("held", "free"):
            await chat.conversation(owner, user)
        assert database_urls.direct
        blocker = await asyncpg.connect(database_urls.direct)
        try:
            lock = blocker.transaction()
            await lock.start()
            await blocker.execute("select from conversation_mappings where plusfriend_user_key = 'held' for update")
            waiting = asyncio.create_task(send_message(web, "hello", "held"))
            responses = [await send_message(web, f"hello {number}", "free") for number in range(5)]
            assert not waiting.done()
            await lock.rollback()
        finally:
            blocker.terminate()

        assert responses == [USE_CALLBACK] * 5
        assert await waiting == USE_CALLBACK


async def test_the_same_event_id_of_another_user_is_another_message(
    web: httpx2.AsyncClient, chat: Chat, owner: Owner
) -> None:
    for user in ("ann", "ben"):
        await chat.conversation(owner, user)

    for user in ("ann", "ben"):
        assert await send_message(web, f"from {user}", user, eventId="same") == USE_CALLBACK

    assert await chat.db.fetchval("select count(*) from inbound_messages") == 2
