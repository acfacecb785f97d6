// Requests with credentials, retries and errors.

import { type PabalError, HubUnavailableError, errorOf, retryAfterSeconds } from "./errors.ts";

const MAX_ATTEMPTS = 5;
const FIRST_DELAY_MS = 200;
const MAX_DELAY_MS = 10_000;
/** Wait at most this long for a Retry-After; beyond that the caller decides. */
const MAX_RETRY_AFTER_SECONDS = 60;
const REQUEST_TIMEOUT_MS = 30_000;
/** Renew an access token this long before it expires. */
const RENEWAL_MARGIN_MS = 60_000;
const RETRYABLE_STATUSES = new Set([429, 503, 504]);

export type Fetch = typeof globalThis.fetch;

/** How to authenticate: returns a token other than the one that was rejected. */
export type TokenSource = (rejected?: string) => Promise<string>;

export interface SendOptions {
  query?: object;
  json?: unknown;
  /** JSON that is encoded already. */
  encoded?: string;
  form?: object;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** Added to the timeout, for a long poll. */
  extraTimeoutMs?: number;
  /** 1 for requests that must not be sent twice. */
  maxAttempts?: number;
}

export class Transport {
  readonly url: string;
  readonly #fetch: Fetch;
  readonly #token: TokenSource | undefined;

  constructor(url: string, token?: TokenSource, fetch: Fetch = globalThis.fetch) {
    this.url = url.replace(/\/+$/, "");
    this.#token = token;
    this.#fetch = fetch.bind(globalThis);
  }

  /** Send a request and decode its response; undefined if it has no body. */
  async send<T>(method: string, path: string, options: SendOptions = {}): Promise<T> {
    const response = await this.request(method, path, options);
    const text = await readText(response);
    if (!text) return undefined as T;
    if (!response.headers.get("content-type")?.includes("json")) return text as T;
    try {
      return JSON.parse(text) as T;
    } catch {
      throw new HubUnavailableError("the response is not from a hub");
    }
  }

  /** Send a request and return its response; throws for what is not a success. Renews a rejected token once. */
  async request(method: string, path: string, options: SendOptions = {}): Promise<Response> {
    let token = await this.#token?.();
    let response = await this.#retry(method, path, options, token);
    if (response.status === 401 && this.#token && token !== undefined) {
      await response.body?.cancel();
      token = await this.#token(token);
      response = await this.#retry(method, path, options, token);
    }
    if (!response.ok) throw await errorOf(response);
    return response;
  }

  /** Open a response that stays open; throws for what is not a success. Not retried. */
  async open(path: string, options: SendOptions & { signal: AbortSignal }): Promise<Response> {
    return this.request("GET", path, { ...options, maxAttempts: 1, extraTimeoutMs: Number.POSITIVE_INFINITY });
  }

  async #retry(method: string, path: string, options: SendOptions, token: string | undefined): Promise<Response> {
    for (let attempt = 1; ; attempt++) {
      const { response, error } = await this.#sendOnce(method, path, options, token);
      const isLast = attempt >= (options.maxAttempts ?? MAX_ATTEMPTS);
      if (response && (isLast || !isRetryable(response))) return response;
      if (!response && isLast) throw error;
      const retryAfter = response && retryAfterSeconds(response);
      if (response && retryAfter !== undefined && retryAfter > MAX_RETRY_AFTER_SECONDS) return response;
      await response?.body?.cancel();
      await sleep(retryAfter === undefined ? backoffMs(attempt) : retryAfter * 1000, options.signal);
    }
  }

  async #sendOnce(method: string, path: string, options: SendOptions, token: string | undefined): Promise<Attempt> {
    const headers = new Headers(options.headers);
    if (token !== undefined) headers.set("authorization", `Bearer ${checkToken(token)}`);
    let body: string | URLSearchParams | undefined;
    if (options.form !== undefined) body = toQuery(options.form);
    else {
      body = options.encoded ?? (options.json === undefined ? undefined : JSON.stringify(options.json));
      if (body !== undefined) headers.set("content-type", "application/json");
    }
    const query = options.query ? toQuery(options.query).toString() : "";
    const timeoutMs = REQUEST_TIMEOUT_MS + (options.extraTimeoutMs ?? 0);
    const signals = [options.signal, Number.isFinite(timeoutMs) ? AbortSignal.timeout(timeoutMs) : undefined];
    try {
      const response = await this.#fetch(`${this.url}${path}${query && "?"}${query}`, {
        method,
        headers,
        body: body ?? null,
        signal: AbortSignal.any(signals.filter((signal) => signal !== undefined)),
        redirect: "error",
        credentials: "omit",
        cache: "no-store",
      });
      return { response };
    } catch (error) {
      options.signal?.throwIfAborted();
      return { error: unavailable(error) };
    }
  }
}

