// Generated from the hub's OpenAPI document by `make docs`. Do not edit.
// Names of types and fields are those of the API.

/** The cancelled event, or the cancelled deliveries of a broadcast. */
export interface CancelledEventsView {
  /** The ids of the cancelled event or deliveries. */
  cancelled: string[];
}

/** A claimed event. Deduplicate by `origin_id`; settle it with `receipt`. */
export interface ClaimedEventView {
  /** The id of the event or, for a broadcast, of this delivery. */
  id: string;
  /** The id of the published event, the same in every delivery and replay. Deduplicate by it. */
  origin_id: string;
  /** The type, such as `order.paid`. */
  event_type: string;
  /** The service that published it. */
  source_service: string;
  /** The service that receives it. Null for a broadcast. */
  target_service: string;
  /** The payload, as it was published. */
  payload: Record<string, unknown>;
  /** From 1, which is delivered first, to 10. */
  priority: number;
  /** The number of failed attempts so far. */
  retry_count: number;
  /** How often a failed delivery is repeated before it becomes a dead letter. */
  max_retries: number;
  /** When it was published. */
  created_at: string;
  /** Events with the same key are delivered one at a time, in the order of publishing. */
  ordering_key: string | null;
  /** Your own id for everything that belongs together, such as a request or an order. */
  correlation_id: string | null;
  /** The W3C trace context of the publisher. */
  traceparent: string | null;
  /** Settles this event: send it to acknowledge, report a failure or extend the lease. */
  receipt: string;
}

export interface ClaimedEventsView {
  /** The claimed events, the highest priority first. Empty if none is due. */
  events: ClaimedEventView[];
}

/** One final failure of an event; `death` counts them. Dead letters with the same cause share a `signature`. */
export interface DeadLetter {
  /** The id of the dead letter. */
  id: string;
  /** The failed event. Null after it was deleted. */
  event_id: string | null;
  /** The id of the failed event, also after it was deleted. */
  original_event_id: string;
  /** The id of the published event, the same in every delivery and replay. */
  origin_id: string;
  /** Which failure of the event this is: 1 for the first. */
  death: number;
  /** The type of the event. */
  original_event_type: string;
  /** The service that published it. */
  original_source_service: string;
  /** The service that should have received it. */
  original_target_service: string | null;
  /** The last error. */
  error_message: string;
  /** The code of the last error. */
  error_code: string | null;
  /** The same for errors with the same cause. */
  signature: string;
  /** The number of failed attempts. */
  total_retry_count: number;
  /** When it failed for good. */
  failed_at: string;
  /** When it was resolved. Null while it is unresolved. */
  resolved_at: string | null;
  /** Who resolved it: an operator or a service. */
  resolved_by_actor: string | null;
  /** The note of the resolution. */
  resolution_notes: string | null;
  /** When it was last replayed. */
  replayed_at: string | null;
  /** How often it was replayed. */
  replay_count: number;
}

export interface DeadLetterBulkReplayView {
  /** The number of replayed dead letters. */
  replayed: number;
}

/** A dead letter with the payload of its event and the error of each attempt. */
export interface DeadLetterDetail {
  /** The id of the dead letter. */
  id: string;
  /** The failed event. Null after it was deleted. */
  event_id: string | null;
  /** The id of the failed event, also after it was deleted. */
  original_event_id: string;
  /** The id of the published event, the same in every delivery and replay. */
  origin_id: string;
  /** Which failure of the event this is: 1 for the first. */
  death: number;
  /** The type of the event. */
  original_event_type: string;
  /** The service that published it. */
  original_source_service: string;
  /** The service that should have received it. */
  original_target_service: string | null;
  /** The last error. */
  error_message: string;
  /** The code of the last error. */
  error_code: string | null;
  /** The same for errors with the same cause. */
  signature: string;
  /** The number of failed attempts. */
  total_retry_count: number;
  /** When it failed for good. */
  failed_at: string;
  /** When it was resolved. Null while it is unresolved. */
  resolved_at: string | null;
  /** Who resolved it: an operator or a service. */
  resolved_by_actor: string | null;
  /** The note of the resolution. */
  resolution_notes: string | null;
  /** When it was last replayed. */
  replayed_at: string | null;
  /** How often it was replayed. */
  replay_count: number;
  /** The payload of the event. */
  original_payload: Record<string, unknown>;
  /** The other fields of the event, which a replay needs after the event is deleted. */
  original_envelope: Record<string, unknown>;
  /** The stack trace of the last error. */
  error_stack: string | null;
  /** The failed attempts, the oldest first. */
  error_history: FailedAttempt[];
  /** The id of the user who resolved it, if it was a registered one. */
  resolved_by: string | null;
}

/** Dead letters with the same signature. `example` is the newest of them. */
export interface DeadLetterGroup {
  /** What the errors of the group have in common. */
  signature: string;
  /** The number of dead letters. */
  count: number;
  /** When the oldest one failed. */
  first_failed_at: string;
  /** When the newest one failed. */
  last_failed_at: string;
  /** The id of the newest one. */
  example: string;
  /** The event types in the group. */
  event_types: string[];
}

/** At most 100 groups, the largest first; there is no next page. */
export interface DeadLetterGroupPage {
  /** The groups. */
  items: DeadLetterGroup[];
  /** Always null: there is one page. */
  cursor?: string | null;
}

export interface DeadLetterPage {
  /** The dead letters. */
  items: DeadLetter[];
  /** Where the next page starts: pass it as `cursor`. Null on the last page. */
  cursor: string | null;
}

/** Filters, the same as for the list. With `limit`, replays only that many, the oldest first. */
export interface DeadLetterReplayBody {
  /** Only events of this type. `*` matches anything, as in `order.*`. */
  type?: string | null;
  /** Only events that this service published. */
  source?: string | null;
  /** Only events for this service. */
  target?: string | null;
  /** Only errors with this signature. */
  signature?: string | null;
  /** Only errors with this code. */
  error_code?: string | null;
  /** Only those that failed at or after this time. */
  since?: string | null;
  /** Only those that failed before this time. */
  until?: string | null;
  /** Replay only this many, the oldest first. By default all that match. */
  limit?: number | null;
}

/** The dead letter and the queued event: the original one, or a new one if that is deleted. */
export interface DeadLetterReplayView {
  /** The id of the dead letter. */
  id: string;
  /** The queued event: the original one, or a new one if that was deleted. */
  event_id: string;
}

/** A note on how the dead letter was resolved. */
export interface DeadLetterResolveBody {
  /** How it was resolved. */
  note: string;
}

/** The delivery of a broadcast to one subscriber. */
export interface Delivery {
  /** The id of the delivery. */
  id: string;
  /** The subscriber. */
  target_service: string;
  /** The state of the delivery. */
  status: "cancelled" | "completed" | "failed" | "pending" | "processing";
  /** The number of failed attempts so far. */
  retry_count: number;
  /** When it was settled for good. */
  processed_at: string | null;
  /** The error of the last attempt. */
  last_error: string | null;
}

/**
 * How many deliveries of a broadcast are done, as far as the caller may see them.
 *
 *     `created` of `deliveries` exist; the rest of a large broadcast is being created. A list counts up to 1,000 each.
 */
export interface DeliveryStateView {
  /** The state as a short text, such as `3 of 4 done`. */
  summary: string;
  /** The number of subscribers that receive it. */
  deliveries: number;
  /** Deliveries that exist already. The rest of a large broadcast is being created. */
  created: number;
  /** Deliveries that are handled. */
  done: number;
  /** Deliveries that failed permanently. */
  dead: number;
  /** Deliveries that were cancelled. */
  cancelled: number;
}

/** Receipts of handled events. */
export interface EventAckBody {
  /** The receipts of claimed events. */
  receipts: string[];
}

/** Up to 1,000 events, recorded in this order. An invalid event fails alone. */
export interface EventBatchBody {
  /** The events, each with the fields of a single event. */
  events: unknown[];
}

/** The result for one event of a batch: 202 recorded, 200 already published with this key, or an error. */
export interface EventBatchItemView {
  /** 202 recorded, 200 already published with this key, or the HTTP status of the error. */
  status: number;
  /** The id of the event. Missing if it was refused. */
  id?: string | null;
  /** The stable code of the error. Missing on success. */
  code?: string | null;
  /** What is wrong with this event. Missing on success. */
  detail?: string | null;
  /** The state of the event, `pending` unless it was published before. Missing if it was refused. */
  event_status?: "cancelled" | "completed" | "failed" | "pending" | "processing" | null;
  /** When it was published. Missing if it was refused. */
  created_at?: string | null;
}

export interface EventBatchView {
  /** One result per event, in the order of the request. */
  results: EventBatchItemView[];
}

/** An event to publish. Without `target_service` it goes to every subscriber of its type. */
export interface EventBody {
  /** The type: lower-case words separated by dots, such as `order.paid`. */
  event_type: string;
  /** The publishing service. It must be the service of the token, which is also the default. */
  source_service?: string | null;
  /** The service that receives the event. Without it, every subscriber of the type receives it. */
  target_service?: string | null;
  /** Any JSON object, up to 256 KB. */
  payload?: Record<string, unknown>;
  /** 1 is delivered first. `critical` is 1, `high` 3, `normal` 5, `low` 7. */
  priority?: number | "critical" | "high" | "low" | "normal";
  /** How often a failed delivery is repeated before it becomes a dead letter. 3 leaves it to the receiver: pushes, and handlers with a schedule, are repeated as often as their schedule says. Any other value holds. */
  max_retries?: number;
  /** Do not deliver before this time. By default it is delivered at once. */
  deliver_at?: string | null;
  /** Do not deliver after this time. */
  expires_at?: string | null;
  /** Publishing again with the same key within 24 hours returns the first event instead of a second one. */
  idempotency_key?: string | null;
  /** Events with the same key are delivered one at a time, in the order of publishing. */
  ordering_key?: string | null;
  /** Your own id for everything that belongs together, such as a request or an order. */
  correlation_id?: string | null;
  /** The W3C trace context of the publisher. */
  traceparent?: string | null;
}

