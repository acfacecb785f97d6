"""The TypeScript client verifies webhooks: those of the hub, and no others."""

import json
from pathlib import Path

import httpx2
import pytest

from pabal.hub import Hub
from pabal.settings import Settings
from support.node import CLIENT, run_node, write_program
from support.subscriptions import publish_test_event, run_workers, subscribe, wait_for_status

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
VERIFY = """
const secret = env.SECRET, key = Uint8Array.from(atob(secret.slice(6)), (char) => char.charCodeAt(0));
const sign = async (id: string, timestamp: string, body: string): Promise<string> => {
  const imported = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const signed = await crypto.subtle.sign("HMAC", imported, new TextEncoder().encode(`${id}.${timestamp}.${body}`));
  return "v1," + btoa(String.fromCharCode(...new Uint8Array(signed)));
};
const now = String(Math.floor(Date.now() / 1000)), body = '{"event_type":"order.paid","payload":{"name":"민아"}}';
const good = { "webhook-id": "e1", "webhook-timestamp": now, "webhook-signature": await sign("e1", now, body) };
const old = String(Number(now) - 301);
const aged = { ...good, "webhook-timestamp": old, "webhook-signature": await sign("e1", old, body) };
const capitals = Object.fromEntries(Object.entries(good).map(([name, value]) => [name.toUpperCase(), [value]]));
const several = { ...good, "webhook-signature": `v1,AAAA v2,x ${good["webhook-signature"]}` };
const other = "whsec_" + btoa("another secret of the same kind");
const cases: Record<string, () => Promise<pabal.WebhookEvent>> = {
  good: () => pabal.verifyWebhook(secret, good, body),
  bytes: () => pabal.verifyWebhook(secret, new Headers(good), new TextEncoder().encode(body)),
  rotated: () => pabal.verifyWebhook([other, secret], good, body),
  second: () => pabal.verifyWebhook(secret, several, body),
  capitals: () => pabal.verifyWebhook(secret, capitals, body),
  changed: () => pabal.verifyWebhook(secret, good, body + " "),
  foreign: () => pabal.verifyWebhook(other, good, body),
  none: () => pabal.verifyWebhook([], good, body),
  aged: () => pabal.verifyWebhook(secret, aged, body),
  tolerated: () => pabal.verifyWebhook(secret, aged, body, { toleranceSeconds: 400 }),
  renamed: () => pabal.verifyWebhook(secret, { ...good, "webhook-id": "e2" }, body),
  garbage: () => pabal.verifyWebhook(secret, { ...good, "webhook-signature": "v1,%%% v1, nothing" }, body),
  timeless: () => pabal.verifyWebhook(secret, { ...good, "webhook-timestamp": "soon" }, body),
  unsigned: () => pabal.verifyWebhook(secret, { "webhook-id": "e1", "webhook-timestamp": now }, body),
  list: async () => pabal.verifyWebhook(secret, { ...good, "webhook-signature": await sign("e1", now, "[]") }, "[]"),
  secretless: () => pabal.verifyWebhook("whsec_", good, body),
};
const results: Record<string, string> = {};
for (const [name, verify] of Object.entries(cases)) {
  try { results[name] = String((await verify()).payload.name); }
  catch (error) { results[name] = `${(error as Error).name}: ${(error as Error).message}`; }
}
console.log(JSON.stringify(results));
"""
MISMATCH = "WebhookVerificationError: webhook-signature: does not match"
TOO_OLD = "WebhookVerificationError: webhook-timestamp: too old, or in the future"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


async def test_only_a_correct_and_recent_signature_is_accepted(tmp_path: Path) -> None:
    async with run_node(write_program(tmp_path, VERIFY), SECRET=SECRET) as process:
        code, [line] = await process.end()

    assert code == 0
    assert json.loads(line) == {
        "good": "민아",
        "bytes": "민아",
        "rotated": "민아",
        "second": "민아",
        "capitals": "민아",
        "changed": MISMATCH,
        "foreign": MISMATCH,
        "none": MISMATCH,
        "aged": TOO_OLD,
        "tolerated": "민아",
        "renamed": MISMATCH,
        "garbage": MISMATCH,
        "timeless": TOO_OLD,
        "unsigned": "WebhookVerificationError: webhook-signature: missing",
        "list": "WebhookVerificationError: the body is not a JSON object",
        "secretless": "TypeError: not a webhook secret: it must look like whsec_…",
    }


async def test_the_example_receives_what_the_hub_pushes(hub: Hub, tmp_path: Path, unused_port: int) -> None:
    url = f"http://127.0.0.1:{unused_port}/"
    _, secret = await subscribe(hub, "minu_build", "order.*", url=url)
    variables = {"PORT": str(unused_port), "WEBHOOK_SECRET": secret}
    async with run_node(CLIENT / "examples" / "webhook.ts", **variables) as receiver, run_workers(hub):
        assert json.loads(await receiver.line())["port"] == unused_port
        event = await publish_test_event(hub, "order.paid", None, {"order": 7})

        assert await receiver.line() == 'order.paid {"order":7}'
        forged = {"webhook-id": str(event), "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"}
        async with httpx2.AsyncClient() as stranger:
            assert (await stranger.post(url, json={}, headers=forged)).status_code == 401
        await wait_for_status(hub, event, "completed")
