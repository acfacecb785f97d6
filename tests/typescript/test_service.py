"""The TypeScript client of a service against a real hub: publish, consume, and every other endpoint."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pabal.hub import Hub
from pabal.tokens.revoke import revoke_service_tokens
from support.clusters import Connection
from support.node import CLIENT, NodeProcess, run_node, write_program
from support.notifications import register_builtin_templates
from support.oauth_client import TESTER, RegisteredService, register_oauth_service
from support.wait import wait_until

pytestmark = pytest.mark.anyio

Travel = Callable[[timedelta], Awaitable[None]]
EXAMPLES = CLIENT / "examples"
NEW_CLIENT = "const client = new pabal.Client({ url: env.URL, service: env.SERVICE, secret: env.SECRET });\n"
STOP = "const stop = new AbortController();\nprocess.on('SIGTERM', () => stop.abort());\n"


@pytest.fixture
async def shop(hub: Hub, web: httpx2.AsyncClient) -> RegisteredService:
    return await register_oauth_service(hub, web, "shop", "events:publish", "events:read")


@pytest.fixture
async def billing(hub: Hub, web: httpx2.AsyncClient) -> RegisteredService:
    return await register_oauth_service(hub, web, "billing", "events:consume")


def variables(service: RegisteredService) -> dict[str, str]:
    url = str(service.web.base_url)  # ends with a slash
    return {
        "URL": url,
        "SERVICE": service.name,
        "SECRET": service.secret,
        "PABAL_URL": url,
        "PABAL_SERVICE": service.name,
        "PABAL_SECRET": service.secret,
    }


@asynccontextmanager
async def running(folder: Path, service: RegisteredService, source: str, **more: str) -> AsyncGenerator[NodeProcess]:
    program = write_program(folder, NEW_CLIENT + source)
    async with run_node(program, **variables(service), **more) as process:
        yield process


async def output_of(folder: Path, service: RegisteredService, source: str, **more: str) -> list[str]:
    async with running(folder, service, source, **more) as process:
        code, lines = await process.end()
        assert code == 0, lines
        return lines


async def rows(owner: Connection) -> list[dict[str, Any]]:
    """The events of the shop, in the order of publishing."""
    query = "select * from public.event_queue where source_service = 'shop' order by seq"
    return [dict(row) for row in await owner.fetch(query)]


async def test_the_examples_publish_and_consume(
    shop: RegisteredService, billing: RegisteredService, owner: Connection
) -> None:
    async with run_node(EXAMPLES / "publish.ts", **variables(shop)) as publisher:
        code, lines = await publisher.end()
    assert code == 0
    assert lines[1:] == ["[ 202, 202 ]", "pending"]
    assert [(row["event_type"], row["target_service"]) for row in await rows(owner)] == [
        ("order.paid", "billing"),
        ("order.seen", "billing"),
        ("order.seen", "billing"),
    ]

    async with run_node(EXAMPLES / "consume.ts", **variables(billing)) as consumer:
        received = {await consumer.line() for _ in range(3)}
        await wait_until(lambda: are_settled(owner))
        assert await consumer.stop() == 0

    assert received == {'order.paid {"order":7}', 'order.seen {"order":8}', 'order.seen {"order":9}'}
    paid, retried, dead = await rows(owner)
    assert paid["status"] == "completed"
    assert (retried["status"], retried["last_error"]) == ("pending", "the bank is closed")
    assert len(json.loads(retried["error_history"])) == 1
    assert (dead["status"], dead["last_error"]) == ("failed", "no such customer")


async def are_settled(owner: Connection) -> bool:
    return all(row["status"] in {"completed", "failed"} or row["last_error"] for row in await rows(owner))


async def test_an_error_of_the_hub_names_its_fields(shop: RegisteredService, tmp_path: Path) -> None:
    source = """
    try { await client.publish("Order Paid"); } catch (error) {
      if (!(error instanceof pabal.ApiError)) throw error;
      console.log(error.name, error.status, error.code, error.mistakes[0]?.field);
    }
    try { await client.call("GET /v1/notifications", {}); } catch (error) {
      console.log((error as pabal.ApiError).status, (error as pabal.ApiError).code);
    }
    const stranger = new pabal.Client({ url: env.URL, service: "shop", secret: "wrong" });
    try { await stranger.publish("order.paid"); } catch (error) {
      console.log((error as pabal.ApiError).status, (error as pabal.ApiError).code);
    }"""

    assert await output_of(tmp_path, shop, source) == [
        "ApiError 400 invalid event_type",
        "403 insufficient_scope",
        "401 invalid_client",
    ]


async def test_a_hub_that_is_away_is_reported_after_retries(shop: RegisteredService, tmp_path: Path) -> None:
    source = """
    const away = new pabal.Client({ url: "http://127.0.0.1:1", service: "shop", secret: "x" });
    try { await away.publish("order.paid"); } catch (error) { console.log((error as Error).name); }"""

    assert await output_of(tmp_path, shop, source) == ["HubUnavailableError"]


async def test_a_lost_response_does_not_publish_twice(
    shop: RegisteredService, owner: Connection, tmp_path: Path
) -> None:
    source = """
    let lost = 0;
    const fetchWithLoss: typeof fetch = async (url, options) => {
      const response = await fetch(url, options);
      if (String(url).endsWith("/v1/queue/events") && lost++ === 0) throw new TypeError("connection reset");
      return response;
    };
    const lossy = new pabal.Client({ url: env.URL, service: env.SERVICE, secret: env.SECRET, fetch: fetchWithLoss });
    console.log((await lossy.publish("order.paid", { order: 1 })).status, lost);"""

    assert await output_of(tmp_path, shop, source) == ["completed 2"]
    assert len(await rows(owner)) == 1


LOSSY_CLIENT = """
let lost = 0;
const fetchWithLoss: typeof fetch = async (url, options) => {
  const response = await fetch(url, options);
  if (!String(url).endsWith("/oauth/token") && lost++ === 0) throw new TypeError("connection reset");
  return response;
};
const lossy = new pabal.Client({ url: env.URL, service: env.SERVICE, secret: env.SECRET, fetch: fetchWithLoss });
"""
"""A client that loses the first response of the hub."""


@pytest.mark.parametrize("key", ["undefined", "null"])
async def test_an_empty_idempotency_key_is_replaced(
    shop: RegisteredService, owner: Connection, tmp_path: Path, key: str
) -> None:
    source = LOSSY_CLIENT + f"await lossy.publish('order.paid', {{}}, {{ idempotency_key: {key} }} as object);"

    await output_of(tmp_path, shop, source)
    assert len(await rows(owner)) == 1


async def test_a_lost_response_does_not_notify_twice(
    hub: Hub, web: httpx2.AsyncClient, owner: Connection, tmp_path: Path
) -> None:
    await register_builtin_templates(hub)
    service = await register_oauth_service(hub, web, "shop", "notifications:send")
    source = (
        LOSSY_CLIENT
        + """
    const payload = { item: "Nitro", amount: 12900, currency: "KRW" };
    const recipient = { recipient_type: "user_dm", recipient_id: "100000000000000001" } as const;
    await lossy.notify({ ...recipient, template_key: "payment.succeeded", payload });
    console.log(lost);"""
    )

    assert await output_of(tmp_path, service, source) == ["2"]
    assert await owner.fetchval("select count(*) from notification.requests") == 1


async def test_a_call_that_must_not_be_repeated_is_sent_once(
    shop: RegisteredService, owner: Connection, tmp_path: Path
) -> None:
    source = (
        LOSSY_CLIENT
        + """
    try { await lossy.call("POST /v1/queue/events", { body: { event_type: "order.paid" } }); }
    catch (error) { console.log((error as Error).name); }"""
    )

    assert await output_of(tmp_path, shop, source) == ["HubUnavailableError"]
    assert len(await rows(owner)) == 1


async def test_concurrent_requests_share_one_token_and_a_revoked_one_is_replaced(
    hub: Hub, shop: RegisteredService, owner: Connection, tmp_path: Path
) -> None:
    source = """
    await Promise.all(Array.from({ length: 20 }, () => client.publish("order.paid")));
    console.log("published");
    await new Promise<void>((resolve) => process.stdin.once("data", () => resolve()));
    await client.publish("order.paid");
    console.log("published again");
    process.exit(0);"""
    families = "select count(*) from public.token_families"
    async with running(tmp_path, shop, source) as process:
        assert await process.line() == "published"
        assert await owner.fetchval(families) == 1
        async with hub.transaction() as tx:
            await revoke_service_tokens(tx, "shop", TESTER)
        process.send_line()
        assert await process.line() == "published again"
        assert await owner.fetchval(families) == 2


async def test_large_batches_are_split_and_keep_their_order(
    shop: RegisteredService, owner: Connection, tmp_path: Path
) -> None:
    source = """
    const text = "x".repeat(1000);
    const numbers = Array.from({ length: 1500 }, (_, number) => number);
    const events = numbers.map((number) => ({ event_type: "order.seen", payload: { number, text } }));
    const results = await client.publishMany([...events, { event_type: "Wrong Name" }]);
    const last = results.pop();
    console.log(results.filter((result) => result.status === 202).length, last?.status, last?.code);"""

    assert await output_of(tmp_path, shop, source) == ["1500 400 invalid"]
    assert [json.loads(row["payload"])["number"] for row in await rows(owner)] == [*range(1500)]


async def test_an_event_that_the_hub_refuses_fails_alone(
    shop: RegisteredService, owner: Connection, tmp_path: Path
) -> None:
    source = """
    const texts = ["first", "x".repeat(1_200_000), "second", "\\ud800", "third"];
    const results = await client.publishMany(texts.map((text) => ({ event_type: "order.seen", payload: { text } })));
    console.log(results.map((result) => result.status).join(" "), results[1]?.code);
    console.log(results.filter((result) => result.id).length);"""

    assert await output_of(tmp_path, shop, source) == ["202 413 202 400 202 too_large", "3"]
    assert [json.loads(row["payload"])["text"] for row in await rows(owner)] == ["first", "second", "third"]


async def test_a_handler_may_throw_any_value(
    shop: RegisteredService, billing: RegisteredService, owner: Connection, tmp_path: Path
) -> None:
    await output_of(tmp_path, shop, "await client.publish('order.paid', {}, { target_service: 'billing' });")
    source = """
    const fail = async () => {
      stop.abort();
      throw Object.create(null);
    };
    await client.consume(fail, { signal: stop.signal, waitSeconds: 1 });"""
    await output_of(tmp_path, billing, STOP + source)

    [row] = await rows(owner)
    assert (row["status"], row["last_error"]) == ("pending", "the handler threw a value that cannot be shown")


async def test_a_stopped_consumer_lets_handlers_finish_and_releases_the_rest(
    hub: Hub, shop: RegisteredService, billing: RegisteredService, owner: Connection, tmp_path: Path
) -> None:
    publish = """
    for (const order of [1, 2]) await client.publish("order.paid", { order }, { target_service: "billing" });"""
    await output_of(tmp_path, shop, publish)
    source = """
    await client.consume(async (event) => {
      console.log(event.payload.order);
      await new Promise<void>((resolve) => stop.signal.addEventListener("abort", () => resolve()));
      if (event.payload.order === 2) await new Promise(() => undefined);
    }, { signal: stop.signal, waitSeconds: 1, graceSeconds: 1 });
    console.log("stopped");
    process.exit(0);"""
    async with running(tmp_path, billing, STOP + source) as consumer:
        assert {await consumer.line(), await consumer.line()} == {"1", "2"}
        consumer.process.terminate()
        assert await consumer.line() == "stopped"

    finished, released = await rows(owner)
    assert finished["status"] == "completed"
    assert released["status"] == "pending"
    assert not json.loads(released["error_history"] or "[]"), "no attempt is counted"


async def test_the_consumer_extends_leases_and_aborts_the_handler_of_a_cancelled_event(
    hub: Hub, shop: RegisteredService, billing: RegisteredService, owner: Connection, tmp_path: Path
) -> None:
    publish = "console.log((await client.publish('order.paid', {}, { target_service: 'billing' })).id);"
    [event_id] = await output_of(tmp_path, shop, publish)
    source = """
    await client.consume(async (event, signal) => {
      console.log("started");
      await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
      console.log("aborted");
      stop.abort();
    }, { signal: stop.signal, leaseSeconds: 5, waitSeconds: 0.1 });"""
    first_end = "select max(until) from pabal.event_leases"
    async with running(tmp_path, billing, STOP + source) as consumer:
        assert await consumer.line() == "started"
        until = await owner.fetchval(first_end)

        async def is_extended() -> bool:
            return await owner.fetchval(first_end) > until

        await wait_until(is_extended)
        cancelled = await shop.web.post(
            f"/v1/queue/events/{event_id}/cancel",
            headers={"authorization": f"Bearer {(await shop.tokens())['access_token']}"},
        )
        assert cancelled.status_code == 200
        assert await consumer.line() == "aborted"
        assert await consumer.end() == (0, [])


async def test_a_consumer_that_is_refused_settles_what_it_has(
    shop: RegisteredService, billing: RegisteredService, owner: Connection, tmp_path: Path
) -> None:
    await output_of(tmp_path, shop, "await client.publish('order.paid', {}, { target_service: 'billing' });")
    source = """
    let refuse = () => undefined as void;
    const refused = new Promise<void>((resolve) => (refuse = resolve));
    let claims = 0;
    const fetchOnce: typeof fetch = async (url, options) => {
      if (!String(url).endsWith("/v1/queue/claim") || claims++ === 0) return fetch(url, options);
      refuse();
      return Response.json({ code: "insufficient_scope", detail: "no" }, { status: 403 });
    };
    const other = new pabal.Client({ url: env.URL, service: env.SERVICE, secret: env.SECRET, fetch: fetchOnce });
    const handle = () => refused.then(() => new Promise((resolve) => setImmediate(resolve)));
    try { await other.consume(handle, { signal: stop.signal, waitSeconds: 1 }); }
    catch (error) { console.log((error as pabal.ApiError).status); }
    process.exit(0);"""

    assert await output_of(tmp_path, billing, STOP + source) == ["403"]
    assert [row["status"] for row in await rows(owner)] == ["completed"]


async def test_an_exception_is_a_retry_with_its_stack(
    shop: RegisteredService, billing: RegisteredService, owner: Connection, tmp_path: Path
) -> None:
    await output_of(tmp_path, shop, "await client.publish('order.paid', {}, { target_service: 'billing' });")
    source = """
    const fail = async () => {
      stop.abort();
      throw new RangeError("bad \\0 amount");
    };
    await client.consume(fail, { signal: stop.signal, waitSeconds: 1 });"""
    await output_of(tmp_path, billing, STOP + source)

    [row] = await rows(owner)
    assert (row["status"], row["error_code"]) == ("pending", "RangeError")
    assert len(json.loads(row["error_history"])) == 1
    assert row["last_error"] == "RangeError: bad � amount"