/** How many events to claim, how long to wait for the first (milliseconds), and how long to lease them. */
export interface EventClaimBody {
  /** The largest number of events to claim. */
  limit?: number;
  /** How long to wait for the first event, in milliseconds. 0 returns at once. */
  wait?: number;
  /** How long the events are yours, in seconds. Extend the lease before it ends. */
  lease_seconds?: number;
}

/** An event with its failed attempts, deliveries and dead letters. `trace` lists what happened to it, in order. */
export interface EventDetailView {
  /** The id of the event or, for a broadcast, of this delivery. */
  id: string;
  /** The type, such as `order.paid`. */
  event_type: string;
  /** The service that published it. */
  source_service: string;
  /** The service that receives it. Null for a broadcast. */
  target_service: string | null;
  /** The payload, as it was published. */
  payload: Record<string, unknown>;
  /** The state of the delivery. A broadcast is `completed` when it is published. */
  status: "cancelled" | "completed" | "failed" | "pending" | "processing";
  /** From 1, which is delivered first, to 10. */
  priority: number;
  /** The number of failed attempts so far. */
  retry_count: number;
  /** How often a failed delivery is repeated before it becomes a dead letter. */
  max_retries: number;
  /** When it is due: the next attempt, or the first one. */
  next_retry_at: string | null;
  /** When the current or last attempt started. */
  processing_started_at: string | null;
  /** The consumer that holds it or held it last. */
  processor_id: string | null;
  /** When it was settled for good. */
  processed_at: string | null;
  /** The error of the last attempt. */
  last_error: string | null;
  /** The code of the last error. */
  error_code: string | null;
  /** When it was published. */
  created_at: string;
  /** It is not delivered after this time. */
  expires_at: string | null;
  /** Events with the same key are delivered one at a time, in the order of publishing. */
  ordering_key: string | null;
  /** The key that makes repeated requests harmless: the first result is returned again. */
  idempotency_key: string | null;
  /** Your own id for everything that belongs together, such as a request or an order. */
  correlation_id: string | null;
  /** The W3C trace context of the publisher. */
  traceparent: string | null;
  /** For a delivery of a broadcast: the id of the broadcast. */
  parent_id: string | null;
  /** The id of the published event, the same in every delivery and replay. Deduplicate by it. */
  origin_id: string;
  /** Whether it went to every subscriber of its type. */
  is_broadcast: boolean;
  /** For a broadcast: how many deliveries are done. Otherwise null. */
  delivery_state: DeliveryStateView | null;
  /** The failed attempts, the oldest first. */
  error_history: FailedAttempt[];
  /** For a broadcast: its deliveries that the caller may see. */
  deliveries: Delivery[];
  /** The ids of its dead letters. */
  dead_letters: string[];
  /** What happened to it, in order of time. */
  trace: TraceEntryView[];
}

/** Receipts whose lease to extend. The events of one claim share a lease: extending one extends all of them. */
export interface EventExtendBody {
  /** The receipts of claimed events. */
  receipts: string[];
  /** The new length of the lease, in seconds from now. */
  lease_seconds?: number;
}

/**
 * Receipts of failed events, and the reason. `retry_after` (seconds) overrides the backoff.
 *
 *     The hub stores 4,000 characters of `error` and 8,000 of `error_stack`: of longer ones the beginning and the end.
 *     Secrets in them are masked.
 *
 *     `outcome`: `retry` counts an attempt, `dead` gives up at once, `snooze` counts no attempt.
 */
export interface EventNackBody {
  /** The receipts of claimed events. */
  receipts: string[];
  /** What failed, for people. The hub stores 4,000 characters and masks secrets. */
  error: string;
  /** A short code that groups errors, such as `card_declined`. */
  error_code?: string | null;
  /** The stack trace. The hub stores 8,000 characters and masks secrets. */
  error_stack?: string | null;
  /** Seconds until the next attempt, instead of the backoff. */
  retry_after?: number | null;
  /** `retry` counts an attempt, `dead` gives up at once, `snooze` counts no attempt. */
  outcome?: "dead" | "retry" | "snooze";
}

export interface EventPage {
  /** The events. */
  items: EventView[];
  /** Where the next page starts: pass it as `cursor`. Null on the last page. */
  cursor: string | null;
}

/** An event and its current state. A broadcast is `completed` when published; see its `delivery_state`. */
export interface EventView {
  /** The id of the event or, for a broadcast, of this delivery. */
  id: string;
  /** The type, such as `order.paid`. */
  event_type: string;
  /** The service that published it. */
  source_service: string;
  /** The service that receives it. Null for a broadcast. */
  target_service: string | null;
  /** The payload, as it was published. */
  payload: Record<string, unknown>;
  /** The state of the delivery. A broadcast is `completed` when it is published. */
  status: "cancelled" | "completed" | "failed" | "pending" | "processing";
  /** From 1, which is delivered first, to 10. */
  priority: number;
  /** The number of failed attempts so far. */
  retry_count: number;
  /** How often a failed delivery is repeated before it becomes a dead letter. */
  max_retries: number;
  /** When it is due: the next attempt, or the first one. */
  next_retry_at: string | null;
  /** When the current or last attempt started. */
  processing_started_at: string | null;
  /** The consumer that holds it or held it last. */
  processor_id: string | null;
  /** When it was settled for good. */
  processed_at: string | null;
  /** The error of the last attempt. */
  last_error: string | null;
  /** The code of the last error. */
  error_code: string | null;
  /** When it was published. */
  created_at: string;
  /** It is not delivered after this time. */
  expires_at: string | null;
  /** Events with the same key are delivered one at a time, in the order of publishing. */
  ordering_key: string | null;
  /** The key that makes repeated requests harmless: the first result is returned again. */
  idempotency_key: string | null;
  /** Your own id for everything that belongs together, such as a request or an order. */
  correlation_id: string | null;
  /** The W3C trace context of the publisher. */
  traceparent: string | null;
  /** For a delivery of a broadcast: the id of the broadcast. */
  parent_id: string | null;
  /** The id of the published event, the same in every delivery and replay. Deduplicate by it. */
  origin_id: string;
  /** Whether it went to every subscriber of its type. */
  is_broadcast: boolean;
  /** For a broadcast: how many deliveries are done. Otherwise null. */
  delivery_state: DeliveryStateView | null;
}

/** A failed attempt. In adopted events, another program may have recorded less than the hub does. */
export interface FailedAttempt {
  /** What failed. */
  error: string;
  /** The number of the attempt, from 1. Missing if another program recorded it before the hub adopted the event. */
  attempt?: number | null;
  /** When it failed. Missing if another program recorded it without. */
  at?: string | null;
  /** When it started. Missing in old entries. */
  began?: string | null;
  /** When the first attempt started, in the newest of twenty entries: earlier ones are not stored. */
  first_began?: string | null;
  /** The worker or consumer that made it. */
  worker?: string | null;
  /** The code of the error. Missing without one. */
  code?: string | null;
}

/** A field and the reason it is invalid. */
export interface FieldError {
  /** The field, as a path such as `payload.items[0].id`. */
  field: string;
  /** Why its value is refused. */
  why: string;
}

/** The state of the hub. `queueDepth` and `oldestUndelivered` (in seconds) are those of the relay. */
export interface HealthView {
  /** `ok`, or `unavailable` while the database does not respond. */
  status: "ok" | "unavailable";
  /** The time of the check (ISO 8601). */
  timestamp: string;
  /** Whether the database responds. */
  database: "ok" | "unavailable";
  /** Messages of the relay that wait for a bot. Null while the database is unavailable. */
  queueDepth: number | null;
  /** The age of the oldest waiting message of the relay, in seconds. */
  oldestUndelivered: number | null;
  /** Accounts that are not disabled. */
  activeAccounts: number | null;
  /** The version of Pabal. */
  version: string;
}

/** The state of a token; for an invalid one only `active: false`. */
export interface IntrospectionView {
  /** Whether the token is valid now. If false, all other fields are missing. */
  active: boolean;
  /** The permissions of the token, separated by spaces. */
  scope?: string | null;
  /** The service that the token belongs to. */
  client_id?: string | null;
  /** The service that the token belongs to. */
  sub?: string | null;
  /** `Bearer` for an access token, `refresh_token` for a refresh token. */
  token_type?: string | null;
  /** When the token was issued, in epoch seconds. */
  iat?: number | null;
  /** When the token becomes valid, in epoch seconds. */
  nbf?: number | null;
  /** When the token expires, in epoch seconds. */
  exp?: number | null;
  /** The address of the hub that issued the token. */
  iss?: string | null;
  /** The audience of the token. */
  aud?: string | null;
  /** The id of the token. */
  jti?: string | null;
  /** The id of the grant. All tokens of a grant are revoked together. */
  family?: string | null;
}

export interface KakaoBot {
  /** The channel's id. `default` if it is missing. */
  id?: string | null;
}

export interface KakaoPayload {
  /** The message. Without a user it is refused. */
  userRequest: KakaoUserRequest;
  /** The bot of the channel. */
  bot?: KakaoBot | null;
  /** The skill's parameters. Secure images in `params` become `blocks` of the message. */
  action?: unknown;
}

export interface KakaoUser {
  /** The user's key, if the properties have none. */
  id?: string | null;
  /** Further keys of the user. */
  properties?: KakaoUserProperties | null;
}

export interface KakaoUserProperties {
  /** The user's key on the channel. */
  plusfriendUserKey?: string | null;
}

