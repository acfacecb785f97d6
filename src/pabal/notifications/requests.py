"""Request notifications: check, decide and insert any number of them in the caller's transaction.

A notification that preferences suppress is inserted with its reason, so that it can be explained later.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, assert_never
from uuid import UUID

import msgspec

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, FieldError, Invalid, PabalError, RequestError
from pabal.core.ids import new_id
from pabal.db.doorbell.channels import Channel
from pabal.db.errors import CheckViolation, ForeignKeyViolation, RetryableError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.limits import RateLimit
from pabal.notifications.decision.decide import (
    DecisionStep,
    DeliveryDecision,
    NotificationChannel,
    RecipientProfile,
    SendLater,
    SendNow,
    Suppress,
    decide_delivery,
    is_urgent,
)
from pabal.notifications.notifications import Notification, NotificationAccess, find_notification
from pabal.notifications.people.preferences import load_recipient_profiles
from pabal.notifications.recipient_forms import LOCALE_PATTERN, LOCALE_RULE, RECIPIENT_ID_RULE, RECIPIENT_PATTERN
from pabal.notifications.states import NotificationReason, NotificationState
from pabal.notifications.templates.template import Template

Q = load_queries(__file__)

NOTIFICATION_LIMIT_PERIOD = timedelta(minutes=1)
MAX_PAYLOAD_BYTES = 65_536
MAX_KEY_LENGTH = 255
GUILD_CONSTRAINT = "requests_guild_id_fkey"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationDraft:
    """A notification to request. `source` is the requesting service, whose keys are its own. `again_of` is resent."""

    channel: NotificationChannel
    recipient: str
    template: Template
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    guild: UUID | None = None
    locale: str | None = None
    scheduled_at: datetime | None = None
    rate_limited_until: datetime | None = None
    """When the publisher's rate limit allows it; None if it does not have to wait."""
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    dedupe_key: str | None = None
    incident: str | None = None
    event: UUID | None = None
    rule: UUID | None = None
    source: str | None = None
    correlation_id: str | None = None
    again_of: UUID | None = None

    @property
    def template_payload(self) -> dict[str, Any]:
        """The part of the payload that the template uses. The rest is not stored."""
        return {name: self.payload[name] for name in self.template.variables if name in self.payload}

    @property
    def stored_dedupe_key(self) -> str | None:
        """The dedupe key with its source, so that keys of different services do not collide."""
        return None if self.dedupe_key is None else f"{self.source or ''}:{self.dedupe_key}"

    @property
    def urgent(self) -> bool:
        return is_urgent(self.template.category, self.template.criticality)


@dataclass(frozen=True, slots=True)
class RequestedNotification:
    """A stored notification. `repeated` if its key was used before: then it is the first one."""

    id: UUID
    state: NotificationState
    reason: NotificationReason | None
    scheduled_at: datetime
    created_at: datetime
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class InsertedNotification:
    id: UUID
    state: NotificationState
    reason: NotificationReason | None
    scheduled_at: datetime
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ExistingNotification:
    """The first notification with a key that was used before. Its fields are None if it was just deleted."""

    draft_id: UUID
    id: UUID | None
    state: NotificationState | None
    reason: NotificationReason | None
    scheduled_at: datetime | None
    created_at: datetime | None
    is_same_content: bool


async def request_notifications(
    tx: Tx, drafts: Sequence[NotificationDraft], actor: Actor
) -> list[RequestedNotification]:
    """Request all of these or none. Raises the first error."""
    results: list[RequestedNotification] = []
    for result in await try_request_notifications(tx, drafts, actor):
        if isinstance(result, PabalError):
            raise result
        results.append(result)
    return results


async def try_request_notifications(
    tx: Tx, drafts: Sequence[NotificationDraft], actor: Actor
) -> list[RequestedNotification | PabalError]:
    """Request each of these. An invalid or conflicting one fails alone: its error is returned in its position."""
    results: list[RequestedNotification | PabalError | None] = [*await _find_invalid_drafts(tx, drafts)]
    valid_positions = [position for position, error in enumerate(results) if error is None]
    valid_drafts = [drafts[position] for position in valid_positions]
    if valid_drafts:
        inserted = await _insert_notifications(tx, valid_drafts, actor)
        for position, result in zip(valid_positions, inserted, strict=True):
            results[position] = result
    return [result for result in results if result is not None]


