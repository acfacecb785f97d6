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

from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, Mistake, PabalError, Refused
from pabal.core.ids import new_id
from pabal.db.bells import Bell
from pabal.db.faults import Contended, Orphan, Unfit
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.plan import DEFAULTS, Channel, Decision, Later, Send, Suppress, decide, is_urgent
from pabal.notifications.preferences import flags_of
from pabal.notifications.template import Template

Q = beside(__file__)

LARGEST = 65_536
"""Most bytes a payload may have."""
MOST_KEY = 255
GUILD = "requests_guild_id_fkey"
RECIPIENT = re.compile(r"[A-Za-z0-9_.:@-]{1,64}")
LOCALE = re.compile(r"[a-z]{2}(-[A-Z]{2})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A notice to be. `source` is the service that asks; keys are that service's own. `again_of` is one that failed."""

    channel: Channel
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
    def said(self) -> dict[str, Any]:
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
class Asked:
    """A request that is recorded. `repeated` when its key was used before: then it is the first one."""

    id: UUID
    state: str
    reason: str | None
    scheduled_at: datetime
    created_at: datetime
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    id: UUID
    state: str
    reason: str | None
    scheduled_at: datetime
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Known:
    """The first request of a key that was used before."""

    draft: UUID
    id: UUID | None
    state: str | None
    reason: str | None
    scheduled_at: datetime | None
    created_at: datetime | None
    same: bool


async def ask(tx: Tx, drafts: Sequence[Draft], by: Actor) -> list[Asked]:
    """Ask for all of these or none; the first that cannot be is raised."""
    results: list[Asked] = []
    for result in await ask_each(tx, drafts, by):
        if isinstance(result, PabalError):
            raise result
        results.append(result)
    return results


async def ask_each(tx: Tx, drafts: Sequence[Draft], by: Actor) -> list[Asked | PabalError]:
    """Ask for each of these; one that is wrong, or whose key stands for something else, fails alone."""
    results: list[Asked | PabalError | None] = [*await _refusals(tx, drafts)]
    places = [place for place, refused in enumerate(results) if refused is None]
    good = [drafts[place] for place in places]
    if good:
        for place, asked in zip(places, await _record(tx, good, by), strict=True):
            results[place] = asked
    return [result for result in results if result is not None]


async def _refusals(tx: Tx, drafts: Sequence[Draft]) -> list[Refused | None]:
    wanted = {draft.guild for draft in drafts if draft.guild is not None}
    guilds = await known_guilds(tx, wanted)
    refused: list[Refused | None] = []
    for draft in drafts:
        mistakes = [*wrong(draft)]
        if draft.guild is not None and draft.guild not in guilds:
            mistakes.append(Mistake("guild_id", "there is no such guild"))
        refused.append(Invalid(*mistakes) if mistakes else None)
    return refused


async def known_guilds(tx: Tx, guilds: Iterable[UUID]) -> set[UUID]:
    asked = [*guilds]
    return {*await tx.column(Q.guilds, ids=asked)} if asked else set()


async def _record(tx: Tx, drafts: Sequence[Draft], by: Actor) -> list[Asked | PabalError]:
    flags = await flags_of(tx, sorted({draft.recipient for draft in drafts}))
    now: datetime = await tx.value(Q.now)
    decisions = [planned(draft, flags.get(draft.recipient, DEFAULTS), now) for draft in drafts]
    brought = columns(drafts, decisions, by)
    try:
        recorded = {each.id: each for each in await tx.all(Recorded, Q.insert_request, **brought)}
    except Unfit:
        raise Invalid.one("payload", "is not JSON that PostgreSQL can keep") from None
    except Orphan as error:
        if error.constraint == GUILD:
            raise Contended("a guild went away this moment") from None
        raise
    ids: list[UUID] = brought["ids"]
    left = [place for place, each in enumerate(ids) if each not in recorded]
    known = await _known(tx, brought, left) if left else {}
    if any(each.state == "pending" for each in recorded.values()):
        tx.ring(Bell.NOTIFICATIONS)
    return [
        Asked(row.id, row.state, row.reason, row.scheduled_at, row.created_at)
        if (row := recorded.get(each))
        else told(known[each])
        for each in ids
    ]


async def _known(tx: Tx, brought: Mapping[str, list[Any]], places: Sequence[int]) -> dict[UUID, Known]:
    asked = {name: [brought[name][place] for place in places] for name in Q.known.takes}
    return {each.draft: each for each in await tx.all(Known, Q.known, **asked)}


def told(known: Known) -> Asked | PabalError:
    """What to say of a draft that was left out."""
    if known.id is None or known.state is None or known.scheduled_at is None or known.created_at is None:
        return Contended("the first request of this key went away this moment")
    if not known.same:
        return Conflict(f"idempotency_key: was used for another notification, {known.id}")
    return Asked(known.id, known.state, known.reason, known.scheduled_at, known.created_at, repeated=True)


def wrong(draft: Draft) -> Iterable[Mistake]:
    """What is wrong with a draft by itself, field by field."""
    if draft.channel not in draft.template.texts:
        yield Mistake("recipient_type", f"{draft.template.key} has no text for {draft.channel}")
    if not RECIPIENT.fullmatch(draft.recipient):
        yield Mistake("recipient_id", "is not an id of up to 64 letters, digits and . _ : @ -")
    if draft.locale is not None and not LOCALE.fullmatch(draft.locale):
        yield Mistake("locale", "is not a locale such as ko or en-US")
    for name in ("idempotency_key", "dedupe_key", "incident", "correlation_id"):
        written = getattr(draft, name)
        if written is not None and not 0 < len(written) <= MOST_KEY:
            yield Mistake(name, f"has 1 to {MOST_KEY} characters")
    for name in ("scheduled_at", "expires_at"):
        if not is_somewhen(getattr(draft, name)):
            yield Mistake(name, "is not a moment of a time zone, in a year others know as well")
    if draft.idempotency_key is not None and draft.source is None:
        yield Mistake("idempotency_key", "is a service's; nobody else has one")
    mistakes = draft.template.wrong(draft.payload)
    if not mistakes and len(msgspec.json.encode(draft.said)) > LARGEST:
        yield Mistake("payload", f"is larger than {LARGEST} bytes")
    yield from mistakes


def is_somewhen(moment: datetime | None) -> bool:
    """The last hours of the year 9999, and the first of the year 1, are in no calendar elsewhere."""
    try:
        _ = moment and moment.astimezone(UTC)
    except OverflowError:
        return False
    return moment is None or moment.tzinfo is not None


def planned(draft: Draft, flags: Any, now: datetime) -> Decision:
    """What the person wants, at the hour it would go out."""
    template = draft.template
    when = max(now, draft.scheduled_at) if draft.scheduled_at else now
    return decide(draft.channel, template.category, template.criticality, flags, now=when)


def columns(drafts: Sequence[Draft], decisions: Sequence[Decision], by: Actor) -> dict[str, Any]:
    """The drafts, column by column. A late emergency is still sent: it never expires."""
    return {
        "ids": [new_id() for _ in drafts],
        "channels": [draft.channel for draft in drafts],
        "recipients": [draft.recipient for draft in drafts],
        "guilds": [draft.guild for draft in drafts],
        "templates": [draft.template.key for draft in drafts],
        "payloads": [msgspec.json.encode(draft.said).decode() for draft in drafts],
        "priorities": [draft.template.criticality.priority for draft in drafts],
        "reasons": [each.reason if isinstance(each, Suppress) else None for each in decisions],
        "scheduled_ats": [scheduled(draft, each) for draft, each in zip(drafts, decisions, strict=True)],
        "expires_ats": [None if draft.urgent else draft.expires_at for draft in drafts],
        "locales": [draft.locale for draft in drafts],
        "dedupe_keys": [draft.stored_dedupe_key for draft in drafts],
        "incidents": [draft.incident for draft in drafts],
        "events": [draft.event for draft in drafts],
        "rules": [draft.rule for draft in drafts],
        "sources": [draft.source for draft in drafts],
        "keys": [draft.idempotency_key for draft in drafts],
        "hashes": [None if draft.idempotency_key is None else content_hash(draft) for draft in drafts],
        "correlation_ids": [draft.correlation_id for draft in drafts],
        "agains": [draft.again_of for draft in drafts],
        "decisions": [msgspec.json.encode(each.steps).decode() for each in decisions],
        "by": by.name,
    }


def scheduled(draft: Draft, decision: Decision) -> datetime | None:
    match decision:
        case Later(until):
            return until
        case Send() | Suppress():
            return draft.scheduled_at
        case _:
            assert_never(decision)


def content_hash(draft: Draft) -> bytes:
    """What an idempotency key stands for: the same key with other content is a mistake. Trace ids do not count."""
    moments = [at and at.astimezone(UTC).isoformat() for at in (draft.scheduled_at, draft.expires_at)]
    said = [draft.channel, draft.recipient, draft.template.key, draft.said, draft.guild, draft.locale]
    written = msgspec.json.encode([*said, *moments, draft.dedupe_key, draft.incident], order="deterministic")
    return sha256(written).digest()
