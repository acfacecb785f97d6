// The consumer: claims as many events as it has free slots, handles them concurrently, settles them in batches.
//
// Three loops that never wait for each other: one claims, one settles, one extends leases. An event occupies its slot
// until it is settled or lost.

import type { ClaimedEventView, ClaimedEventsView, EventNackBody, ReceiptResultsView } from "./api.ts";
import { ApiError, HubUnavailableError } from "./errors.ts";
import { type Outcome, Dead, Retry, Snooze } from "./outcomes.ts";
import { type Transport, sleep } from "./transport.ts";

const MAX_BATCH = 1000;
const RETRY_PAUSE_MS = 1000;
const MAX_ERROR_CHARS = 8000;
const MAX_DELAY_SECONDS = 86_400;

export type ClaimedEvent = ClaimedEventView;

/** Handles one event. `signal` is aborted if the event is cancelled or its lease is lost. */
export type EventHandler = (event: ClaimedEvent, signal: AbortSignal) => unknown;

export interface ConsumeOptions {
  /** Abort it to stop: running handlers may finish within `graceSeconds`, the other events are released. */
  signal: AbortSignal;
  /** Events that are handled at the same time. */
  concurrency?: number;
  leaseSeconds?: number;
  /** How long a claim waits for the first event. */
  waitSeconds?: number;
  graceSeconds?: number;
  /** Receives what goes wrong; by default it is written to the console. */
  onError?: (error: unknown) => void;
}

type Nack = Omit<EventNackBody, "receipts">;

const RELEASE: Nack = { error: "released", outcome: "snooze", retry_after: 0 };

export class Consumer {
  readonly #transport: Transport;
  readonly #handler: EventHandler;
  readonly #options: Required<ConsumeOptions>;
  readonly #running = new Map<string, AbortController>();
  readonly #finished = new Map<string, Nack | null>();
  #wakeSettling: () => void = () => undefined;
  #wakeClaiming: () => void = () => undefined;
  #isEnded = false;

  constructor(transport: Transport, handler: EventHandler, options: ConsumeOptions) {
    this.#transport = transport;
    this.#handler = handler;
    const defaults = { concurrency: 10, leaseSeconds: 30, waitSeconds: 10, graceSeconds: 10, onError: (error: unknown) => console.error(error) };
    this.#options = { ...defaults, ...options };
  }