async def _find_invalid_drafts(tx: Tx, drafts: Sequence[NotificationDraft]) -> list[RequestError | None]:
    """Return the error of each draft, or None where it is valid."""
    known_guilds = await find_known_guilds(tx, {draft.guild for draft in drafts if draft.guild is not None})
    results: list[RequestError | None] = []
    for draft in drafts:
        errors = [*notification_draft_errors(draft)]
        if draft.guild is not None and draft.guild not in known_guilds:
            errors.append(FieldError("guild_id", "no such guild"))
        results.append(Invalid(*errors) if errors else None)
    return results


async def find_known_guilds(tx: Tx, guilds: Iterable[UUID]) -> set[UUID]:
    ids = [*guilds]
    return {*await tx.column(Q.list_known_guilds, ids=ids)} if ids else set()


async def _insert_notifications(
    tx: Tx, drafts: Sequence[NotificationDraft], actor: Actor
) -> list[RequestedNotification | PabalError]:
    profiles = await load_recipient_profiles(tx, ((draft.recipient, draft.source) for draft in drafts))
    now = await read_database_time(tx)
    decisions = [decide_draft(draft, profiles[draft.recipient, draft.source], now) for draft in drafts]
    columns = notification_columns(drafts, decisions, actor)
    try:
        inserted = {row.id: row for row in await tx.all(InsertedNotification, Q.insert_request, **columns)}
    except CheckViolation:
        raise Invalid.of_field("payload", "must be JSON that PostgreSQL can store") from None
    except ForeignKeyViolation as error:
        if error.constraint == GUILD_CONSTRAINT:
            raise RetryableError("a guild was deleted concurrently") from None
        raise
    ids: list[UUID] = columns["ids"]
    skipped = [position for position, draft_id in enumerate(ids) if draft_id not in inserted]
    existing = await _find_existing_notifications(tx, columns, skipped) if skipped else {}
    if any(row.state == "pending" for row in inserted.values()):
        tx.notify(Channel.NOTIFICATIONS)
    return [
        RequestedNotification(row.id, row.state, row.reason, row.scheduled_at, row.created_at)
        if (row := inserted.get(draft_id))
        else existing_notification_result(existing[draft_id])
        for draft_id in ids
    ]


async def read_database_time(tx: Tx) -> datetime:
    """The database's clock decides when a notification is due."""
    return await tx.value(Q.database_now)


async def _find_existing_notifications(
    tx: Tx, columns: Mapping[str, list[Any]], positions: Sequence[int]
) -> dict[UUID, ExistingNotification]:
    """Return the first notification of each repeated key, by the id of the draft."""
    names = Q.list_existing_requests.parameters
    skipped = {name: [columns[name][position] for position in positions] for name in names}
    return {row.draft_id: row for row in await tx.all(ExistingNotification, Q.list_existing_requests, **skipped)}


def existing_notification_result(existing: ExistingNotification) -> RequestedNotification | PabalError:
    """The result of a draft whose key was used before."""
    if existing.id is None or existing.state is None or existing.scheduled_at is None or existing.created_at is None:
        return RetryableError("the first notification with this key was deleted concurrently")
    if not existing.is_same_content:
        return Conflict(f"idempotency_key: already used for a different notification, {existing.id}")
    return RequestedNotification(
        existing.id, existing.state, existing.reason, existing.scheduled_at, existing.created_at, repeated=True
    )


def notification_draft_errors(draft: NotificationDraft) -> Iterable[FieldError]:
    """Check a draft by itself, field by field."""
    if draft.channel not in draft.template.texts:
        yield FieldError("recipient_type", f"{draft.template.key} has no text for {draft.channel}")
    if not RECIPIENT_PATTERN.fullmatch(draft.recipient):
        yield FieldError("recipient_id", RECIPIENT_ID_RULE)
    if draft.locale is not None and not LOCALE_PATTERN.fullmatch(draft.locale):
        yield FieldError("locale", LOCALE_RULE)
    for name in ("idempotency_key", "dedupe_key", "incident", "correlation_id"):
        value = getattr(draft, name)
        if value is not None and not 0 < len(value) <= MAX_KEY_LENGTH:
            yield FieldError(name, f"must have 1 to {MAX_KEY_LENGTH} characters")
    for name in ("scheduled_at", "expires_at"):
        if not is_storable_time(getattr(draft, name)):
            yield FieldError(name, "must be a time with a time zone, in the years 1 to 9999 UTC")
    if draft.idempotency_key is not None and draft.source is None:
        yield FieldError("idempotency_key", "requires a source service")
    payload_errors = draft.template.payload_errors(draft.payload)
    if not payload_errors and len(msgspec.json.encode(draft.template_payload)) > MAX_PAYLOAD_BYTES:
        yield FieldError("payload", f"must have at most {MAX_PAYLOAD_BYTES} bytes")
    yield from payload_errors