export interface KakaoUserRequest {
  /** Who wrote the message. */
  user?: KakaoUser | null;
  /** The text of the message. */
  utterance?: string | null;
  /** Where the answer can be sent once. Kakao sends it if the block has the callback option. */
  callbackUrl?: string | null;
  /** Identifies the request: a repeated one gets the first response again. */
  eventId?: string | null;
  /** Further parameters. Images in `media` become `blocks` of the message. */
  params?: unknown;
}

/** One attempt to send a notification. */
export interface NotificationAttempt {
  /** The number of the attempt, from 1. */
  attempt: number;
  /** The worker that made it. */
  worker: string | null;
  /** When it started. */
  started_at: string;
  /** When it ended. */
  ended_at: string;
  /** The result. `unknown`: the worker disappeared, and it may have been delivered. */
  outcome: "dead" | "done" | "retry" | "snooze" | "suppressed" | "unknown";
  /** The reason of the result. Null on success. */
  why: string | null;
}

/** The result of one item of a list: 202 accepted, 200 repeated key, or an error. */
export interface NotificationBatchItemView {
  /** 202 accepted, 200 repeated key, or the HTTP status of the error. */
  status: number;
  /** The id of the notification. Missing if it was refused. */
  id?: string | null;
  /** The state of the notification. Missing if it was refused. */
  state?: "failed" | "pending" | "sent" | "suppressed" | null;
  /** Why it is not sent. Missing otherwise. */
  reason?: "address_unhealthy" | "cancelled" | "category_off" | "dm_disabled" | "duplicate" | "exhausted" | "expired" | "no_transport" | "refused" | "storm" | "unknown" | "unrenderable" | null;
  /** The stable code of the error. Missing on success. */
  code?: string | null;
  /** What is wrong with this item. Missing on success. */
  detail?: string | null;
}

/**
 * A notification to one recipient through one channel. `payload` holds the template's variables.
 *
 *     `idempotency_key`: repeating the request with the same key returns the first notification. `dedupe_key`: at most one
 *     notification exists per key, with any content. `incident`: emergencies of one incident are sent once a minute.
 */
export interface NotificationBody {
  /** The channel: a Discord direct message, a guild's audit channel, or a toast in a dashboard. */
  recipient_type: "dashboard_toast" | "guild_audit_channel" | "user_dm";
  /** Who receives it: a Discord user id or, for `guild_audit_channel`, the id of the Discord channel. */
  recipient_id: string;
  /** The template, such as `payment.succeeded`. */
  template_key: string;
  /** The values of the template's variables. */
  payload?: Record<string, unknown>;
  /** The guild that the notification is about. */
  guild_id?: string | null;
  /** The language of the text, such as `ko` or `en-US`. */
  locale?: string | null;
  /** Do not send before this time. By default it is sent at once. */
  scheduled_at?: string | null;
  /** Do not send after this time. */
  expires_at?: string | null;
  /** Repeating the request with the same key returns the first notification. */
  idempotency_key?: string | null;
  /** At most one notification of this service exists per key, with any content. */
  dedupe_key?: string | null;
  /** The incident that an emergency belongs to. Each incident is sent once a minute. */
  incident?: string | null;
  /** Your own id for everything that belongs together, such as a request or an order. */
  correlation_id?: string | null;
}

/** A notification with its attempts and its trace. */
export interface NotificationDetailView {
  /** The id of the notification. */
  id: string;
  /** The channel: a Discord direct message, a guild's audit channel, or a toast in a dashboard. */
  recipient_type: "dashboard_toast" | "guild_audit_channel" | "user_dm";
  /** Who receives it: a Discord user id or, for `guild_audit_channel`, the id of the Discord channel. */
  recipient_id: string;
  /** The guild that the notification is about. */
  guild_id: string | null;
  /** The template, such as `payment.succeeded`. */
  template_key: string;
  /** The values of the template's variables. */
  payload: Record<string, unknown>;
  /** `pending`, `sent`, `suppressed` (not sent on purpose) or `failed`. */
  state: "failed" | "pending" | "sent" | "suppressed";
  /** Why it was not sent. Null otherwise. */
  reason: "address_unhealthy" | "cancelled" | "category_off" | "dm_disabled" | "duplicate" | "exhausted" | "expired" | "no_transport" | "refused" | "storm" | "unknown" | "unrenderable" | null;
  /** Why it is sent or not, step by step. */
  decision: string[];
  /** The order of sending: lower numbers first. */
  priority: number;
  /** The number of attempts so far. */
  attempt_count: number;
  /** The error of the last attempt. */
  last_error: string | null;
  /** It is not sent before this time. */
  scheduled_at: string;
  /** It is not sent after this time. */
  expires_at: string | null;
  /** When it was sent. Null before. */
  sent_at: string | null;
  /** When it reached its final state. Null before. */
  ended_at: string | null;
  /** When it was requested. */
  created_at: string;
  /** The language of the text, such as `ko` or `en-US`. */
  locale: string | null;
  /** The incident that an emergency belongs to. Each incident is sent once a minute. */
  incident: string | null;
  /** The event that caused it, through a rule. */
  event_id: string | null;
  /** The rule that requested it. */
  rule_id: string | null;
  /** The service that requested it, or that published the event. */
  source_service: string | null;
  /** Who requested it: a service, a rule or an operator. */
  requested_by: string;
  /** The key that makes repeated requests harmless: the first result is returned again. */
  idempotency_key: string | null;
  /** Your own id for everything that belongs together, such as a request or an order. */
  correlation_id: string | null;
  /** The failed notification that this one resends. */
  again_of: string | null;
  /** Every attempt to send it, the oldest first. */
  attempts: NotificationAttempt[];
  /** What happened to it, in order of time. */
  trace: TraceEntryView[];
}

export interface NotificationPage {
  /** The notifications. */
  items: NotificationView[];
  /** Where the next page starts: pass it as `cursor`. Null on the last page. */
  cursor: string | null;
}

/**
 * A notification. `decision` lists why it is sent or not, step by step; `reason` is why it was not sent.
 *
 *     `again_of` is the failed notification that this one resends.
 */
export interface NotificationView {
  /** The id of the notification. */
  id: string;
  /** The channel: a Discord direct message, a guild's audit channel, or a toast in a dashboard. */
  recipient_type: "dashboard_toast" | "guild_audit_channel" | "user_dm";
  /** Who receives it: a Discord user id or, for `guild_audit_channel`, the id of the Discord channel. */
  recipient_id: string;
  /** The guild that the notification is about. */
  guild_id: string | null;
  /** The template, such as `payment.succeeded`. */
  template_key: string;
  /** The values of the template's variables. */
  payload: Record<string, unknown>;
  /** `pending`, `sent`, `suppressed` (not sent on purpose) or `failed`. */
  state: "failed" | "pending" | "sent" | "suppressed";
  /** Why it was not sent. Null otherwise. */
  reason: "address_unhealthy" | "cancelled" | "category_off" | "dm_disabled" | "duplicate" | "exhausted" | "expired" | "no_transport" | "refused" | "storm" | "unknown" | "unrenderable" | null;
  /** Why it is sent or not, step by step. */
  decision: string[];
  /** The order of sending: lower numbers first. */
  priority: number;
  /** The number of attempts so far. */
  attempt_count: number;
  /** The error of the last attempt. */
  last_error: string | null;
  /** It is not sent before this time. */
  scheduled_at: string;
  /** It is not sent after this time. */
  expires_at: string | null;
  /** When it was sent. Null before. */
  sent_at: string | null;
  /** When it reached its final state. Null before. */
  ended_at: string | null;
  /** When it was requested. */
  created_at: string;
  /** The language of the text, such as `ko` or `en-US`. */
  locale: string | null;
  /** The incident that an emergency belongs to. Each incident is sent once a minute. */
  incident: string | null;
  /** The event that caused it, through a rule. */
  event_id: string | null;
  /** The rule that requested it. */
  rule_id: string | null;
  /** The service that requested it, or that published the event. */
  source_service: string | null;
  /** Who requested it: a service, a rule or an operator. */
  requested_by: string;
  /** The key that makes repeated requests harmless: the first result is returned again. */
  idempotency_key: string | null;
  /** Your own id for everything that belongs together, such as a request or an order. */
  correlation_id: string | null;
  /** The failed notification that this one resends. */
  again_of: string | null;
}

/** An RFC 6749 error. */
export interface OAuthProblem {
  /** The error code of RFC 6749, such as `invalid_grant`. */
  error: string;
  /** What went wrong, for people. */
  error_description: string;
}

/** An operator to add. Without a password, one is generated and shown in the response. */
export interface OperatorBody {
  /** The name to sign in with; case does not matter. */
  name: string;
  /** `viewer` reads, `admin` also changes things. */
  role?: "admin" | "viewer";
  /** The password. Without it, one is generated. */
  password?: string | null;
}

export interface OperatorPage {
  /** The operators. */
  items: OperatorView[];
  /** Always null: there is one page. */
  cursor?: string | null;
}

/** The new password. Without one, a password is generated and shown in the response. */
export interface OperatorPasswordBody {
  /** The new password. Without it, one is generated. */
  password?: string | null;
}

/** The new role. */
export interface OperatorPatchBody {
  /** `viewer` reads, `admin` also changes things. */
  role: "admin" | "viewer";
}

/** An operator. */
export interface OperatorView {
  /** The name to sign in with. */
  name: string;
  /** `viewer` reads, `admin` also changes things. */
  role: "admin" | "viewer";
  /** When it was created. */
  created_at: string;
  /** When signing in was disabled. Null while it is enabled. */
  disabled_at: string | null;
  /** When the operator last signed in. */
  last_signed_in_at: string | null;
}

