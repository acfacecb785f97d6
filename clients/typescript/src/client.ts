// The client of a service: publish, consume, and every other endpoint by its method and path.

import type { Endpoints, EventBatchItemView, EventBatchView, EventBody, NotificationBody, PersonTokenView, RequestedNotificationView } from "./api.ts";
import { type ConsumeOptions, type EventHandler, Consumer } from "./consumer.ts";
import { ApiError, HubUnavailableError } from "./errors.ts";
import { type Fetch, type SendOptions, Transport, serviceTokens } from "./transport.ts";

/** Events of one request. */
const MAX_BATCH = 1000;
/** Bytes of one request; a hub accepts 1 MiB by default. */
const MAX_BODY_BYTES = 1_000_000;

export interface ClientOptions {
  /** The address of the hub, such as https://hub.example.org. */
  url: string;
  /** The name of your service. */
  service: string;
  /** The secret of your service. Never use it in a browser. */
  secret: string;
  fetch?: Fetch;
}

export type PublishOptions = Omit<EventBody, "event_type" | "payload">;
export type PublishedEvent = Endpoints["POST /v1/queue/events"]["response"];

/** The arguments of an endpoint: `path`, `query` and `body`, as far as it has them. */
export type CallArguments<Name extends keyof Endpoints> = Omit<Endpoints[Name], "response" | "query"> &
  (Endpoints[Name] extends { query: infer Query } ? { query?: Query } : unknown);

export class Client {
  readonly #transport: Transport;

  constructor({ url, service, secret, fetch }: ClientOptions) {
    this.#transport = new Transport(url, serviceTokens(url, service, secret, fetch), fetch);
  }

  /** Publish an event. Resolves when it is durable. It has an idempotency key, so a retry publishes it once. */
  publish(eventType: string, payload: Record<string, unknown> = {}, options: PublishOptions = {}): Promise<PublishedEvent> {
    return this.#transport.send("POST", "/v1/queue/events", { json: withKey({ ...options, event_type: eventType, payload }) });
  }

  /** Publish events in this order, in as few requests as fit. Each one has a result of its own: an id, or an error. */
  async publishMany(events: readonly EventBody[]): Promise<EventBatchItemView[]> {
    const bodies = events.map((event) => JSON.stringify(withKey(event)));
    const results: EventBatchItemView[] = [];
    while (results.length < bodies.length) {
      const batch = fitBatch(bodies.slice(results.length, results.length + MAX_BATCH));
      results.push(...(await this.#publishBatch(batch)));
    }
    return results;
  }

  /** Publish events in one request. If the hub refuses it, split it until the refused event fails alone. */
  async #publishBatch(bodies: readonly string[]): Promise<EventBatchItemView[]> {
    try {
      const encoded = `{"events":[${bodies.join(",")}]}`;
      const { results } = await this.#transport.send<EventBatchView>("POST", "/v1/queue/events/batch", { encoded });
      if (results.length !== bodies.length) throw new HubUnavailableError(`sent ${bodies.length} events, got ${results.length} results`);
      return results;
    } catch (error) {
      if (!(error instanceof ApiError && [400, 413].includes(error.status))) throw error;
      if (bodies.length === 1) return [{ status: error.status, code: error.code, detail: error.detail }];
    }
    const middle = bodies.length >> 1;
    const first = await this.#publishBatch(bodies.slice(0, middle));
    return first.concat(await this.#publishBatch(bodies.slice(middle)));
  }

  /** Handle the events of this service until the signal is aborted. An event is done when its handler returns. */
  consume(handler: EventHandler, options: ConsumeOptions): Promise<void> {
    return new Consumer(this.#transport, handler, options).run();
  }

  /** Request a notification to a person or a channel. It has an idempotency key, so a retry requests it once. */
  notify(notification: NotificationBody): Promise<RequestedNotificationView> {
    return this.#transport.send("POST", "/v1/notifications", { json: withKey(notification) });
  }

  /** Issue a token for a person, valid for 15 minutes: your page shows their toasts with it. */
  issuePersonToken(personId: string): Promise<PersonTokenView> {
    return this.#transport.send("POST", `/v1/people/${encodeURIComponent(personId)}/token`);
  }

  /**
   * Call any endpoint, such as `client.call("GET /v1/queue/events/{id}", { path: { id } })`.
   *
   * A POST without an `idempotency_key` is sent once: if its response is lost, it may or may not have been processed.
   */
  call<Name extends keyof Endpoints>(name: Name, args: CallArguments<Name>, signal?: AbortSignal): Promise<Endpoints[Name]["response"]> {
    const { path = {}, query, body } = args as { path?: Record<string, string>; query?: object; body?: object };
    const [method, pattern] = name.split(" ") as [string, string];
    const target = pattern.replace(/\{(\w+)\}/g, (_, field: string) => encodeURIComponent(String(path[field])));
    const isRepeatable = method !== "POST" || Boolean((body as { idempotency_key?: string } | undefined)?.idempotency_key);
    const options: SendOptions = isRepeatable ? { signal } : { signal, maxAttempts: 1 };
    if (query) options.query = query;
    if (body) options[pattern.startsWith("/oauth/") ? "form" : "json"] = body;
    return this.#transport.send(method, target, options);
  }
}

/** The body with an idempotency key, so that it may be sent twice. */
function withKey<Body extends EventBody | NotificationBody>(body: Body): Body {
  return { ...body, idempotency_key: body.idempotency_key ?? crypto.randomUUID() };
}

/** The first bodies that fit into one request; at least one, which the hub may then refuse. */
function fitBatch(bodies: readonly string[]): readonly string[] {
  let size = 0;
  const end = bodies.findIndex((body, index) => (size += new TextEncoder().encode(body).length + 1) > MAX_BODY_BYTES && index > 0);
  return end === -1 ? bodies : bodies.slice(0, end);
}