def is_storable_time(value: datetime | None) -> bool:
    """Whether the time has a zone and converts to UTC; some hours of the years 1 and 9999 do not."""
    try:
        _ = value and value.astimezone(UTC)
    except OverflowError:
        return False
    return value is None or value.tzinfo is not None


def decide_draft(draft: NotificationDraft, profile: RecipientProfile, now: datetime) -> DeliveryDecision:
    """Decide for the time at which it would be sent."""
    template = draft.template
    send_time = max(now, draft.scheduled_at or now, draft.rate_limited_until or now)
    decision = decide_delivery(draft.channel, template.category, template.criticality, profile, now=send_time)
    if draft.rate_limited_until is None or isinstance(decision, Suppress):
        return decision
    return replace(decision, steps=(*decision.steps, DecisionStep.RATE_LIMIT_WAITS))


def notification_columns(
    drafts: Sequence[NotificationDraft], decisions: Sequence[DeliveryDecision], actor: Actor
) -> dict[str, Any]:
    """The columns of `insert_request`. Emergencies never expire."""
    return {
        "ids": [new_id() for _ in drafts],
        "channels": [draft.channel for draft in drafts],
        "recipients": [draft.recipient for draft in drafts],
        "guilds": [draft.guild for draft in drafts],
        "templates": [draft.template.key for draft in drafts],
        "payloads": [msgspec.json.encode(draft.template_payload).decode() for draft in drafts],
        "priorities": [draft.template.criticality.priority for draft in drafts],
        "reasons": [decision.reason if isinstance(decision, Suppress) else None for decision in decisions],
        "scheduled_ats": [scheduled_time(*pair) for pair in zip(drafts, decisions, strict=True)],
        "expires_ats": [None if draft.urgent else draft.expires_at for draft in drafts],
        "locales": [draft.locale for draft in drafts],
        "dedupe_keys": [draft.stored_dedupe_key for draft in drafts],
        "incidents": [draft.incident for draft in drafts],
        "events": [draft.event for draft in drafts],
        "rules": [draft.rule for draft in drafts],
        "sources": [draft.source for draft in drafts],
        "keys": [draft.idempotency_key for draft in drafts],
        "hashes": [None if draft.idempotency_key is None else draft_content_hash(draft) for draft in drafts],
        "correlation_ids": [draft.correlation_id for draft in drafts],
        "agains": [draft.again_of for draft in drafts],
        "decisions": [msgspec.json.encode(decision.steps).decode() for decision in decisions],
        "by": actor.name,
    }


def scheduled_time(draft: NotificationDraft, decision: DeliveryDecision) -> datetime | None:
    match decision:
        case SendLater(until):
            return until
        case SendNow() | Suppress():
            times = [time for time in (draft.scheduled_at, draft.rate_limited_until) if time is not None]
            return max(times, default=None)
        case _:
            assert_never(decision)


def draft_content_hash(draft: NotificationDraft) -> bytes:
    """Hash the content that an idempotency key identifies. The correlation id is not part of it."""
    times = [time and time.astimezone(UTC).isoformat() for time in (draft.scheduled_at, draft.expires_at)]
    content = [draft.channel, draft.recipient, draft.template.key, draft.template_payload, draft.guild, draft.locale]
    encoded = msgspec.json.encode([*content, *times, draft.dedupe_key, draft.incident], order="deterministic")
    return sha256(encoded).digest()


def notification_rate_limit(per_minute: int) -> RateLimit | None:
    """The limit of notifications per service, requested or made by rules from its events; None without a limit."""
    return RateLimit("notifications of this service", per_minute, NOTIFICATION_LIMIT_PERIOD) if per_minute else None


def emergency_rate_limit(per_minute: int) -> RateLimit | None:
    """The limit of requested emergencies per service: a limit of its own, so that they wait for nothing else."""
    return RateLimit("emergencies of this service", per_minute, NOTIFICATION_LIMIT_PERIOD) if per_minute else None


async def cancel_notification(tx: Tx, notification_id: UUID, access: NotificationAccess, actor: Actor) -> Notification:
    """Cancel a pending notification. While a worker is sending it, this is a conflict: it may arrive."""
    notification = await find_notification(tx, notification_id, access)
    if not await tx.run(Q.cancel_request, id=notification_id, service=access.service, all=access.all_services):
        current = await find_notification(tx, notification_id, access)
        reason = "it is being sent" if current.state == "pending" else f"it is {current.state}"
        raise Conflict(f"The notification cannot be cancelled: {reason}")
    await record_action(tx, actor, "notification.cancelled", str(notification_id), template=notification.template_key)
    return await find_notification(tx, notification_id, access)