/** An operator. `password` is shown only once, and only if it was generated. */
export interface OperatorWithPassword {
  /** The name to sign in with. */
  name: string;
  /** `viewer` reads, `admin` also changes things. */
  role: "admin" | "viewer";
  /** When it was created. */
  created_at: string;
  /** When signing in was disabled. Null while it is enabled. */
  disabled_at: string | null;
  /** When the operator last signed in. */
  last_signed_in_at: string | null;
  /** The generated password, shown only in this response. Null if the request had one. */
  password: string | null;
}

/** Lifetime of the code, and data of your own to store with it. */
export interface PairingCodeBody {
  /** The lifetime of the code, in seconds. */
  expiresInSeconds?: number;
  /** Data of your own that is stored with the code. */
  metadata?: Record<string, unknown> | null;
}

/** A pairing code. `expiresAt` is in epoch milliseconds. */
export interface PairingCodeView {
  /** What the user types in the chat to connect. */
  code: string;
  /** When the code expires, in epoch milliseconds. */
  expiresAt: number;
}

export interface PairingSuccessView {
  /** Always true. Errors have another status. */
  success: boolean;
}

/** One of your conversations. */
export interface PairingUserBody {
  /** The conversation: channel and user, separated by a colon. */
  conversationKey: string;
}

export interface PairingUserPage {
  /** The users, ordered by conversation key. */
  users: PairingUserView[];
  /** Where the next page starts: pass it as `cursor`. Null on the last page. */
  cursor: string | null;
  /** Whether there is a next page. */
  hasMore: boolean;
}

/** A user who is paired, waits for approval, or is blocked. */
export interface PairingUserView {
  /** The conversation: channel and user, separated by a colon. */
  conversationKey: string;
  /** The user's key on the channel. */
  plusfriendUserKey: string;
  /** `PAIRED`, `PENDING` (waits for approval) or `BLOCKED`. */
  state: "BLOCKED" | "PAIRED" | "PENDING" | "UNPAIRED";
  /** When the user connected. */
  pairedAt: string | null;
  /** When the user last wrote. */
  lastSeenAt: string | null;
}

/** How many rows belong to a person. `others`: preferences, addresses, links and tokens. */
export interface PersonDataCounts {
  /** The number of notifications. */
  requests: number;
  /** The number of toasts. */
  toasts: number;
  /** The number of preferences, addresses, links and tokens. */
  others: number;
}

/** Everything the hub stores about a person, as whole rows. `deeds` are the entries of the audit log. */
export interface PersonExportView {
  /** When the export was made. */
  exported_at: string;
  /** The person. Null if the hub knows only an id. */
  person: Record<string, unknown> | null;
  /** The person's preferences. Null for the defaults. */
  preferences: Record<string, unknown> | null;
  /** The notifications to the person. */
  requests: Record<string, unknown>[];
  /** The person's toasts. */
  toasts: Record<string, unknown>[];
  /** Where the person is reached on each channel. */
  addresses: Record<string, unknown>[];
  /** The person's tokens, without their secrets. */
  tokens: Record<string, unknown>[];
  /** The links that services assert. */
  service_links: Record<string, unknown>[];
  /** The links that were requested. */
  link_requests: Record<string, unknown>[];
  /** The entries of the audit log about the person. */
  deeds: Record<string, unknown>[];
}

/** A person's token, shown only once, and a URL that exchanges it once for a cookie in their browser. */
export interface PersonTokenView {
  /** The token, shown only here. Send it as `Authorization: Bearer …`. */
  token: string;
  /** Exchanges the token once for a cookie in the person's browser. */
  url: string;
  /** When the token expires: 15 minutes after it was issued. */
  expires_at: string;
}

/** The preferences to change. Omitted fields stay unchanged. */
export interface PreferencesBody {
  /** Whether the person receives direct messages. */
  dm_enabled?: boolean;
  /** Whether the person wants notifications about payments. */
  payment_notifications?: boolean;
  /** Whether the person wants notifications about recoveries. */
  recovery_notifications?: boolean;
  /** Whether the person wants notifications about attacks on their guilds. */
  antinuke_notifications?: boolean;
  /** Whether the person wants marketing. */
  marketing_notifications?: boolean;
  /** Whether marketing may be sent at night. Only the person gives this consent. */
  night_consent?: boolean;
  /** The person's language, such as `ko`. */
  locale?: string;
}

/** A person's preferences. `night_consent` allows marketing at night. `updated_at` is null for the defaults. */
export interface PreferencesView {
  /** The registered user, if known. */
  user_id: string | null;
  /** The Discord account, if known. */
  discord_id: string | null;
  /** Whether the person receives direct messages. */
  dm_enabled: boolean;
  /** Whether the person wants notifications about payments. */
  payment_notifications: boolean;
  /** Whether the person wants notifications about recoveries. */
  recovery_notifications: boolean;
  /** Whether the person wants notifications about attacks on their guilds. */
  antinuke_notifications: boolean;
  /** Whether the person wants marketing. */
  marketing_notifications: boolean;
  /** Whether marketing may be sent at night. Only the person gives this consent. */
  night_consent: boolean;
  /** The person's language, such as `ko`. */
  locale: string | null;
  /** When the preferences were last changed. Null for the defaults. */
  updated_at: string | null;
}

/** The result of a probe. */
export interface ProbeView {
  /** `ok` from the check of the process, `ready` from the check of the whole hub. */
  status: "ok" | "ready";
}

/** An RFC 9457 problem. Programs read `code`, which is stable; people read `detail`. */
export interface Problem {
  /** The HTTP status as text. */
  title: string;
  /** The HTTP status. */
  status: number;
  /** A stable code for programs, such as `not_found`. */
  code: string;
  /** What went wrong, for people. */
  detail: string;
  /** Always `about:blank`: the status and the code say what it is. */
  type?: string;
  /** Every invalid field of the request, for status 400. */
  mistakes?: FieldError[];
  /** The id of the request, as in the header `X-Request-Id` and in the log. */
  request_id?: string;
}

/** The recorded event. */
export interface PublishedEventView {
  /** The id of the event. */
  id: string;
  /** `pending`, or `completed` for a broadcast: its deliveries have states of their own. */
  status: "cancelled" | "completed" | "failed" | "pending" | "processing";
  /** When it was created. */
  created_at: string;
}

/** 200, or 409 if the lease is lost: the event was cancelled or settled, or another consumer has it. */
export interface ReceiptResultView {
  /** The receipt. */
  receipt: string;
  /** 200, or 409 if the lease is lost. */
  status: number;
  /** `lease_lost` with status 409. Otherwise missing. */
  code?: string | null;
}

export interface ReceiptResultsView {
  /** One result per receipt, in the order of the request. */
  results: ReceiptResultView[];
}

export interface RelayMessageAckView {
  /** The number of messages that are acknowledged now. */
  acknowledged: number;
  /** The number of ids in the request. */
  requested: number;
}

/** The ids of messages, and the new length of their leases in seconds from now. */
export interface RelayMessageExtendBody {
  /** The ids of messages. */
  messageIds: string[];
  /** The new length of the leases, in seconds from now. */
  lease?: number;
}

export interface RelayMessageExtendView {
  /** The number of messages whose lease was extended. */
  extended: number;
  /** The number of ids in the request. */
  requested: number;
}

/** The ids of messages. */
export interface RelayMessageIdsBody {
  /** The ids of messages. */
  messageIds: string[];
}

export interface RelayMessageNackView {
  /** The number of messages that are back in the queue. */
  returned: number;
  /** The number of ids in the request. */
  requested: number;
}

export interface RelayMessagePage {
  /** The messages, the oldest first. */
  messages: RelayMessageView[];
  /** The id of the last message. Null without messages. */
  cursor: string | null;
  /** Whether more messages may be waiting. */
  hasMore: boolean;
}

/** A fetched message. `payload` is a deprecated alias of `kakaoPayload`; `timestamp` is in epoch milliseconds. */
export interface RelayMessageView {
  /** The id of the message. Reply and acknowledge with it. */
  id: string;
  /** The conversation: channel and user, separated by a colon. */
  conversationKey: string;
  /** When the user sent it, in epoch milliseconds. */
  timestamp: number;
  /** Kakao's request, without the callback URL. */
  kakaoPayload: Record<string, unknown>;
  /** Deprecated: the same as `kakaoPayload`. */
  payload: Record<string, unknown>;
  /** The user, the text and the channel of the message. Messages with media also have `blocks`: a list of `kind`, `url` and `text`. */
  normalized: Record<string, unknown>;
  /** Until when a reply can be sent, in epoch milliseconds. Null without a callback. */
  callbackExpiresAt: number | null;
  /** How often the message was delivered, including this time. */
  deliveryCount: number;
  /** When the user sent it (RFC 3339). */
  createdAt: string;
}

/** An error of the relay: `error` and `message` hold the same text, for two kinds of clients. */
export interface RelayProblem {
  /** What went wrong, for people. */
  error: string;
  /** A stable code for programs, in upper case, such as `UNAUTHORIZED`. */
  code: string;
  /** The same text as `error`, for clients that read this field. */
  message: string;
}

/** A message id and a skill response, version 2.0, or a text. `conversationKey`, if given, must be the message's. */
export interface RelayReplyBody {
  /** The message to reply to. */
  messageId: string;
  /** The reply: a skill response of Kakao, version 2.0, or a text, which the hub splits into bubbles. */
  response: unknown;
  /** The conversation of the message. Optional; another one is refused. */
  conversationKey?: string | null;
}

/**
 * Kakao accepted the reply at `deliveredAt` (epoch milliseconds).
 *
 *     If `callbackSent` is false, the reply is stored and shown to the user later; `deliveredAt` is missing then.
 */
