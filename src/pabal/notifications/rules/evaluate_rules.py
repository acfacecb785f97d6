"""Evaluate the rules for an event: which notifications they request, and what prevents others.

Publishers write the payloads, so the work for one event is bounded, and done in slices: other tasks run in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from pabal.core.actor import HUB_ACTOR
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.requests import NotificationDraft, notification_draft_errors
from pabal.notifications.rules.payload_paths import NO_POSITIONS, ListPositions, PayloadPathError, PayloadReader
from pabal.notifications.rules.rules import Rule
from pabal.notifications.templates.catalogue import TemplateCatalogue
from pabal.notifications.templates.template import Template, VariableType
from pabal.queue.outcome import DONE, Dead, Outcome, Retry
from pabal.queue.pacer import LoopPacer

OWN_EVENT_PREFIX = "notification."
"""Rules ignore the hub's events about notifications: a notification about them would cause the next."""
MAX_NOTIFICATIONS_PER_RULE = 10_000
"""The most notifications one rule may request for one event."""
MAX_TEXT_PER_EVENT = 16 * 1024 * 1024
"""The most characters that the variables of all notifications of one event may have: every recipient gets a copy."""
UUID_LENGTH = 36


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


@dataclass(slots=True)
class RuleResult:
    """The notifications that the rules request for one event, and what prevented others."""

    source: str
    drafts: list[NotificationDraft] = field(default_factory=list[NotificationDraft])
    errors: list[str] = field(default_factory=list[str])
    unknown_templates: list[str] = field(default_factory=list[str])
    text_length: int = 0
    steps: int = 0

    @property
    def outcome(self) -> Outcome:
        """Dead if a rule failed. The notifications of the other rules are requested nevertheless."""
        if self.errors:
            return Dead("; ".join(self.errors), code="rule_unmet")
        if self.unknown_templates:  # a process of another version may have the template
            return Retry("; ".join(self.unknown_templates), code="template_unknown")
        return DONE


async def evaluate_rules(
    active_rules: Sequence[Rule], catalogue: TemplateCatalogue, event: RuleEvent, root_id: UUID, pacer: LoopPacer
) -> RuleResult:
    """Evaluate every matching rule for one event."""
    result, reader = RuleResult(event.source_service), PayloadReader(event.payload)
    if event.source_service == HUB_ACTOR.name and event.event_type.startswith(OWN_EVENT_PREFIX):
        return result
    for rule in active_rules:
        if pacer.is_due:
            await pacer.pause()
        if not rule.matches(event.event_type):
            continue
        if rule.template_key not in catalogue:
            result.unknown_templates.append(f"rule {rule.name}: no such template: {rule.template_key}")
            continue
        candidates = draft_rule_notifications(rule, catalogue.get(rule.template_key), event, root_id, reader)
        try:
            result.drafts += await collect_valid_drafts(candidates, result, pacer)
        except PayloadPathError as error:
            result.errors.append(f"rule {rule.name}: {error}")
    result.steps = reader.steps
    return result


async def collect_valid_drafts(
    candidates: Iterator[NotificationDraft | None], result: RuleResult, pacer: LoopPacer
) -> list[NotificationDraft]:
    """Return all drafts of a rule, or raise at the first that is invalid or one too many."""
    drafts: list[NotificationDraft] = []
    for draft in candidates:
        if pacer.is_due:
            await pacer.pause()
        if draft is None:
            continue
        if len(drafts) == MAX_NOTIFICATIONS_PER_RULE:
            raise PayloadPathError(f"more than {MAX_NOTIFICATIONS_PER_RULE} notifications for one event")
        if errors := [*notification_draft_errors(draft)]:
            raise PayloadPathError("; ".join(map(str, errors)))
        result.text_length += sum(len(value) for value in draft.payload.values() if isinstance(value, str))
        if result.text_length > MAX_TEXT_PER_EVENT:
            raise PayloadPathError(f"the notifications for one event have more than {MAX_TEXT_PER_EVENT} characters")
        drafts.append(draft)
    return drafts


def draft_rule_notifications(
    rule: Rule, template: Template, event: RuleEvent, root_id: UUID, reader: PayloadReader
) -> Iterator[NotificationDraft | None]:
    """Draft one notification per recipient and channel. In a list, values come from the recipient's own element.

    Yields None after each slice of work without a draft.
    """
    for path in rule.recipients:
        for found in reader.find_values(path):
            if found is None:
                yield None
                continue
            value, positions = found
            recipient = read_recipient_id(value, path)
            variables = {
                name: read_variable(rule, name, variable_type, reader, positions)
                for name, variable_type in template.variables.items()
            }
            guild, incident = read_guild_id(rule, reader, positions), read_incident(rule, reader, positions)
            for channel in rule.channels:
                yield NotificationDraft(
                    channel=NotificationChannel(channel),
                    recipient=recipient,
                    template=template,
                    payload=variables,
                    guild=guild,
                    expires_at=None if rule.expires_after is None else event.created_at + rule.expires_after,
                    dedupe_key=f"{root_id}:{rule.id}:{channel}:{recipient}",
                    incident=incident,
                    event=root_id,
                    rule=rule.id,
                    source=event.source_service,
                    correlation_id=event.correlation_id,
                )


def read_recipient_id(value: Any, path: str) -> str:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise PayloadPathError(f"{path} is not an id")


def read_variable(
    rule: Rule, name: str, variable_type: VariableType, reader: PayloadReader, positions: ListPositions
) -> Any:
    """Read a variable. A number is accepted where the template expects a text, for example for ids."""
    value = reader.find_value(rule.variables.get(name, name), positions)
    return str(value) if variable_type is VariableType.TEXT and VariableType.INTEGER.accepts(value) else value


def read_incident(rule: Rule, reader: PayloadReader, positions: ListPositions) -> str | None:
    if rule.incident_path is None:
        return None
    value = reader.find_value(rule.incident_path, positions)
    if isinstance(value, dict):
        raise PayloadPathError(f"{rule.incident_path} is an object")
    return str(value)


def read_guild_id(rule: Rule, reader: PayloadReader, positions: ListPositions = NO_POSITIONS) -> UUID | None:
    if rule.guild_path is None:
        return None
    try:
        value = reader.find_value(rule.guild_path, positions)
        return UUID(value) if isinstance(value, str) and len(value) <= UUID_LENGTH else None
    except (PayloadPathError, ValueError):
        return None
