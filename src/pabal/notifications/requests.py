"""Ask for notices: checked, planned and recorded in the caller's transaction, however many there are.

What the person does not want is recorded as suppressed, with the reason, and not left out: somebody may ask why.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, assert_never
from uuid import UUID

import msgspec

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, FieldError, Invalid, PabalError, RequestError
from pabal.core.ids import new_id
from pabal.db.channels import Channel
from pabal.db.errors import CheckViolation, ForeignKeyViolation, RetryableError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import (
    DEFAULT_PROFILE,
    DeliveryDecision,
    NotificationChannel,
    SendLater,
    SendNow,
    Suppress,
    decide_delivery,
    is_urgent,
)
from pabal.notifications.notifications import Notification, NotificationAccess, find_notification
from pabal.notifications.people.preferences import load_recipient_profiles
from pabal.notifications.templates.template import Template

Q = load_queries(__file__)

MAX_PAYLOAD_BYTES = 65_536
"""Most bytes a payload may have."""
MAX_KEY_LENGTH = 255
GUILD_CONSTRAINT = "requests_guild_id_fkey"
RECIPIENT_PATTERN = re.compile(r"[A-Za-z0-9_.:@-]{1,64}")
LOCALE_PATTERN = re.compile(r"[a-z]{2}(-[A-Z]{2})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationDraft:
    """A notice to be. `source` is the service that asks; keys are that service's own. `again_of` is one that failed."""

    channel: NotificationChannel
    recipient: str
    template: Template
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    guild: UUID | None = None
    locale: str | None = None
    scheduled_at: datetime | None = None
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
        """What the template is told; what a payload brings besides is kept nowhere."""
        return {name: self.payload[name] for name in self.template.variables if name in self.payload}

    @property
    def stored_dedupe_key(self) -> str | None:
        """The key within its source: what one service calls its notice hides no other's."""
        return None if self.dedupe_key is None else f"{self.source or ''}:{self.dedupe_key}"

    @property
    def urgent(self) -> bool:
        return is_urgent(self.template.category, self.template.criticality)


@dataclass(frozen=True, slots=True)
class RequestedNotification:
    """A request that is recorded. `repeated` when its key was used before: then it is the first one."""

    id: UUID
    state: str
    reason: str | None
    scheduled_at: datetime
    created_at: datetime
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class InsertedNotification:
    id: UUID
    state: str
    reason: str | None
    scheduled_at: datetime
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ExistingNotification:
    """The first request of a key that was used before."""

    draft_id: UUID
    id: UUID | None
    state: str | None
    reason: str | None
    scheduled_at: datetime | None
    created_at: datetime | None
    is_same_content: bool


async def request_notifications(
    tx: Tx, drafts: Sequence[NotificationDraft], actor: Actor
) -> list[RequestedNotification]:
    """Ask for all of these or none; the first that cannot be is raised."""
    results: list[RequestedNotification] = []
    for result in await try_request_notifications(tx, drafts, actor):
        if isinstance(result, PabalError):
            raise result
        results.append(result)
    return results


async def try_request_notifications(
    tx: Tx, drafts: Sequence[NotificationDraft], actor: Actor
) -> list[RequestedNotification | PabalError]:
    """Ask for each of these; one that is wrong, or whose key stands for something else, fails alone."""
    results: list[RequestedNotification | PabalError | None] = [*await _find_invalid_drafts(tx, drafts)]
    places = [place for place, refused in enumerate(results) if refused is None]
    good = [drafts[place] for place in places]
    if good:
        for place, asked in zip(places, await _insert_notifications(tx, good, actor), strict=True):
            results[place] = asked
    return [result for result in results if result is not None]


async def _find_invalid_drafts(tx: Tx, drafts: Sequence[NotificationDraft]) -> list[RequestError | None]:
    wanted = {draft.guild for draft in drafts if draft.guild is not None}
    guilds = await find_known_guilds(tx, wanted)
    refused: list[RequestError | None] = []
    for draft in drafts:
        mistakes = [*notification_draft_errors(draft)]
        if draft.guild is not None and draft.guild not in guilds:
            mistakes.append(FieldError("guild_id", "there is no such guild"))
        refused.append(Invalid(*mistakes) if mistakes else None)
    return refused


async def find_known_guilds(tx: Tx, guilds: Iterable[UUID]) -> set[UUID]:
    asked = [*guilds]
    return {*await tx.column(Q.list_known_guilds, ids=asked)} if asked else set()


async def _insert_notifications(
    tx: Tx, drafts: Sequence[NotificationDraft], actor: Actor
) -> list[RequestedNotification | PabalError]:
    flags = await load_recipient_profiles(tx, sorted({draft.recipient for draft in drafts}))
    now: datetime = await tx.value(Q.database_now)
    decisions = [decide_draft(draft, flags.get(draft.recipient, DEFAULT_PROFILE), now) for draft in drafts]
    brought = notification_columns(drafts, decisions, actor)
    try:
        recorded = {each.id: each for each in await tx.all(InsertedNotification, Q.insert_request, **brought)}
    except CheckViolation:
        raise Invalid.of_field("payload", "is not JSON that PostgreSQL can keep") from None
    except ForeignKeyViolation as error:
        if error.constraint == GUILD_CONSTRAINT:
            raise RetryableError("a guild went away this moment") from None
        raise
    ids: list[UUID] = brought["ids"]
    left = [place for place, each in enumerate(ids) if each not in recorded]
    known = await _find_existing_notifications(tx, brought, left) if left else {}
    if any(each.state == "pending" for each in recorded.values()):
        tx.notify(Channel.NOTIFICATIONS)
    return [
        RequestedNotification(row.id, row.state, row.reason, row.scheduled_at, row.created_at)
        if (row := recorded.get(each))
        else existing_notification_result(known[each])
        for each in ids
    ]


