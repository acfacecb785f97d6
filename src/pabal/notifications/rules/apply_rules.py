"""Apply the rules to events: request the notifications they cause, in the transaction that settles the events.

Dedupe keys make this idempotent: a rule requests a notification for an event and a recipient once, also after a replay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
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
    RequestedNotification,
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
"""Rules ignore the hub's events about notifications: a notification about them would cause the next."""
MAX_NOTIFICATIONS_PER_RULE = 10_000
"""The most notifications one rule may request for one event, and the most that one statement inserts."""
NOTIFICATIONS_PER_TRANSACTION = 2000
"""After this many notifications a transaction takes no further event: small events must not wait for large ones."""


class RuleEvent(Protocol):
    """The parts of an event that rules use."""

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
    """A delivery to the hub, and the event that was published."""

    id: UUID
    root_id: UUID


@dataclass(slots=True)
class RuleResult:
    """The notifications that the rules request for one event, and what prevented others."""

    drafts: list[NotificationDraft] = field(default_factory=list[NotificationDraft])
    errors: list[str] = field(default_factory=list[str])
    unknown_templates: list[str] = field(default_factory=list[str])

    @property
    def outcome(self) -> Outcome:
        """Dead if a rule failed. The notifications of the other rules are requested nevertheless."""
        if self.errors:
            return Dead("; ".join(self.errors), code="rule_unmet")
        if self.unknown_templates:  # a process of another version may have the template
            return Retry("; ".join(self.unknown_templates), code="template_unknown")
        return DONE


async def apply_rules(tx: Tx, events: Sequence[RuleEvent], catalogue: TemplateCatalogue) -> list[Outcome]:
    """Request the notifications for the first of these events, as many as fit into one transaction.

    Returns one outcome for each of those; the caller passes the remaining events again.
    """
    results = await _evaluate_events(tx, events, catalogue)
    drafts = [draft for result in results for draft in result.drafts]
    requested = iter(await _request_drafts(tx, await drop_unknown_guilds(tx, drafts)))
    return [rule_outcome(result, [*islice(requested, len(result.drafts))]) for result in results]


async def _evaluate_events(tx: Tx, events: Sequence[RuleEvent], catalogue: TemplateCatalogue) -> list[RuleResult]:
    """Evaluate the rules for the first events, until the transaction has enough notifications."""
    roots = {
        row.id: row.root_id for row in await tx.all(RootEvent, Q.list_root_events, ids=[event.id for event in events])
    }
    active_rules = await list_active_rules(tx)
    results: list[RuleResult] = []
    total = 0
    for event in events:
        result = evaluate_rules(active_rules, catalogue, event, roots.get(event.id, event.id))
        results.append(result)
        total += len(result.drafts)
        if total >= NOTIFICATIONS_PER_TRANSACTION:
            break
    return results


async def _request_drafts(tx: Tx, drafts: Sequence[NotificationDraft]) -> list[RequestedNotification | PabalError]:
    """Request all drafts, in statements of bounded size: many rules may request very many for one event."""
    return [
        requested
        for start in range(0, len(drafts), MAX_NOTIFICATIONS_PER_RULE)
        for requested in await try_request_notifications(
            tx, drafts[start : start + MAX_NOTIFICATIONS_PER_RULE], RULE_ACTOR
        )
    ]


def rule_outcome(result: RuleResult, requested: Sequence[RequestedNotification | PabalError]) -> Outcome:
    """The outcome of one event: retried if one of its notifications could not be requested."""
    for error in requested:
        if isinstance(error, PabalError):
            return Retry(str(error), code=error.code)
    return result.outcome


async def drop_unknown_guilds(tx: Tx, drafts: Sequence[NotificationDraft]) -> list[NotificationDraft]:
    """Clear guild ids that do not exist. The guild is only informative, so it must not prevent a notification."""
    known_guilds = await find_known_guilds(tx, {draft.guild for draft in drafts if draft.guild is not None})
    return [replace(draft, guild=draft.guild if draft.guild in known_guilds else None) for draft in drafts]


def evaluate_rules(
    active_rules: Sequence[Rule], catalogue: TemplateCatalogue, event: RuleEvent, root_id: UUID
) -> RuleResult:
    """Evaluate every matching rule for one event."""
    result = RuleResult()
    if event.source_service == HUB_ACTOR.name and event.event_type.startswith(OWN_EVENT_PREFIX):
        return result
    for rule in active_rules:
        if not rule.matches(event.event_type):
            continue
        if rule.template_key not in catalogue:
            result.unknown_templates.append(f"rule {rule.name}: no such template: {rule.template_key}")
            continue
        try:
            result.drafts += collect_valid_drafts(
                draft_rule_notifications(rule, catalogue.get(rule.template_key), event, root_id)
            )
        except PayloadPathError as error:
            result.errors.append(f"rule {rule.name}: {error}")
    return result


def collect_valid_drafts(candidates: Iterator[NotificationDraft]) -> list[NotificationDraft]:
    """Return all drafts, or raise if one is invalid or there are too many. Reads one more than the limit."""
    drafts = [*islice(candidates, MAX_NOTIFICATIONS_PER_RULE + 1)]
    if len(drafts) > MAX_NOTIFICATIONS_PER_RULE:
        raise PayloadPathError(f"more than {MAX_NOTIFICATIONS_PER_RULE} notifications for one event")
    for draft in drafts:
        if errors := [*notification_draft_errors(draft)]:
            raise PayloadPathError("; ".join(map(str, errors)))
    return drafts


def draft_rule_notifications(
    rule: Rule, template: Template, event: RuleEvent, root_id: UUID
) -> Iterator[NotificationDraft]:
    """Draft one notification per recipient and channel. In a list, values come from the recipient's own element."""
    payload = event.payload
    for path in rule.recipients:
        for value, positions in find_payload_values(payload, path):
            recipient = read_recipient_id(value, path)
            variables = {
                name: read_variable(rule, name, variable_type, payload, positions)
                for name, variable_type in template.variables.items()
            }
            for channel in rule.channels:
                yield NotificationDraft(
                    channel=NotificationChannel(channel),
                    recipient=recipient,
                    template=template,
                    payload=variables,
                    guild=read_guild_id(rule, payload, positions),
                    expires_at=None if rule.expires_after is None else event.created_at + rule.expires_after,
                    dedupe_key=f"{root_id}:{rule.id}:{channel}:{recipient}",
                    incident=None
                    if rule.incident_path is None
                    else str(find_payload_value(payload, rule.incident_path, positions)),
                    event=root_id,
                    rule=rule.id,
                    source=event.source_service,
                    correlation_id=event.correlation_id,
                )


def read_recipient_id(value: Any, path: str) -> str:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise PayloadPathError(f"{path} is not an id")


def read_variable(rule: Rule, name: str, variable_type: VariableType, payload: Any, positions: ListPositions) -> Any:
    """Read a variable. A number is accepted where the template expects a text, for example for ids."""
    value = find_payload_value(payload, rule.variables.get(name, name), positions)
    return str(value) if variable_type is VariableType.TEXT and VariableType.INTEGER.accepts(value) else value


def read_guild_id(rule: Rule, payload: Any, positions: ListPositions = NO_POSITIONS) -> UUID | None:
    if rule.guild_path is None:
        return None
    try:
        return UUID(str(find_payload_value(payload, rule.guild_path, positions)))
    except (PayloadPathError, ValueError):
        return None
