// A chat bot behind the relay: it receives messages on a stream and replies to them.
//
// A stream that breaks or falls silent is opened again and continues after its last event. A message is acknowledged
// before its turn starts, so it starts at most one, also if this process crashes. Turns of one conversation run one after
// the other. Messages that wait for their turn are not acknowledged, and the hub bounds how many of those a stream gets.

import { ApiError, HubUnavailableError, PairingExpiredError } from "./errors.ts";
import { type StreamEvent, Watchdog, readEvents } from "./sse.ts";
import { type Fetch, Transport, backoffMs, checkToken, isUnsent, sleep } from "./transport.ts";

/** The hub sends a ping every 20 seconds. */
const SILENCE_MS = 60_000;
/** Ids of messages that are remembered, so that none starts a second turn. */
const MAX_REMEMBERED = 10_000;
/** Attempts of a reply, in about 23 seconds: less than Kakao's callback lives. */
const MAX_REPLY_ATTEMPTS = 8;

/** A message of a chat user. */
export interface ChatMessage {
  id: string;
  conversationKey: string;
  text: string;
  userId: string;
  channelId: string;
  createdAt: Date;
  /** Until when Kakao accepts the reply; null without a callback. A later reply is shown with the next one. */
  callbackExpiresAt: Date | null;
  /** How often the hub has delivered it, this time included. */
  deliveryCount: number;
  /** What Kakao sent, complete. */
  kakaoPayload: Record<string, unknown>;
}

/** A text, or a skill response of Kakao, version 2.0. */
export type Reply = string | Record<string, unknown>;

/** Returns the reply, or nothing. */
export type MessageHandler = (message: ChatMessage) => Promise<Reply | undefined> | Reply | undefined;

export interface RelayBotOptions {
  url: string;
  /** A session token of `createSession`, or an account's relay token. */
  token: string;
  /** Turns that run at the same time, each of another conversation; by default 10. */
  concurrency?: number;
  /** Receives what goes wrong; by default it is written to the console. */
  onError?: (error: unknown) => void;
  /** Receives the events of the stream other than messages, such as `pairing_complete`. */
  onEvent?: (name: string, data: unknown) => void;
  fetch?: Fetch;
}

/** A new session. Keep its token; a user connects with `/pair CODE` in the chat. */
export interface RelaySession {
  token: string;
  pairingCode: string;
  expiresInSeconds: number;
}

/** Create a session, which has no user yet. */
export async function createSession(url: string, fetch?: Fetch): Promise<RelaySession> {
  const created = await new Transport(url, undefined, fetch).send<{ sessionToken: string; pairingCode: string; expiresIn: number }>("POST", "/v1/sessions/create", { json: {} });
  return { token: created.sessionToken, pairingCode: created.pairingCode, expiresInSeconds: created.expiresIn };
}

export class RelayBot {
  readonly #transport: Transport;
  readonly #onError: (error: unknown) => void;
  readonly #onEvent: (name: string, data: unknown) => void;
  readonly #seen = new Set<string>();
  readonly #turns = new Map<string, Promise<void>>();
  /** Turns that wait for a slot, the oldest first. */
  readonly #waiting: (() => void)[] = [];
  #freeSlots: number;
  #handler: MessageHandler = () => undefined;
  #lastEventId = "";

  constructor({ url, token, concurrency = 10, onError, onEvent, fetch }: RelayBotOptions) {
    const checked = checkToken(token);
    this.#transport = new Transport(url, async () => checked, fetch);
    this.#freeSlots = Math.max(concurrency, 1);
    this.#onError = onError ?? ((error) => console.error(error));
    this.#onEvent = onEvent ?? (() => undefined);
  }

  /** Set the function that answers messages. */
  onMessage(handler: MessageHandler): this {
    this.#handler = handler;
    return this;
  }