export interface RelayReplyView {
  /** Always true. Errors have another status. */
  success: boolean;
  /** The id of the reply. */
  outboundMessageId: string;
  /** Whether Kakao accepted the reply. If false, it is stored and shown to the user later. */
  callbackSent: boolean;
  /** When Kakao accepted the reply, in epoch milliseconds. Missing if it was stored. */
  deliveredAt?: number;
}

/** The status of a session and its user. */
export interface RelaySessionStatusView {
  /** The state of the session. */
  status: "disconnected" | "expired" | "paired" | "pending_pairing";
  /** When a user typed the code. Missing before. */
  pairedAt?: string | null;
  /** The user's key on the channel. Missing before a user typed the code. */
  kakaoUserId?: string | null;
  /** The account of the session. Missing before a user typed the code. */
  accountId?: string | null;
}

/** A new session. The token is shown only here. The code expires after `expiresIn` seconds. */
export interface RelaySessionView {
  /** The session's token, shown only here. Send it as `Authorization: Bearer …`. */
  sessionToken: string;
  /** What the user types in the chat to connect. */
  pairingCode: string;
  /** The lifetime of the pairing code, in seconds. */
  expiresIn: number;
  /** `pending_pairing`: no user has typed the code yet. */
  status: "disconnected" | "expired" | "paired" | "pending_pairing";
}

/** A stored notification: pending, or suppressed with a reason. */
export interface RequestedNotificationView {
  /** The id of the notification. */
  id: string;
  /** `pending`, `sent`, `suppressed` (not sent on purpose) or `failed`. */
  state: "failed" | "pending" | "sent" | "suppressed";
  /** Why it was not sent. Null otherwise. */
  reason: "address_unhealthy" | "cancelled" | "category_off" | "dm_disabled" | "duplicate" | "exhausted" | "expired" | "no_transport" | "refused" | "storm" | "unknown" | "unrenderable" | null;
  /** It is not sent before this time. */
  scheduled_at: string;
  /** When it was requested. */
  created_at: string;
}

/**
 * When an event matches the pattern, send the template to the recipients. `*` matches one part, at the end several.
 *
 *     `recipients` are paths into the payload, such as `user.discord_id`; a path through a list means every element.
 *     `variables` maps the template's variables to paths; by default the path is the variable's name.
 */
export interface RuleBody {
  /** The name of the rule. */
  name: string;
  /** The events that match: `*` stands for one part of the type, at the end for several. */
  event_pattern: string;
  /** The template, such as `payment.succeeded`. */
  template_key: string;
  /** Paths into the payload that name the recipients, such as `user.discord_id`. */
  recipients: string[];
  /** The channels to send through. */
  channels: ("dashboard_toast" | "guild_audit_channel" | "user_dm")[];
  /** Paths into the payload for the template's variables. By default the path is the variable's name. */
  variables?: Record<string, string>;
  /** The path of the guild's id in the payload. */
  guild_path?: string | null;
  /** The path of the incident in the payload. */
  incident_path?: string | null;
  /** Do not send later than this many seconds after the event. */
  expires_after_seconds?: number | null;
  /** Whether the rule applies. */
  is_active?: boolean;
}

export interface RulePage {
  /** The rules. */
  items: RuleView[];
  /** Where the next page starts: pass it as `cursor`. Null on the last page. */
  cursor: string | null;
}

/** The fields to change. Omitted fields stay unchanged. */
export interface RulePatchBody {
  /** The name of the rule. */
  name?: string;
  /** The events that match: `*` stands for one part of the type, at the end for several. */
  event_pattern?: string;
  /** The template, such as `payment.succeeded`. */
  template_key?: string;
  /** Paths into the payload that name the recipients, such as `user.discord_id`. */
  recipients?: string[];
  /** The channels to send through. */
  channels?: ("dashboard_toast" | "guild_audit_channel" | "user_dm")[];
  /** Paths into the payload for the template's variables. By default the path is the variable's name. */
  variables?: Record<string, string>;
  /** The path of the guild's id in the payload. */
  guild_path?: string | null;
  /** The path of the incident in the payload. */
  incident_path?: string | null;
  /** Do not send later than this many seconds after the event. */
  expires_after_seconds?: number | null;
  /** Whether the rule applies. */
  is_active?: boolean;
}

/** A rule. */
export interface RuleView {
  /** The id of the rule. */
  id: string;
  /** The name of the rule. */
  name: string;
  /** The events that match: `*` stands for one part of the type, at the end for several. */
  event_pattern: string;
  /** The template, such as `payment.succeeded`. */
  template_key: string;
  /** Paths into the payload that name the recipients, such as `user.discord_id`. */
  recipients: string[];
  /** The channels to send through. */
  channels: ("dashboard_toast" | "guild_audit_channel" | "user_dm")[];
  /** Paths into the payload for the template's variables. By default the path is the variable's name. */
  variables: Record<string, string>;
  /** The path of the guild's id in the payload. */
  guild_path: string | null;
  /** The path of the incident in the payload. */
  incident_path: string | null;
  /** Do not send later than this many seconds after the event. */
  expires_after_seconds: number | null;
  /** Whether the rule applies. */
  is_active: boolean;
  /** Who added it. */
  created_by: string;
  /** When it was created. */
  created_at: string;
  /** When it was last changed. */
  updated_at: string;
}

/** How long the previous secret stays valid. */
export interface SecretRotationBody {
  /** How long the previous secret stays valid, in seconds: 7 days by default. 0 revokes all previous secrets at once. */
  overlap_seconds?: number;
}

/** A service to add. Without patterns it may publish and receive every event type except the hub's. */
export interface ServiceBody {
  /** The name: 2 to 63 lower-case letters, digits and `_`, starting with a letter. */
  name: string;
  /** What its tokens may be granted: permissions, or the groups `read` and `write`. */
  permissions: ("events:consume" | "events:publish" | "events:read" | "hub:admin" | "hub:events" | "hub:manage" | "notifications:read" | "notifications:send" | "people:token" | "people:write" | "read" | "tokens:admin" | "tokens:introspect" | "write")[];
  /** What the service is for, in one line. */
  description?: string | null;
  /** The event types it may publish, such as `order.*`. Null for all but the hub's. */
  may_publish?: string[] | null;
  /** The event types it may receive, such as `billing.*`. Null for all but the hub's. */
  may_subscribe?: string[] | null;
}

/** A service with its valid secrets. */
export interface ServiceDetailView {
  /** The name of the service; also its `client_id`. */
  name: string;
  /** What the service is for. */
  description: string | null;
  /** What its tokens may be granted, with the groups `read` and `write`. */
  permissions: string[];
  /** The event types it may publish. Null for all but the hub's. */
  may_publish: string[] | null;
  /** The event types it may receive. Null for all but the hub's. */
  may_subscribe: string[] | null;
  /** Whether its secrets and tokens work. */
  is_active: boolean;
  /** When it was disabled. Null while it is active. */
  disabled_at: string | null;
  /** When it was created. */
  created_at: string;
  /** Its valid secrets, the newest first; at most two. */
  secrets: ServiceSecretView[];
}

/** A link that a service asserts. */
export interface ServiceLink {
  /** The service that asserts the link. */
  service_name: string;
  /** The Discord account. */
  discord_id: string;
  /** The registered user. */
  user_id: string;
  /** When it was created. */
  created_at: string;
}

/** The registered user of a Discord account. */
export interface ServiceLinkBody {
  /** The registered user. */
  user_id: string;
}

export interface ServicePage {
  /** The services. */
  items: ServiceView[];
  /** Where the next page starts: pass it as `cursor`. Null on the last page. */
  cursor: string | null;
}

/** The fields to change. Omitted fields stay unchanged. */
export interface ServicePatchBody {
  /** What its tokens may be granted: permissions, or the groups `read` and `write`. */
  permissions?: ("events:consume" | "events:publish" | "events:read" | "hub:admin" | "hub:events" | "hub:manage" | "notifications:read" | "notifications:send" | "people:token" | "people:write" | "read" | "tokens:admin" | "tokens:introspect" | "write")[];
  /** What the service is for, in one line. */
  description?: string | null;
  /** The event types it may publish, such as `order.*`. Null for all but the hub's. */
  may_publish?: string[] | null;
  /** The event types it may receive, such as `billing.*`. Null for all but the hub's. */
  may_subscribe?: string[] | null;
}

/** A valid secret, without the secret itself. */
export interface ServiceSecretView {
  /** The id of the secret. It can be logged: the id is not a secret. */
  id: string;
  /** When it was created. */
  created_at: string;
  /** When it stops working. Null for never. */
  expires_at: string | null;
}

/** A service. */
export interface ServiceView {
  /** The name of the service; also its `client_id`. */
  name: string;
  /** What the service is for. */
  description: string | null;
  /** What its tokens may be granted, with the groups `read` and `write`. */
  permissions: string[];
  /** The event types it may publish. Null for all but the hub's. */
  may_publish: string[] | null;
  /** The event types it may receive. Null for all but the hub's. */
  may_subscribe: string[] | null;
  /** Whether its secrets and tokens work. */
  is_active: boolean;
  /** When it was disabled. Null while it is active. */
  disabled_at: string | null;
  /** When it was created. */
  created_at: string;
}

/** A service with its new secret, which is shown only once. */
export interface ServiceWithSecret {
  /** The name of the service; also its `client_id`. */
  name: string;
  /** What the service is for. */
  description: string | null;
  /** What its tokens may be granted, with the groups `read` and `write`. */
  permissions: string[];
  /** The event types it may publish. Null for all but the hub's. */
  may_publish: string[] | null;
  /** The event types it may receive. Null for all but the hub's. */
  may_subscribe: string[] | null;
  /** Whether its secrets and tokens work. */
  is_active: boolean;
  /** When it was disabled. Null while it is active. */
  disabled_at: string | null;
  /** When it was created. */
  created_at: string;
  /** The name to request tokens with. */
  client_id: string;
  /** The secret to request tokens with. Shown only in this response. */
  client_secret: string;
}

