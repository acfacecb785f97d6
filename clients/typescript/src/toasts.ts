// A person's toasts, for a user interface of your own. For a ready one, use the element <pabal-toasts> of the hub.

import type { Endpoints, StreamTicketView, ToastPage, ToastView, ToastsReadView } from "./api.ts";
import { ApiError } from "./errors.ts";
import { Watchdog, readEvents } from "./sse.ts";
import { type Fetch, type TokenSource, Transport, backoffMs, sleep } from "./transport.ts";

const SILENCE_MS = 60_000;

export interface ToastsOptions {
  url: string;
  /** Returns a person's token, which your server gets with `client.issuePersonToken`. Called again when it has expired. */
  getToken: () => Promise<string>;
  fetch?: Fetch;
}

/** A change of a toast, and the number of unread ones after it. */
export interface ToastChange {
  toast: ToastView;
  unread: number;
}

export class Toasts {
  readonly #transport: Transport;

  constructor({ url, getToken, fetch }: ToastsOptions) {
    this.#transport = new Transport(url, rememberToken(getToken), fetch);
  }

  /** List toasts, the newest first. A stream that starts after `last` misses nothing. */
  list(query: Endpoints["GET /v1/toasts"]["query"] = {}): Promise<ToastPage> {
    return this.#transport.send("GET", "/v1/toasts", { query });
  }

  /** Mark a toast as seen, read or archived. */
  mark(id: string, action: "seen" | "read" | "archive"): Promise<ToastView> {
    return this.#transport.send("POST", `/v1/toasts/${encodeURIComponent(id)}/${action}`);
  }

  /** Mark all toasts of the inbox as read; resolves with how many were unread. */
  async markAllRead(): Promise<number> {
    return (await this.#transport.send<ToastsReadView>("POST", "/v1/toasts/read")).marked;
  }

  /** Issue a ticket for an EventSource: `/v1/toasts/stream?ticket=…`, once, within 30 seconds. */
  issueTicket(): Promise<StreamTicketView> {
    return this.#transport.send("POST", "/v1/toasts/ticket");
  }

  /** Yield every change after the number `after`, across reconnects, until the signal is aborted. */
  async *changes(after: number, signal: AbortSignal): AsyncGenerator<ToastChange> {
    let last = String(after);
    for (let failures = 0; !signal.aborted; ) {
      const watchdog = new Watchdog(SILENCE_MS);
      try {
        const headers = { "last-event-id": last };
        const response = await this.#transport.open("/v1/toasts/stream", { headers, signal: AbortSignal.any([signal, watchdog.signal]) });
        for await (const event of readEvents(response)) {
          watchdog.feed();
          failures = 0;
          if (event?.name !== "toast") continue;
          last = event.id;
          yield event.data as ToastChange;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status !== 429) throw error;
      } finally {
        watchdog.stop();
      }
      failures += 1;
      await sleep(backoffMs(Math.min(failures, 8)), signal).catch(() => undefined);
    }
  }
}

/** Concurrent requests share one token; a rejected one is replaced. */
function rememberToken(getToken: () => Promise<string>): TokenSource {
  let current: Promise<string> | undefined;
  return async (rejected) => {
    const seen = current;
    const known = await seen?.catch(() => undefined);
    if ((known === undefined || known === rejected) && current === seen) current = getToken();
    return current!;
  };
}