  /**
   * Answer messages until the signal is aborted, then wait for the turns that have started. Messages without a turn stay
   * with the hub. Throws if the hub no longer accepts the token, and PairingExpiredError if no user was paired in time.
   */
  async run(signal: AbortSignal): Promise<void> {
    this.#seen.clear(); // of an earlier run: the hub delivers its messages without a turn again
    this.#lastEventId = "";
    for (let failures = 0; !signal.aborted; ) {
      try {
        for await (const event of this.#stream(signal)) {
          failures = 0;
          this.#receive(event, signal);
          if (event.name === "pairing_expired") throw new PairingExpiredError(reasonOf(event.data));
        }
      } catch (error) {
        if (signal.aborted) break;
        if (error instanceof PairingExpiredError || (error instanceof ApiError && [401, 403, 410].includes(error.status))) throw error;
        this.#onError(error);
      }
      failures += 1;
      await sleep(backoffMs(Math.min(failures, 8)), signal).catch(() => undefined);
    }
    await Promise.all(this.#turns.values());
  }

  /** Reply to a message. Further replies are shown with the user's next message. */
  async reply(messageId: string, response: Reply): Promise<void> {
    await this.#transport.send("POST", "/v1/reply", { json: { messageId, response }, maxAttempts: MAX_REPLY_ATTEMPTS });
  }

  async *#stream(signal: AbortSignal): AsyncGenerator<StreamEvent> {
    const watchdog = new Watchdog(SILENCE_MS);
    const headers: Record<string, string> = this.#lastEventId ? { "last-event-id": this.#lastEventId } : {};
    try {
      const response = await this.#transport.open("/v1/events", { headers, signal: AbortSignal.any([signal, watchdog.signal]) });
      for await (const event of readEvents(response)) {
        watchdog.feed();
        if (event) yield event;
      }
    } finally {
      watchdog.stop();
    }
  }

  #receive(event: StreamEvent, signal: AbortSignal): void {
    this.#lastEventId = event.id || this.#lastEventId;
    if (event.name !== "message") return this.#onEvent(event.name, event.data);
    const message = toMessage(event.data as WireMessage);
    if (this.#seen.has(message.id)) return;
    this.#seen.add(message.id);
    if (this.#seen.size > MAX_REMEMBERED) this.#seen.delete(this.#seen.values().next().value!);
    const key = message.conversationKey;
    const turn = (this.#turns.get(key) ?? Promise.resolve()).then(() => this.#takeTurn(message, signal));
    this.#turns.set(key, turn);
    void turn.then(() => this.#turns.get(key) === turn && this.#turns.delete(key));
  }

  async #takeTurn(message: ChatMessage, signal: AbortSignal): Promise<void> {
    await this.#takeSlot();
    try {
      if (signal.aborted || !(await this.#startTurn(message.id, signal))) return;
      const response = await this.#handler(message);
      if (response !== undefined && response !== null) await this.reply(message.id, response);
    } catch (error) {
      // An expired callback is no loss: the hub keeps the reply for the user's next message.
      if (error instanceof ApiError && error.code === "CALLBACK_EXPIRED") return;
      this.#onError(error);
    } finally {
      this.#freeSlot();
    }
  }

  async #takeSlot(): Promise<void> {
    if (this.#freeSlots > 0) this.#freeSlots -= 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  #freeSlot(): void {
    const next = this.#waiting.shift();
    if (next) next();
    else this.#freeSlots += 1;
  }

  /**
   * Acknowledge a message; returns whether its turn may start. The hub never delivers an acknowledged message again.
   *
   * If nothing is acknowledged, the message has ended or another process has it, unless a lost response was ours. An
   * unavailable hub is tried until the signal is aborted: it believes that this bot has the message.
   */
  async #startTurn(messageId: string, signal: AbortSignal): Promise<boolean> {
    const json = { messageIds: [messageId] };
    let mayBeOurs = false;
    for (let attempt = 1; !signal.aborted; attempt++) {
      try {
        const result = await this.#transport.send<{ acknowledged: number }>("POST", "/v1/messages/ack", { json, maxAttempts: 1 });
        return result.acknowledged > 0 || mayBeOurs;
      } catch (error) {
        const retryAfter = error instanceof ApiError ? error.retryAfterSeconds : undefined;
        if (!(error instanceof HubUnavailableError) && retryAfter === undefined) throw error;
        mayBeOurs ||= error instanceof HubUnavailableError && !isUnsent(error);
        await sleep(Math.max(backoffMs(Math.min(attempt, 8)), 1000 * (retryAfter ?? 0)), signal).catch(() => undefined);
      }
    }
    return false;
  }
}

function reasonOf(data: unknown): string {
  return `no user was paired with the session: ${(data as { reason?: string } | null)?.reason ?? "it has expired"}`;
}

interface WireMessage {
  id: string;
  conversationKey: string;
  kakaoPayload: Record<string, unknown>;
  normalized: { userId: string; text: string; channelId: string };
  createdAt: string;
  callbackExpiresAt: number | null;
  deliveryCount: number;
}

function toMessage({ normalized, createdAt, callbackExpiresAt, ...wire }: WireMessage): ChatMessage {
  const { text, userId, channelId } = normalized;
  const expires = callbackExpiresAt === null ? null : new Date(callbackExpiresAt);
  return { ...wire, text, userId, channelId, createdAt: new Date(createdAt), callbackExpiresAt: expires };
}
