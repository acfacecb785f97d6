"""Apply the rules to events: ask for what each event makes, in the transaction that settles it.

What a rule asked for of an event it never asks for again, however often the event comes: the keys say so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, Protocol
from uuid import UUID

from pabal.core.actor import HUB_ACTOR, Actor
from pabal.core.errors import PabalError
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.requests import (
    NotificationDraft,
    find_known_guilds,
    notification_draft_errors,
    try_request_notifications,
)
from pabal.notifications.rules.payload_paths import (
    NO_POSITIONS,
    ListPositions,
    PayloadPathError,
    find_payload_value,
    find_payload_values,
)
from pabal.notifications.rules.rules import Rule, list_active_rules
from pabal.notifications.templates.catalogue import TemplateCatalogue
from pabal.notifications.templates.template import Template, VariableType
from pabal.queue.outcome import DONE, Dead, Outcome, Retry

Q = load_queries(__file__)

RULE_ACTOR = Actor("rule")
OWN_EVENT_PREFIX = "notification."
"""What events about notices begin with. Those of the hub make no notices: one would make the next."""
MAX_NOTIFICATIONS_PER_RULE = 10_000
"""Notices that one rule may make of one event."""
NOTIFICATIONS_PER_TRANSACTION = 2000
"""Notices after which a transaction takes up no further event: nobody's few wait for somebody's many."""


class RuleEvent(Protocol):
    """An event, as far as a rule looks at it."""

    @property
    def id(self) -> UUID: ...
    @property
    def event_type(self) -> str: ...
    @property
    def source_service(self) -> str: ...
    @property
    def payload(self) -> Any: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def correlation_id(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class RootEvent:
    """The event as it was published, of which this is the hub's delivery."""

    id: UUID
    root_id: UUID


@dataclass(slots=True)
class RuleResult:
    """What the rules make of one event: notices, and what stands in the way of others."""

    drafts: list[NotificationDraft]
    errors: list[str]
    unknown_templates: list[str]

    @property
    def outcome(self) -> Outcome:
        """The event is dead when a rule could not do its part; what other rules made of it is made."""
        if self.errors:
            return Dead("; ".join(self.errors), code="rule_unmet")
        if self.unknown_templates:  # a process of another version may know it
            return Retry("; ".join(self.unknown_templates), code="template_unknown")
        return DONE


async def apply_rules(tx: Tx, events: Sequence[RuleEvent], catalogue: TemplateCatalogue) -> list[Outcome]:
    """Ask for everything that the first of these events make, as many as are enough for one transaction.

    For each of those what becomes of it; the others are for the next transaction.
    """
    roots = {
        each.id: each.root_id
        for each in await tx.all(RootEvent, Q.list_root_events, ids=[event.id for event in events])
    }
    active = await list_active_rules(tx)
    made: list[RuleResult] = []
    for event in events:
        made.append(evaluate_rules(active, catalogue, event, roots.get(event.id, event.id)))
        if sum(len(each.drafts) for each in made) >= NOTIFICATIONS_PER_TRANSACTION:
            break
    drafts = await drop_unknown_guilds(tx, [draft for each in made for draft in each.drafts])
    results = iter(
        [asked for some in batch_drafts(drafts) for asked in await try_request_notifications(tx, some, RULE_ACTOR)]
    )
    outcomes: list[Outcome] = []
    for each in made:
        failed = [error for error in (next(results) for _ in each.drafts) if isinstance(error, PabalError)]
        outcomes.append(Retry(str(failed[0]), code=failed[0].code) if failed else each.outcome)
    return outcomes


def batch_drafts(drafts: Sequence[NotificationDraft]) -> Iterator[Sequence[NotificationDraft]]:
    """As many at once as a statement has time for: many rules may make very many of one event."""
    return (
        drafts[begin : begin + MAX_NOTIFICATIONS_PER_RULE]
        for begin in range(0, len(drafts), MAX_NOTIFICATIONS_PER_RULE)
    )


async def drop_unknown_guilds(tx: Tx, drafts: Sequence[NotificationDraft]) -> list[NotificationDraft]:
    """A guild is kept for the record: one that is gone, or was never here, stops nobody's notice."""
    known = await find_known_guilds(tx, {draft.guild for draft in drafts if draft.guild is not None})
    return [replace(draft, guild=draft.guild if draft.guild in known else None) for draft in drafts]


def evaluate_rules(
    active_rules: Sequence[Rule], catalogue: TemplateCatalogue, event: RuleEvent, root_id: UUID
) -> RuleResult:
    made = RuleResult([], [], [])
    if event.source_service == HUB_ACTOR.name and event.event_type.startswith(OWN_EVENT_PREFIX):
        return made
    for rule in active_rules:
        if not rule.matches(event.event_type):
            continue
        if rule.template_key not in catalogue:
            made.unknown_templates.append(f"rule {rule.name}: there is no template {rule.template_key} here")
            continue
        try:
            made.drafts += collect_valid_drafts(
                draft_rule_notifications(rule, catalogue.get(rule.template_key), event, root_id)
            )
        except PayloadPathError as error:
            made.errors.append(f"rule {rule.name}: {error}")
    return made


def collect_valid_drafts(candidates: Iterator[NotificationDraft]) -> list[NotificationDraft]:
    """All of them, or the reason why it is none; of too many no more are made than show it."""
    drafts = [*islice(candidates, MAX_NOTIFICATIONS_PER_RULE + 1)]
    if len(drafts) > MAX_NOTIFICATIONS_PER_RULE:
        raise PayloadPathError(f"the notices of one event are more than {MAX_NOTIFICATIONS_PER_RULE}")
    for draft in drafts:
        if mistakes := [*notification_draft_errors(draft)]:
            raise PayloadPathError("; ".join(map(str, mistakes)))
    return drafts


def draft_rule_notifications(
    rule: Rule, template: Template, event: RuleEvent, root_id: UUID
) -> Iterator[NotificationDraft]:
    """One notice for each recipient and channel. In a list each recipient has what stands beside it."""
    payload = event.payload
    for path in rule.recipients:
        for value, at in find_payload_values(payload, path):
            recipient = read_recipient_id(value, path)
            variables = {
                name: read_variable(rule, name, kind, payload, at) for name, kind in template.variables.items()
            }
            for channel in rule.channels:
                yield NotificationDraft(
                    channel=NotificationChannel(channel),
                    recipient=recipient,
                    template=template,
                    payload=variables,
                    guild=read_guild_id(rule, payload, at),
                    expires_at=None if rule.expires_after is None else event.created_at + rule.expires_after,
                    dedupe_key=f"{root_id}:{rule.id}:{channel}:{recipient}",
                    incident=None
                    if rule.incident_path is None
                    else str(find_payload_value(payload, rule.incident_path, at)),
                    event=root_id,
                    rule=rule.id,
                    source=event.source_service,
                    correlation_id=event.correlation_id,
                )


def read_recipient_id(value: Any, path: str) -> str:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise PayloadPathError(f"{path} is no id")


def read_variable(rule: Rule, name: str, kind: VariableType, payload: Any, positions: ListPositions) -> Any:
    """What the payload says; an id that is a number in it may be a text in ours."""
    value = find_payload_value(payload, rule.variables.get(name, name), positions)
    return str(value) if kind is VariableType.TEXT and VariableType.INTEGER.accepts(value) else value


def read_guild_id(rule: Rule, payload: Any, positions: ListPositions = NO_POSITIONS) -> UUID | None:
    if rule.guild_path is None:
        return None
    try:
        return UUID(str(find_payload_value(payload, rule.guild_path, positions)))
    except (PayloadPathError, ValueError):
        return None
