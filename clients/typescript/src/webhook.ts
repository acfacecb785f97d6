// Verify webhooks of the hub (Standard Webhooks): an HMAC over id, timestamp and body.

import { WebhookVerificationError } from "./errors.ts";

const SECRET_PREFIX = "whsec_";
const SIGNATURE_VERSION = "v1,";
const TOLERANCE_SECONDS = 300;

/** An event as a webhook carries it. Deduplicate by `origin_id`. */
export interface WebhookEvent {
  id: string;
  origin_id: string;
  event_type: string;
  source_service: string;
  payload: Record<string, unknown>;
  [field: string]: unknown;
}

export interface VerifyOptions {
  /** Seconds that the timestamp may differ from the local clock. */
  toleranceSeconds?: number;
}

/**
 * Return the event of a webhook; throws WebhookVerificationError if its signature is wrong or too old.
 *
 * Pass the raw body, and both secrets during a rotation. A webhook may arrive twice: deduplicate by `origin_id`, which
 * is also the header `webhook-id`.
 */
export async function verifyWebhook(
  secrets: string | readonly string[],
  headers: Headers | Record<string, string | string[] | undefined>,
  body: string | Uint8Array,
  { toleranceSeconds = TOLERANCE_SECONDS }: VerifyOptions = {},
): Promise<WebhookEvent> {
  const [id, timestamp, signatures] = ["webhook-id", "webhook-timestamp", "webhook-signature"].map((name) => requireHeader(headers, name)) as [string, string, string];
  if (!/^\d{1,12}$/.test(timestamp) || Math.abs(Date.now() / 1000 - Number(timestamp)) > toleranceSeconds) {
    throw new WebhookVerificationError("webhook-timestamp: too old, or in the future");
  }
  const raw = typeof body === "string" ? new TextEncoder().encode(body) : body;
  const signed = concat(new TextEncoder().encode(`${id}.${timestamp}.`), raw);
  const given = signatures.split(" ").filter((text) => text.startsWith(SIGNATURE_VERSION)).map((text) => fromBase64(text.slice(SIGNATURE_VERSION.length)));
  const keys = await Promise.all((typeof secrets === "string" ? [secrets] : secrets).map(importSecret));
  const checks = keys.flatMap((key) => given.map((signature) => signature !== null && crypto.subtle.verify("HMAC", key, signature, signed)));
  if (!(await Promise.all(checks)).some(Boolean)) throw new WebhookVerificationError("webhook-signature: does not match");
  try {
    const event: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(raw));
    if (typeof event === "object" && event !== null && !Array.isArray(event)) return event as WebhookEvent;
  } catch {
    // reported below
  }
  throw new WebhookVerificationError("the body is not a JSON object");
}

function requireHeader(headers: Headers | Record<string, string | string[] | undefined>, name: string): string {
  const value = headers instanceof Headers ? headers.get(name) : Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
  const text = Array.isArray(value) ? value[0] : value;
  if (!text) throw new WebhookVerificationError(`${name}: missing`);
  return text;
}

async function importSecret(secret: string): Promise<CryptoKey> {
  const text = secret.trim();
  const key = fromBase64(text.startsWith(SECRET_PREFIX) ? text.slice(SECRET_PREFIX.length) : text);
  if (!key?.length) throw new TypeError("not a webhook secret: it must look like whsec_…");
  return crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> | null {
  try {
    return Uint8Array.from(atob(text.replace(/=+$/, "")), (char) => char.charCodeAt(0));
  } catch {
    return null;
  }
}

function concat(one: Uint8Array, other: Uint8Array): Uint8Array<ArrayBuffer> {
  const joined = new Uint8Array(one.length + other.length);
  joined.set(one);
  joined.set(other, one.length);
  return joined;
}