/** A skill response, version 2.0: an immediate answer, or the promise of one through the callback. */
export interface SkillResponseView {
  /** The version of Kakao's skill format: `2.0`. */
  version: string;
  /** The answer to show. Missing if the answer follows through the callback. */
  template?: Record<string, unknown> | null;
  /** True if the answer follows through the callback. */
  useCallback?: boolean | null;
  /** The text that Kakao shows while the user waits. */
  data?: Record<string, unknown> | null;
}

/** A ticket that opens one stream of toasts, shown only once. */
export interface StreamTicketView {
  /** The ticket, shown only here. Send it once, as `?ticket=…`, to the stream of toasts. */
  ticket: string;
  /** When the ticket expires: 30 seconds after it was issued. */
  expires_at: string;
}

/**
 * A subscription, without its secret. `program` is the program whose handlers receive its events, else empty.
 *
 *     `open_until`: the receiver keeps failing, and nothing is sent before this time.
 */
export interface Subscription {
  /** The id of the subscription. */
  id: string;
  /** The service that receives the events. */
  service_name: string;
  /** How events arrive: `push` to a URL, `pull` by claims, `handler` in `pabal work`, `rule` as notifications. */
  mode: "handler" | "pull" | "push" | "rule";
  /** The program whose handlers receive the events. Empty for other modes. */
  program: string;
  /** The event types. `*` matches anything. */
  event_types: string[];
  /** What the subscription is for. */
  description: string | null;
  /** Where events are pushed. Null without push. */
  url: string | null;
  /** How long a push may take, in seconds. */
  timeout_seconds: number;
  /** Seconds before each retry of a push. Null for the default schedule. */
  retry_schedule: number[] | null;
  /** What a failing push does to later events of its ordering key. */
  on_blocked: "dead_letter" | "hold";
  /** When it was paused. Null while it is active. */
  paused_at: string | null;
  /** When the hub disabled it, for example after a 410. Null while it is active. */
  disabled_at: string | null;
  /** Why the hub disabled it. */
  disabled_reason: string | null;
  /** Failed pushes since the last success. */
  failures: number;
  /** The receiver keeps failing: nothing is sent before this time. Null if it works. */
  open_until: string | null;
  /** Until when pushes also carry a signature with the previous secret. */
  previous_secret_until: string | null;
  /** When it was created. */
  created_at: string;
  /** When it was last changed. */
  updated_at: string;
}

/**
 * The event types to receive; `*` matches anything. With `url` events are pushed, without it they are pulled.
 *
 *     `retry_schedule` are the seconds before each retry of a push, by default 5, 30, 120, 600, 3600, 14400 and 43200.
 *     With `on_blocked` = `hold`, a failing push holds back later events of its ordering key for the whole schedule; by
 *     default it becomes a dead letter after ten minutes.
 */
export interface SubscriptionBody {
  /** The event types to receive. `*` matches anything, as in `order.*`. */
  event_types: string[];
  /** The service that receives the events. By default the service of the token; others need `hub:admin`. */
  service_name?: string | null;
  /** Where to push events (HTTPS). Without it, events are pulled. */
  url?: string | null;
  /** What the subscription is for. */
  description?: string | null;
  /** How long a push may take, in seconds. */
  timeout_seconds?: number;
  /** Seconds before each retry of a push. Default: 5, 30, 120, 600, 3600, 14400, 43200. */
  retry_schedule?: number[] | null;
  /** `dead_letter`: a push that blocks its ordering key becomes a dead letter after ten minutes. `hold`: it holds back later events of the key for the whole schedule. */
  on_blocked?: "dead_letter" | "hold";
}

export interface SubscriptionPage {
  /** The subscriptions. */
  items: Subscription[];
  /** Where the next page starts: pass it as `cursor`. Null on the last page. */
  cursor: string | null;
}

/** The fields to change. */
export interface SubscriptionPatchBody {
  /** The event types to receive. `*` matches anything, as in `order.*`. */
  event_types?: string[];
  /** Where to push events (HTTPS). Without it, events are pulled. */
  url?: string;
  /** What the subscription is for. */
  description?: string | null;
  /** How long a push may take, in seconds. */
  timeout_seconds?: number;
  /** Seconds before each retry of a push. Default: 5, 30, 120, 600, 3600, 14400, 43200. */
  retry_schedule?: number[] | null;
  /** `dead_letter`: a push that blocks its ordering key becomes a dead letter after ten minutes. `hold`: it holds back later events of the key for the whole schedule. */
  on_blocked?: "dead_letter" | "hold";
}

/** The result of a test push. `delivered`: the receiver returned a 2xx status. */
export interface SubscriptionTestView {
  /** Whether the receiver returned a 2xx status. */
  delivered: boolean;
  /** Why the test failed. Null on success. */
  error?: string | null;
  /** The code of the error. Null on success. */
  error_code?: string | null;
}

/** A subscription with the secret that verifies its pushes. The secret is shown only once; null for pull. */
export interface SubscriptionWithSecret {
  /** The id of the subscription. */
  id: string;
  /** The service that receives the events. */
  service_name: string;
  /** How events arrive: `push` to a URL, `pull` by claims, `handler` in `pabal work`, `rule` as notifications. */
  mode: "handler" | "pull" | "push" | "rule";
  /** The program whose handlers receive the events. Empty for other modes. */
  program: string;
  /** The event types. `*` matches anything. */
  event_types: string[];
  /** What the subscription is for. */
  description: string | null;
  /** Where events are pushed. Null without push. */
  url: string | null;
  /** How long a push may take, in seconds. */
  timeout_seconds: number;
  /** Seconds before each retry of a push. Null for the default schedule. */
  retry_schedule: number[] | null;
  /** What a failing push does to later events of its ordering key. */
  on_blocked: "dead_letter" | "hold";
  /** When it was paused. Null while it is active. */
  paused_at: string | null;
  /** When the hub disabled it, for example after a 410. Null while it is active. */
  disabled_at: string | null;
  /** Why the hub disabled it. */
  disabled_reason: string | null;
  /** Failed pushes since the last success. */
  failures: number;
  /** The receiver keeps failing: nothing is sent before this time. Null if it works. */
  open_until: string | null;
  /** Until when pushes also carry a signature with the previous secret. */
  previous_secret_until: string | null;
  /** When it was created. */
  created_at: string;
  /** When it was last changed. */
  updated_at: string;
  /** Verifies pushes. Shown only in this response; null for pull. */
  secret: string | null;
}

/** A page of toasts, the newest first. A stream that starts `after` the number `last` misses nothing. */
export interface ToastPage {
  /** The toasts, the newest first. */
  items: ToastView[];
  /** Where the next page starts: pass it as `cursor`. Null on the last page. */
  cursor: string | null;
  /** The number of unread toasts. */
  unread: number;
  /** The number of the last change. A stream that starts `after` it misses nothing. */
  last: number;
}

/** A toast. Title and body are plain text in the language of `locale`. */
export interface ToastView {
  /** The id of the toast. */
  id: string;
  /** What the toast is about. */
  category: "antinuke" | "marketing" | "payment" | "recovery" | "system";
  /** How urgent it is. */
  criticality: "emergency" | "important" | "normal";
  /** The language of the text, such as `ko` or `en-US`. */
  locale: string;
  /** The title, as plain text. */
  title: string | null;
  /** The text, as plain text. */
  body: string;
  /** What the person did with it. */
  state: "archived" | "read" | "seen" | "unseen";
  /** When it was created. */
  created_at: string;
  /** When it was shown on a screen. */
  seen_at: string | null;
  /** When it was read. */
  read_at: string | null;
  /** When it was archived. */
  archived_at: string | null;
}

/** How many toasts were marked as read. */
export interface ToastsReadView {
  /** The number of toasts that were unread. */
  marked: number;
}

/** `scope` lists the requested permissions, separated by spaces; `refresh=false` omits the refresh token. */
export interface TokenGrantForm {
  /** The service's name, if it is not in the Authorization header. */
  client_id?: string;
  /** The service's secret, if it is not in the Authorization header. */
  client_secret?: string;
  /** `client_credentials` for new tokens, `refresh_token` to refresh them. */
  grant_type: "client_credentials" | "refresh_token";
  /** The requested permissions, separated by spaces. By default all permissions of the service. */
  scope?: string;
  /** `false` omits the refresh token. */
  refresh?: "true" | "false";
  /** The refresh token, for the grant type `refresh_token`. */
  refresh_token?: string;
}

/** A token, with an optional hint of its type. */
export interface TokenLookupForm {
  /** The service's name, if it is not in the Authorization header. */
  client_id?: string;
  /** The service's secret, if it is not in the Authorization header. */
  client_secret?: string;
  /** The access token or refresh token. */
  token: string;
  /** `access_token` or `refresh_token`. The hub recognises both without it. */
  token_type_hint?: string;
}

/** A pair of tokens; `expires_in` is in seconds. */
export interface TokenPairView {
  /** The access token. Send it as `Authorization: Bearer …`. */
  access_token: string;
  /** The lifetime of the access token, in seconds. */
  expires_in: number;
  /** The granted permissions, separated by spaces. */
  scope: string;
  /** Always `Bearer`. */
  token_type?: string;
  /** The refresh token, which can be used once. Missing if it was not requested. */
  refresh_token?: string | null;
}

/** One step in the life of an event or a notification, as a sentence. */
export interface TraceEntryView {
  /** When it happened. */
  at: string;
  /** What happened, as a stable word for programs. */
  kind: "accepted" | "acked" | "answered" | "archived" | "arrived" | "asked" | "cancelled" | "carried" | "claimed" | "completed" | "decided" | "deed" | "died" | "expired" | "failed" | "handed" | "late" | "owed" | "published" | "refused" | "replayed" | "resolved" | "seen" | "sent" | "shown" | "snoozed" | "stalled" | "suppressed" | "unknown" | "unseen";
  /** What happened, as a sentence. */
  says: string;
}

