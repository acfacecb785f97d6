export type * from "./api.ts";
export { type CallArguments, type ClientOptions, type PublishedEvent, type PublishOptions, Client } from "./client.ts";
export type { ClaimedEvent, ConsumeOptions, EventHandler } from "./consumer.ts";
export { type Mistake, ApiError, HubUnavailableError, PabalError, PairingExpiredError, WebhookVerificationError } from "./errors.ts";
export { Dead, Retry, Snooze } from "./outcomes.ts";
export { type ChatMessage, type MessageHandler, type RelayBotOptions, type RelaySession, type Reply, RelayBot, createSession } from "./relay.ts";
export { type ToastChange, type ToastsOptions, Toasts } from "./toasts.ts";
export { type VerifyOptions, type WebhookEvent, verifyWebhook } from "./webhook.ts";