/** The token without spaces around it. An error of `fetch` about its header would contain it. */
export function checkToken(text: string): string {
  const token = text.trim();
  if (!/^[!-~]+$/.test(token)) throw new TypeError("token: must be printable ASCII without spaces");
  return token;
}

/** Whether no connection to the hub was made, so that nothing was sent. A browser does not tell. */
export function isUnsent(error: HubUnavailableError): boolean {
  const cause = error.cause instanceof Error ? error.cause.cause : undefined;
  const causes = cause instanceof AggregateError ? cause.errors : [cause]; // one for each address that was tried
  return causes.every((one: SystemError | undefined) => one?.syscall === "connect" || one?.syscall === "getaddrinfo" || one?.code === "UND_ERR_CONNECT_TIMEOUT");
}

/** What Node.js says about a failed connection. */
interface SystemError {
  code?: string;
  syscall?: string;
}

/** A 502 of the hub is final: Kakao refused a reply. A 502 of a proxy is not. */
function isRetryable(response: Response): boolean {
  const isProxyError = response.status === 502 && !response.headers.get("content-type")?.includes("json");
  return isProxyError || RETRYABLE_STATUSES.has(response.status);
}

interface Attempt {
  response?: Response;
  error?: PabalError;
}

async function readText(response: Response): Promise<string> {
  try {
    return await response.text();
  } catch (error) {
    throw unavailable(error);
  }
}

function unavailable(error: unknown): HubUnavailableError {
  const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : "";
  return new HubUnavailableError(`no response from the hub: ${error instanceof Error ? error.message : error}${cause}`, { cause: error });
}

/** Fields without null and undefined, as a query or a form. */
function toQuery(fields: object): URLSearchParams {
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined && value !== null);
  return new URLSearchParams(entries.map(([name, value]) => [name, String(value)]));
}

export function backoffMs(attempt: number): number {
  return Math.min(FIRST_DELAY_MS * 2 ** (attempt - 1), MAX_DELAY_MS) * (0.8 + 0.4 * Math.random());
}

/** Wait; rejects as soon as the signal is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const onAbort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

interface FetchedToken {
  access_token: string;
  expires_in: number;
}

/** Access tokens of a service, fetched with its secret when one is needed. Concurrent requests share one. */
export function serviceTokens(url: string, service: string, secret: string, fetch?: Fetch): TokenSource {
  const transport = new Transport(url, undefined, fetch);
  const authorization = `Basic ${base64(`${encodeURIComponent(service)}:${encodeURIComponent(secret)}`)}`;
  let current: Promise<{ token: string; validUntil: number }> | undefined;
  const fetchToken = async (): Promise<{ token: string; validUntil: number }> => {
    const form = { grant_type: "client_credentials" };
    const fetched = await transport.send<FetchedToken>("POST", "/oauth/token", { form, headers: { authorization } });
    const lifeMs = fetched.expires_in * 1000;
    return { token: fetched.access_token, validUntil: Date.now() + lifeMs - Math.min(RENEWAL_MARGIN_MS, lifeMs / 2) };
  };
  return async (rejected) => {
    const seen = current;
    const known = await seen?.catch(() => undefined);
    const isUsable = known && known.token !== rejected && Date.now() < known.validUntil;
    if (!isUsable && current === seen) current = fetchToken(); // else another request fetches one already
    return (await current!).token;
  };
}

function base64(text: string): string {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}