/** Every endpoint: its parameters, its body and its response. */
export interface Endpoints {
  /** Get the state of the hub: 200 if it works, 503 if its database is unavailable. */
  "GET /health": {
    response: HealthView;
  };
  /** Check that the process responds. Checks nothing else. */
  "GET /healthz": {
    response: ProbeView;
  };
  /** Check that the database responds, its schema fits and the process is not stopping; 503 otherwise. */
  "GET /readyz": {
    response: ProbeView;
  };
  /** Get all metrics in the Prometheus text format. Queue gauges keep their last value while the database is down. */
  "GET /metrics": {
    response: string;
  };
  /** Issue tokens to a service, or refresh them. */
  "POST /oauth/token": {
    body: TokenGrantForm;
    response: TokenPairView;
  };
  /** Revoke one of your tokens, or any token with the permission `tokens:admin`. */
  "POST /oauth/revoke": {
    body: TokenLookupForm;
    response: void;
  };
  /** Get the state of a token. Always read from the database, never from a cache. */
  "POST /oauth/introspect": {
    body: TokenLookupForm;
    response: IntrospectionView;
  };
  /** Get the OAuth server metadata (RFC 8414). */
  "GET /.well-known/oauth-authorization-server": {
    response: Record<string, unknown>;
  };
  /** Get the public keys that verify access tokens, including the next one (RFC 7517). */
  "GET /.well-known/jwks.json": {
    response: Record<string, unknown>;
  };
  /** List the services by name. */
  "GET /v1/services": {
    query: { cursor?: string | null; limit?: number };
    response: ServicePage;
  };
  /** Add a service. Its secret is shown only in this response. */
  "POST /v1/services": {
    body: ServiceBody;
    response: ServiceWithSecret;
  };
  /** Get a service with its valid secrets. */
  "GET /v1/services/{name}": {
    path: { name: string };
    response: ServiceDetailView;
  };
  /** Change a service. New rights apply at once to the tokens and subscriptions that it already has. */
  "PATCH /v1/services/{name}": {
    path: { name: string };
    body: ServicePatchBody;
    response: ServiceView;
  };
  /** Remove a service that has no events, notifications, subscriptions, database roles, links and tokens. */
  "DELETE /v1/services/{name}": {
    path: { name: string };
    response: void;
  };
  /** Disable a service. Its secrets and tokens are refused at once. */
  "POST /v1/services/{name}/disable": {
    path: { name: string };
    response: ServiceView;
  };
  /** Enable a disabled service. Its unexpired secrets and tokens work again. */
  "POST /v1/services/{name}/enable": {
    path: { name: string };
    response: ServiceView;
  };
  /** Create a new secret, which is shown only in this response. The previous one stays valid during the overlap. */
  "POST /v1/services/{name}/rotate-secret": {
    path: { name: string };
    body: SecretRotationBody;
    response: ServiceWithSecret;
  };
  /** List the operators by name, on one page. */
  "GET /v1/operators": {
    response: OperatorPage;
  };
  /** Add an operator, who may sign in to the console at once. */
  "POST /v1/operators": {
    body: OperatorBody;
    response: OperatorWithPassword;
  };
  /** Get an operator. */
  "GET /v1/operators/{name}": {
    path: { name: string };
    response: OperatorView;
  };
  /** Change an operator's role, from their next request on. The last enabled admin stays one. */
  "PATCH /v1/operators/{name}": {
    path: { name: string };
    body: OperatorPatchBody;
    response: OperatorView;
  };
  /** Remove an operator and end their sessions. The audit log keeps the name. The last enabled admin stays. */
  "DELETE /v1/operators/{name}": {
    path: { name: string };
    response: void;
  };
  /** Change an operator's password and end their sessions. */
  "POST /v1/operators/{name}/password": {
    path: { name: string };
    body: OperatorPasswordBody;
    response: OperatorWithPassword;
  };
  /** Disable an operator and end their sessions. The last enabled admin stays enabled. */
  "POST /v1/operators/{name}/disable": {
    path: { name: string };
    response: OperatorView;
  };
  /** Enable a disabled operator. The password is unchanged. */
  "POST /v1/operators/{name}/enable": {
    path: { name: string };
    response: OperatorView;
  };
  /** Publish an event. Returns once it is durable: 202, or 200 if it was already published with this key. */
  "POST /v1/queue/events": {
    body: EventBody;
    response: PublishedEventView;
  };
  /** List the events that the service sent or received, the newest first. With `hub:admin`: of all services. */
  "GET /v1/queue/events": {
    query: { cursor?: string | null; limit?: number; status?: "cancelled" | "completed" | "failed" | "pending" | "processing" | null; type?: string | null; source?: string | null; target?: string | null };
    response: EventPage;
  };
  /** Publish up to 1,000 events. Returns one result per event; an invalid event does not affect the others. */
  "POST /v1/queue/events/batch": {
    body: EventBatchBody;
    response: EventBatchView;
  };
  /** Get an event with its failed attempts, deliveries, dead letters and trace. */
  "GET /v1/queue/events/{id}": {
    path: { id: string };
    response: EventDetailView;
  };
  /** Cancel an event. A consumer that already holds it is told at its next heartbeat. 409 if it has finished. */
  "POST /v1/queue/events/{id}/cancel": {
    path: { id: string };
    response: CancelledEventsView;
  };
  /** Claim due events of the service, the highest priority first. With `wait`, waits for the first one. */
  "POST /v1/queue/claim": {
    body: EventClaimBody;
    response: ClaimedEventsView;
  };
  /** Acknowledge events that were handled. */
  "POST /v1/queue/ack": {
    body: EventAckBody;
    response: ReceiptResultsView;
  };
  /** Report failed events. They are retried later; after the last attempt they become dead letters. */
  "POST /v1/queue/nack": {
    body: EventNackBody;
    response: ReceiptResultsView;
  };
  /** Extend the lease of events (heartbeat). Reports receipts whose lease is lost. */
  "POST /v1/queue/extend": {
    body: EventExtendBody;
    response: ReceiptResultsView;
  };
  /** List the subscriptions of the service, the oldest first. With `hub:admin`: of all services. */
  "GET /v1/subscriptions": {
    query: { cursor?: string | null; limit?: number; service?: string | null };
    response: SubscriptionPage;
  };
  /** Subscribe to events. The secret that verifies pushes is shown only in this response. */
  "POST /v1/subscriptions": {
    body: SubscriptionBody;
    response: SubscriptionWithSecret;
  };
  /** Get a subscription with the state of its receiver. */
  "GET /v1/subscriptions/{id}": {
    path: { id: string };
    response: Subscription;
  };
  /** Change a subscription. Applies from the next event on. */
  "PATCH /v1/subscriptions/{id}": {
    path: { id: string };
    body: SubscriptionPatchBody;
    response: Subscription;
  };
  /** Remove a subscription. Deliveries that are queued already stay and can be pulled. */
  "DELETE /v1/subscriptions/{id}": {
    path: { id: string };
    response: void;
  };
  /** Pause a subscription. New events wait; pushes already sent arrive. */
  "POST /v1/subscriptions/{id}/pause": {
    path: { id: string };
    response: Subscription;
  };
  /** Resume a subscription that is paused, disabled after a 410, or held back because its receiver fails. */
  "POST /v1/subscriptions/{id}/resume": {
    path: { id: string };
    response: Subscription;
  };
  /** Send a signed `pabal.test` event now and return the result. Does not affect the subscription. 10 per minute. */
  "POST /v1/subscriptions/{id}/test": {
    path: { id: string };
    response: SubscriptionTestView;
  };
  /** Rotate the secret. The new one is shown only in this response; the previous one also signs for 24 hours. */
  "POST /v1/subscriptions/{id}/rotate-secret": {
    path: { id: string };
    response: SubscriptionWithSecret;
  };
  /** List dead letters, the newest first. `state` defaults to `unresolved`. */
  "GET /v1/dead-letters": {
    query: { type?: string | null; source?: string | null; target?: string | null; signature?: string | null; error_code?: string | null; since?: string | null; until?: string | null; state?: "all" | "resolved" | "unresolved"; cursor?: string | null; limit?: number };
    response: DeadLetterPage;
  };
  /** Group dead letters by error signature, the largest group first. */
  "GET /v1/dead-letters/groups": {
    query: { type?: string | null; source?: string | null; target?: string | null; signature?: string | null; error_code?: string | null; since?: string | null; until?: string | null; state?: "all" | "resolved" | "unresolved" };
    response: DeadLetterGroupPage;
  };
  /** Replay all unresolved dead letters that match, in batches. Skips events that fail during the replay. */
  "POST /v1/dead-letters/replay": {
    body: DeadLetterReplayBody;
    response: DeadLetterBulkReplayView;
  };
  /** Get a dead letter with its payload, stack trace and the error of each attempt. */
  "GET /v1/dead-letters/{id}": {
    path: { id: string };
    response: DeadLetterDetail;
  };
  /** Replay a dead letter: queue its event again, with all attempts. 409 if it was already replayed or resolved. */
  "POST /v1/dead-letters/{id}/replay": {
    path: { id: string };
    response: DeadLetterReplayView;
  };
  /** Resolve a dead letter with a note. Its event does not change. 409 if it was already replayed or resolved. */
  "POST /v1/dead-letters/{id}/resolve": {
    path: { id: string };
    body: DeadLetterResolveBody;
    response: DeadLetterDetail;
  };
  /** Receive a KakaoTalk message. Kakao calls this for every message a user sends. */
  "POST /kakao/webhook": {
    body: KakaoPayload;
    response: SkillResponseView;
  };
  /** Receive a KakaoTalk message. Kakao calls this for every message a user sends. */
  "POST /kakao-talkchannel/webhook": {
    body: KakaoPayload;
    response: SkillResponseView;
  };
  /** Create a session. A user connects by sending its code in the chat within five minutes. Needs no body. */
  "POST /v1/sessions/create": {
    response: RelaySessionView;
  };
  /** Get the status of a session: pending, paired, expired, or disconnected after its last user left. */
  "GET /v1/sessions/{token}/status": {
    path: { token: string };
    response: RelaySessionStatusView;
  };
  /** Receive messages as server-sent events. */
  "GET /v1/events": {
    query: { token?: string | null };
    response: string;
  };
  /** Fetch messages, oldest first. With `wait`, the request waits for the first message. */
  "GET /openclaw/messages": {
    query: { limit?: number; wait?: number; lease?: number; cursor?: string | null; received?: string | null };
    response: RelayMessagePage;
  };
  /** Acknowledge messages. A reply may still follow. */
  "POST /openclaw/messages/ack": {
    body: RelayMessageIdsBody;
    response: RelayMessageAckView;
  };
  /** Return messages to the queue. They are delivered again at once. */
  "POST /openclaw/messages/nack": {
    body: RelayMessageIdsBody;
    response: RelayMessageNackView;
  };
  /** Extend the leases of messages. */
  "POST /openclaw/messages/extend": {
    body: RelayMessageExtendBody;
    response: RelayMessageExtendView;
  };
  /** Fetch messages, oldest first. With `wait`, the request waits for the first message. */
  "GET /v1/messages": {
    query: { limit?: number; wait?: number; lease?: number; cursor?: string | null; received?: string | null };
    response: RelayMessagePage;
  };
  /** Acknowledge messages. A reply may still follow. */
  "POST /v1/messages/ack": {
    body: RelayMessageIdsBody;
    response: RelayMessageAckView;
  };
  /** Return messages to the queue. They are delivered again at once. */
  "POST /v1/messages/nack": {
    body: RelayMessageIdsBody;
    response: RelayMessageNackView;
  };
  /** Extend the leases of messages. */
  "POST /v1/messages/extend": {
    body: RelayMessageExtendBody;
    response: RelayMessageExtendView;
  };
  /** Create a pairing code that connects one user to this account. An account has at most five unused codes. */
  "POST /openclaw/pairing/generate": {
    body: PairingCodeBody;
    response: PairingCodeView;
  };
  /** List users of this account: paired, waiting for approval, or blocked. Ordered by conversation key. */
  "GET /openclaw/pairing/list": {
    query: { cursor?: string | null; limit?: number };
    response: PairingUserPage;
  };
  /** Unpair a user. Their unanswered messages are cancelled. */
  "POST /openclaw/pairing/unpair": {
    body: PairingUserBody;
    response: PairingSuccessView;
  };
  /** Block a user. Their messages are refused, and they cannot pair again until unblocked. */
  "POST /openclaw/pairing/block": {
    body: PairingUserBody;
    response: PairingSuccessView;
  };
  /** Unblock a user. A user who was paired is paired again. Returns 409 for a block by an operator. */
  "POST /openclaw/pairing/unblock": {
    body: PairingUserBody;
    response: PairingSuccessView;
  };
  /** Approve a user who redeemed a code and waits for approval. */
  "POST /openclaw/pairing/approve": {
    body: PairingUserBody;
    response: PairingSuccessView;
  };
  /** Deny a user who waits for approval. */
  "POST /openclaw/pairing/deny": {
    body: PairingUserBody;
    response: PairingSuccessView;
  };
  /** Create a pairing code that connects one user to this account. An account has at most five unused codes. */
  "POST /v1/pairing/generate": {
    body: PairingCodeBody;
    response: PairingCodeView;
  };
  /** List users of this account: paired, waiting for approval, or blocked. Ordered by conversation key. */
  "GET /v1/pairing/list": {
    query: { cursor?: string | null; limit?: number };
    response: PairingUserPage;
  };
  /** Unpair a user. Their unanswered messages are cancelled. */
  "POST /v1/pairing/unpair": {
    body: PairingUserBody;
    response: PairingSuccessView;
  };
  /** Block a user. Their messages are refused, and they cannot pair again until unblocked. */
  "POST /v1/pairing/block": {
    body: PairingUserBody;
    response: PairingSuccessView;
  };
  /** Unblock a user. A user who was paired is paired again. Returns 409 for a block by an operator. */
  "POST /v1/pairing/unblock": {
    body: PairingUserBody;
    response: PairingSuccessView;
  };
  /** Approve a user who redeemed a code and waits for approval. */
  "POST /v1/pairing/approve": {
    body: PairingUserBody;
    response: PairingSuccessView;
  };
  /** Deny a user who waits for approval. */
  "POST /v1/pairing/deny": {
    body: PairingUserBody;
    response: PairingSuccessView;
  };
  /** Reply to a message through its Kakao callback, which can be used once. */
  "POST /openclaw/reply": {
    body: RelayReplyBody;
    response: RelayReplyView;
  };
  /** Reply to a message through its Kakao callback, which can be used once. */
  "POST /v1/reply": {
    body: RelayReplyBody;
    response: RelayReplyView;
  };
  /** Request a notification, or a list of up to 500. */
  "POST /v1/notifications": {
    body: NotificationBody | NotificationBody[];
    response: NotificationBatchItemView[] | RequestedNotificationView;
  };
  /** List the service's notifications, and those that rules made of its events, the newest first. */
  "GET /v1/notifications": {
    query: { cursor?: string | null; limit?: number; recipient?: string | null; state?: "failed" | "pending" | "sent" | "suppressed" | null; template?: string | null };
    response: NotificationPage;
  };
  /** Get a notification with its decision, attempts and trace. */
  "GET /v1/notifications/{id}": {
    path: { id: string };
    response: NotificationDetailView;
  };
  /** Cancel a notification. Returns 409 if it has ended or is being sent. */
  "POST /v1/notifications/{id}/cancel": {
    path: { id: string };
    response: NotificationView;
  };
  /** List the rules, the oldest first. */
  "GET /v1/notification-rules": {
    query: { cursor?: string | null; limit?: number };
    response: RulePage;
  };
  /** Add a rule. It applies to events that are published from now on. */
  "POST /v1/notification-rules": {
    body: RuleBody;
    response: RuleView;
  };
  /** Get a rule. */
  "GET /v1/notification-rules/{id}": {
    path: { id: string };
    response: RuleView;
  };
  /** Change a rule. The change applies from the next event on. */
  "PATCH /v1/notification-rules/{id}": {
    path: { id: string };
    body: RulePatchBody;
    response: RuleView;
  };
  /** Remove a rule. Notifications it has requested are still sent. */
  "DELETE /v1/notification-rules/{id}": {
    path: { id: string };
    response: void;
  };
  /** Name the registered user of a Discord account, as far as this service knows. */
  "PUT /v1/people/{id}/user": {
    path: { id: string };
    body: ServiceLinkBody;
    response: ServiceLink;
  };
  /** Withdraw the link that this service asserted for a Discord account. */
  "DELETE /v1/people/{id}/user": {
    path: { id: string };
    response: void;
  };
  /** Issue a token for a person, valid for 15 minutes. It gives access to the person's toasts and preferences. */
  "POST /v1/people/{id}/token": {
    path: { id: string };
    response: PersonTokenView;
  };
  /** Export everything the hub stores about a person as one document. The export is recorded in the audit log. */
  "GET /v1/people/{id}/export": {
    path: { id: string };
    response: PersonExportView;
  };
  /** Erase everything the hub stores about a person, by their Discord id. Pending notifications are not sent. */
  "DELETE /v1/people/{id}": {
    path: { id: string };
    response: PersonDataCounts;
  };
  /** Get a person's preferences, by Discord id or by the id of a registered user. By default everything is on. */
  "GET /v1/preferences/{user_id}": {
    path: { user_id: string };
    response: PreferencesView;
  };
  /** Change a person's preferences. They also apply to notifications that are requested but not sent yet. */
  "PUT /v1/preferences/{user_id}": {
    path: { user_id: string };
    body: PreferencesBody;
    response: PreferencesView;
  };
  /** List the person's toasts, with the number of unread ones. */
  "GET /v1/toasts": {
    query: { cursor?: string | null; limit?: number; archived?: boolean };
    response: ToastPage;
  };
  /** Issue a ticket for `GET /v1/toasts/stream`, which a browser's EventSource can send in the query. */
  "POST /v1/toasts/ticket": {
    response: StreamTicketView;
  };
  /** Mark all toasts of the inbox as read. */
  "POST /v1/toasts/read": {
    response: ToastsReadView;
  };
  /** Stream every change of the person's toasts as server-sent events. */
  "GET /v1/toasts/stream": {
    query: { after?: number | null; ticket?: string | null };
    response: string;
  };
  /** Stream every change of the person's toasts as server-sent events. */
  "GET /me/stream": {
    query: { after?: number | null; ticket?: string | null };
    response: string;
  };
  /** Mark a toast as seen: it was shown on a screen. */
  "POST /v1/toasts/{id}/seen": {
    path: { id: string };
    response: ToastView;
  };
  /** Mark a toast as read. */
  "POST /v1/toasts/{id}/read": {
    path: { id: string };
    response: ToastView;
  };
  /** Archive a toast. */
  "POST /v1/toasts/{id}/archive": {
    path: { id: string };
    response: ToastView;
  };
  /** Get this API as an OpenAPI 3.1 document. */
  "GET /openapi.json": {
    response: Record<string, unknown>;
  };
  /** Get this API as a web page. */
  "GET /docs": {
    response: string;
  };
}