async def _find_existing_notifications(
    tx: Tx, columns: Mapping[str, list[Any]], positions: Sequence[int]
) -> dict[UUID, ExistingNotification]:
    asked = {name: [columns[name][place] for place in positions] for name in Q.list_existing_requests.parameters}
    return {each.draft_id: each for each in await tx.all(ExistingNotification, Q.list_existing_requests, **asked)}


def existing_notification_result(existing: ExistingNotification) -> RequestedNotification | PabalError:
    """What to say of a draft that was left out."""
    if existing.id is None or existing.state is None or existing.scheduled_at is None or existing.created_at is None:
        return RetryableError("the first request of this key went away this moment")
    if not existing.is_same_content:
        return Conflict(f"idempotency_key: was used for another notification, {existing.id}")
    return RequestedNotification(
        existing.id, existing.state, existing.reason, existing.scheduled_at, existing.created_at, repeated=True
    )


def notification_draft_errors(draft: NotificationDraft) -> Iterable[FieldError]:
    """What is wrong with a draft by itself, field by field."""
    if draft.channel not in draft.template.texts:
        yield FieldError("recipient_type", f"{draft.template.key} has no text for {draft.channel}")
    if not RECIPIENT_PATTERN.fullmatch(draft.recipient):
        yield FieldError("recipient_id", "is not an id of up to 64 letters, digits and . _ : @ -")
    if draft.locale is not None and not LOCALE_PATTERN.fullmatch(draft.locale):
        yield FieldError("locale", "is not a locale such as ko or en-US")
    for name in ("idempotency_key", "dedupe_key", "incident", "correlation_id"):
        written = getattr(draft, name)
        if written is not None and not 0 < len(written) <= MAX_KEY_LENGTH:
            yield FieldError(name, f"has 1 to {MAX_KEY_LENGTH} characters")
    for name in ("scheduled_at", "expires_at"):
        if not is_storable_time(getattr(draft, name)):
            yield FieldError(name, "is not a moment of a time zone, in a year others know as well")
    if draft.idempotency_key is not None and draft.source is None:
        yield FieldError("idempotency_key", "is a service's; nobody else has one")
    mistakes = draft.template.payload_errors(draft.payload)
    if not mistakes and len(msgspec.json.encode(draft.template_payload)) > MAX_PAYLOAD_BYTES:
        yield FieldError("payload", f"is larger than {MAX_PAYLOAD_BYTES} bytes")
    yield from mistakes


def is_storable_time(value: datetime | None) -> bool:
    """The last hours of the year 9999, and the first of the year 1, are in no calendar elsewhere."""
    try:
        _ = value and value.astimezone(UTC)
    except OverflowError:
        return False
    return value is None or value.tzinfo is not None


def decide_draft(draft: NotificationDraft, profile: Any, now: datetime) -> DeliveryDecision:
    """What the person wants, at the hour it would go out."""
    template = draft.template
    when = max(now, draft.scheduled_at) if draft.scheduled_at else now
    return decide_delivery(draft.channel, template.category, template.criticality, profile, now=when)


def notification_columns(
    drafts: Sequence[NotificationDraft], decisions: Sequence[DeliveryDecision], actor: Actor
) -> dict[str, Any]:
    """The drafts, column by column. A late emergency is still sent: it never expires."""
    return {
        "ids": [new_id() for _ in drafts],
        "channels": [draft.channel for draft in drafts],
        "recipients": [draft.recipient for draft in drafts],
        "guilds": [draft.guild for draft in drafts],
        "templates": [draft.template.key for draft in drafts],
        "payloads": [msgspec.json.encode(draft.template_payload).decode() for draft in drafts],
        "priorities": [draft.template.criticality.priority for draft in drafts],
        "reasons": [each.reason if isinstance(each, Suppress) else None for each in decisions],
        "scheduled_ats": [scheduled_time(draft, each) for draft, each in zip(drafts, decisions, strict=True)],
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
        "decisions": [msgspec.json.encode(each.steps).decode() for each in decisions],
        "by": actor.name,
    }


def scheduled_time(draft: NotificationDraft, decision: DeliveryDecision) -> datetime | None:
    match decision:
        case SendLater(until):
            return until
        case SendNow() | Suppress():
            return draft.scheduled_at
        case _:
            assert_never(decision)


def draft_content_hash(draft: NotificationDraft) -> bytes:
    """What an idempotency key stands for: the same key with other content is a mistake. Trace ids do not count."""
    moments = [at and at.astimezone(UTC).isoformat() for at in (draft.scheduled_at, draft.expires_at)]
    said = [draft.channel, draft.recipient, draft.template.key, draft.template_payload, draft.guild, draft.locale]
    written = msgspec.json.encode([*said, *moments, draft.dedupe_key, draft.incident], order="deterministic")
    return sha256(written).digest()


async def cancel_notification(tx: Tx, notification_id: UUID, access: NotificationAccess, actor: Actor) -> Notification:
    """Call one's own notification off. What is on its way this moment may arrive, so that is refused."""
    notification = await find_notification(tx, notification_id, access)
    if not await tx.run(Q.cancel_request, id=notification_id, service=access.service, all=access.all_services):
        stands = await find_notification(tx, notification_id, access)
        why = "it is being sent this moment" if stands.state == "pending" else f"it is {stands.state} already"
        raise Conflict(f"the notification cannot be called off: {why}")
    await record_action(tx, actor, "notification.cancelled", str(notification_id), template=notification.template_key)
    return await find_notification(tx, notification_id, access)