  /** Run until the signal is aborted or a claim is refused, then finish or release the claimed events. */
  async run(): Promise<void> {
    const { signal } = this.#options;
    signal.addEventListener("abort", () => this.#wakeClaiming(), { once: true });
    const heartbeat = setInterval(() => void this.#extendLeases(), (this.#options.leaseSeconds * 1000) / 3);
    const settling = this.#settleLoop();
    try {
      await this.#claimLoop();
    } finally {
      await this.#drain();
      clearInterval(heartbeat);
      this.#isEnded = true;
      this.#wakeSettling();
      await settling;
    }
  }

  // Claiming

  async #claimLoop(): Promise<void> {
    const { signal, concurrency, waitSeconds, leaseSeconds } = this.#options;
    while (!signal.aborted) {
      const free = concurrency - this.#running.size;
      if (free <= 0) {
        await new Promise<void>((resolve) => (this.#wakeClaiming = resolve));
        continue;
      }
      const json = { limit: Math.min(free, MAX_BATCH), wait: Math.round(waitSeconds * 1000), lease_seconds: leaseSeconds };
      try {
        // Not aborted by the signal: its response may carry events, which must be released.
        const { events } = await this.#transport.send<ClaimedEventsView>("POST", "/v1/queue/claim", { json, extraTimeoutMs: waitSeconds * 1000 });
        for (const event of events) void this.#handle(event);
      } catch (error) {
        if (!isTransient(error)) throw error;
        this.#options.onError(error);
        await sleep(RETRY_PAUSE_MS, signal).catch(() => undefined);
      }
    }
  }

  // Handling

  async #handle(event: ClaimedEvent): Promise<void> {
    const controller = new AbortController();
    this.#running.set(event.receipt, controller);
    let nack: Nack | null;
    try {
      nack = this.#options.signal.aborted ? RELEASE : nackOf(await this.#handler(event, controller.signal));
    } catch (error) {
      nack = nackOfThrown(error);
    }
    if (!this.#running.has(event.receipt)) return; // its lease is lost
    this.#finished.set(event.receipt, nack);
    this.#wakeSettling();
  }

  // Settling

  async #settleLoop(): Promise<void> {
    while (!this.#isEnded || this.#finished.size) {
      if (!this.#finished.size) {
        await new Promise<void>((resolve) => (this.#wakeSettling = resolve));
        continue;
      }
      try {
        await this.#settleAll();
      } catch (error) {
        this.#options.onError(error);
        if (this.#isEnded) return; // the leases end by themselves
        await sleep(RETRY_PAUSE_MS);
      }
    }
  }

  /** One call for the events that are done, one for each kind of failure. */
  async #settleAll(): Promise<void> {
    const groups = new Map<string, string[]>();
    for (const [receipt, nack] of this.#finished) {
      const key = JSON.stringify(nack);
      groups.set(key, [...(groups.get(key) ?? []), receipt]);
    }
    for (const [key, receipts] of groups) {
      for (let start = 0; start < receipts.length; start += MAX_BATCH) {
        await this.#settle(receipts.slice(start, start + MAX_BATCH), JSON.parse(key) as Nack | null);
      }
    }
  }

  async #settle(receipts: string[], nack: Nack | null): Promise<void> {
    try {
      await this.#transport.send("POST", nack ? "/v1/queue/nack" : "/v1/queue/ack", { json: { receipts, ...nack } });
    } catch (error) {
      if (isTransient(error)) throw error;
      this.#options.onError(error); // refused: the events wait for the end of their leases
    }
    for (const receipt of receipts) this.#forget(receipt);
  }

  #forget(receipt: string): void {
    this.#finished.delete(receipt);
    this.#running.delete(receipt);
    this.#wakeClaiming();
  }

  // Extending leases

  async #extendLeases(): Promise<void> {
    const receipts = [...this.#running.keys()];
    for (let start = 0; start < receipts.length; start += MAX_BATCH) {
      try {
        const json = { receipts: receipts.slice(start, start + MAX_BATCH), lease_seconds: this.#options.leaseSeconds };
        const { results } = await this.#transport.send<ReceiptResultsView>("POST", "/v1/queue/extend", { json });
        for (const { receipt, status } of results) if (status !== 200) this.#cancel(receipt);
      } catch (error) {
        this.#options.onError(error);
      }
    }
  }

  /** Abort the handler of an event whose lease is lost; there is nothing to settle. */
  #cancel(receipt: string): void {
    if (this.#finished.has(receipt)) return; // it is being settled
    this.#running.get(receipt)?.abort(new Error("the event was cancelled, or its lease is lost"));
    this.#forget(receipt);
  }

  // Stopping

  /** Let running handlers finish, and release the events of those that take too long. */
  async #drain(): Promise<void> {
    const deadline = AbortSignal.timeout(this.#options.graceSeconds * 1000);
    deadline.addEventListener("abort", () => this.#wakeClaiming(), { once: true });
    while (this.#running.size && !deadline.aborted) {
      await new Promise<void>((resolve) => (this.#wakeClaiming = resolve));
    }
    for (const [receipt, controller] of this.#running) {
      if (this.#finished.has(receipt)) continue;
      controller.abort(new Error("the consumer stops"));
      this.#finished.set(receipt, RELEASE);
    }
  }
}

function isTransient(error: unknown): boolean {
  return error instanceof HubUnavailableError || (error instanceof ApiError && error.status === 429);
}

/** Map what a handler returned or threw; null for done. */
function nackOf(result: unknown): Nack | null {
  if (result instanceof Retry) return nackBody(result, "retry", result.delaySeconds);
  if (result instanceof Snooze) return nackBody(result, "snooze", result.delaySeconds);
  if (result instanceof Dead) return nackBody(result, "dead");
  if (!(result instanceof Error)) return null;
  const stack = storable(result.stack ?? "").slice(0, MAX_ERROR_CHARS);
  return { error: storable(`${result.name}: ${result.message}`), outcome: "retry", error_code: result.name.slice(0, 100), error_stack: stack };
}

/** Map what a handler threw. Any value can be thrown, also one that cannot be shown; without a nack its event would keep its slot. */
function nackOfThrown(error: unknown): Nack {
  try {
    return nackOf(error) ?? nackOf(new Error(String(error)))!;
  } catch {
    return { error: "the handler threw a value that cannot be shown", outcome: "retry" };
  }
}

function nackBody(outcome: Outcome, name: "retry" | "dead" | "snooze", delaySeconds?: number): Nack {
  const nack: Nack = { error: storable(outcome.reason) || "failed", outcome: name };
  return delaySeconds === undefined ? nack : { ...nack, retry_after: Math.min(Math.max(delaySeconds, 0), MAX_DELAY_SECONDS) };
}

/** Text that JSON and PostgreSQL can store: without NUL and lone surrogates. */
function storable(text: string): string {
  return text.slice(0, MAX_ERROR_CHARS).replace(/\0|[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/g, "\uFFFD");
}
