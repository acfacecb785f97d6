"""Rules: which events cause which notifications, for whom, and where the payload holds the values.

A trigger on the table subscribes the hub to each rule's events, so a rule inserted with plain SQL works as well.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.audit.record import record_action
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, FieldError, Invalid, NotFound
from pabal.core.ids import new_id
from pabal.db.errors import UniqueViolation
from pabal.db.queries import load_queries
from pabal.db.tx import Tx
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.rules.payload_paths import is_payload_path
from pabal.notifications.templates.catalogue import TemplateCatalogue
from pabal.notifications.templates.template import Template

Q = load_queries(__file__)

EVENT_PATTERN = re.compile(r"(\*|[a-z0-9_]+)(\.(\*|[a-z0-9_]+))*")
MAX_PATTERN_LENGTH = 128
MAX_NAME_LENGTH = 100
MAX_RECIPIENT_PATHS = 20
MAX_EXPIRES_AFTER = timedelta(days=365)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDraft:
    """A rule to add. `variables` maps template variables to payload paths; by default the path is the name."""

    name: str
    event_pattern: str
    template_key: str
    recipients: Sequence[str]
    channels: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    guild_path: str | None = None
    incident_path: str | None = None
    expires_after: timedelta | None = None
    is_active: bool = True


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule."""

    id: UUID
    name: str
    event_pattern: str
    template_key: str
    recipients: Sequence[str]
    channels: Sequence[str]
    variables: Mapping[str, str]
    guild_path: str | None
    incident_path: str | None
    expires_after: timedelta | None
    is_active: bool
    created_by: str
    created_at: datetime
    updated_at: datetime

    def matches(self, event_type: str) -> bool:
        """Whether it applies to events of this type. `*` matches one part, at the end also several."""
        pattern, parts = self.event_pattern.split("."), event_type.split(".")
        if pattern[-1] == "*" and len(parts) > len(pattern):
            parts = parts[: len(pattern)]
        return len(pattern) == len(parts) and all(
            wanted in {"*", part} for wanted, part in zip(pattern, parts, strict=True)
        )


async def add_rule(tx: Tx, catalogue: TemplateCatalogue, draft: RuleDraft, actor: Actor) -> Rule:
    """Add a rule. It applies to events that are published from now on."""
    validate_rule(draft, catalogue)
    try:
        rule = await tx.one(Rule, Q.insert_rule, id=new_id(), by=actor.name, **rule_columns(draft))
    except UniqueViolation:
        raise Conflict(f"name: rule {draft.name} already exists") from None
    await record_action(tx, actor, "rule.added", str(rule.id), template=rule.template_key, events=rule.event_pattern)
    return rule


async def find_rule(tx: Tx, rule_id: UUID) -> Rule:
    return require_rule(await tx.maybe(Rule, Q.find_rule, id=rule_id), rule_id)


async def list_rules(tx: Tx, *, after: tuple[datetime, UUID] | None = None, limit: int = 50) -> list[Rule]:
    """Return a page of rules, the oldest first. `after` is the end of the previous page."""
    at, row = after or (None, None)
    return await tx.all(Rule, Q.list_rules, after=at, after_id=row, limit=limit)


async def list_active_rules(tx: Tx) -> list[Rule]:
    return await tx.all(Rule, Q.list_active_rules)


async def update_rule(
    tx: Tx, catalogue: TemplateCatalogue, rule_id: UUID, changes: Mapping[str, Any], actor: Actor
) -> Rule:
    """Change the given fields. The whole rule must be valid afterwards.

    Turning it off is always possible, also when its template no longer exists.
    """
    rule = require_rule(await tx.maybe(Rule, Q.lock_rule, id=rule_id), rule_id)
    columns: dict[str, Any] = {**rule_columns(rule), **changes}
    draft = RuleDraft(**columns)
    if draft.is_active or changes.keys() - {"is_active"}:
        validate_rule(draft, catalogue)
    try:
        updated = await tx.one(Rule, Q.update_rule, id=rule_id, **rule_columns(draft))
    except UniqueViolation:
        raise Conflict(f"name: rule {draft.name} already exists") from None
    await record_action(tx, actor, "rule.changed", str(rule_id), fields=sorted(changes))
    return updated


async def remove_rule(tx: Tx, rule_id: UUID, actor: Actor) -> None:
    """Delete a rule. Notifications it has requested stay."""
    if not await tx.run(Q.delete_rule, id=rule_id):
        raise NotFound(f"No such rule: {rule_id}")
    await record_action(tx, actor, "rule.removed", str(rule_id))


def require_rule(rule: Rule | None, rule_id: UUID) -> Rule:
    if rule is None:
        raise NotFound(f"No such rule: {rule_id}")
    return rule


def validate_rule(draft: RuleDraft, catalogue: TemplateCatalogue) -> None:
    """Check a rule by itself and against its template. Raise Invalid with all errors."""
    errors = [*rule_draft_errors(draft)]
    if draft.template_key in catalogue:
        errors += rule_template_errors(draft, catalogue.get(draft.template_key))
    else:
        errors.append(FieldError("template_key", f"no such template: {draft.template_key[:MAX_PATTERN_LENGTH]}"))
    if errors:
        raise Invalid(*errors)


def rule_draft_errors(draft: RuleDraft) -> Iterator[FieldError]:
    if not 0 < len(draft.name) <= MAX_NAME_LENGTH:
        yield FieldError("name", f"must have 1 to {MAX_NAME_LENGTH} characters")
    if len(draft.event_pattern) > MAX_PATTERN_LENGTH or not EVENT_PATTERN.fullmatch(draft.event_pattern):
        yield FieldError("event_pattern", "must be a pattern such as order.paid or order.*")
    if not 0 < len(draft.recipients) <= MAX_RECIPIENT_PATHS:
        yield FieldError("recipients", f"must be 1 to {MAX_RECIPIENT_PATHS} paths")
    if not draft.channels or len({*draft.channels}) < len(draft.channels):
        yield FieldError("channels", "must be one or more, without duplicates")
    if NotificationChannel.GUILD_AUDIT_CHANNEL in draft.channels and len(draft.channels) > 1:
        yield FieldError("channels", "guild_audit_channel cannot be combined: its recipients are channels, not people")
    paths = {f"variables.{name}": path for name, path in draft.variables.items()}
    paths |= {f"recipients[{index}]": path for index, path in enumerate(draft.recipients)}
    paths |= {name: path for name in ("guild_path", "incident_path") if (path := getattr(draft, name)) is not None}
    yield from (
        FieldError(name, "must be a path such as user.discord_id")
        for name, path in paths.items()
        if not is_payload_path(path)
    )
    if draft.expires_after is not None and draft.expires_after <= timedelta():
        yield FieldError("expires_after", "must be positive")
    if draft.expires_after is not None and draft.expires_after > MAX_EXPIRES_AFTER:
        yield FieldError("expires_after", "must be at most a year")


def rule_template_errors(draft: RuleDraft, template: Template) -> Iterator[FieldError]:
    """Check a rule against its template."""
    for channel in draft.channels:
        if channel not in template.texts:
            yield FieldError("channels", f"{template.key} has no text for {channel}")
    for name in draft.variables:
        if name not in template.variables:
            yield FieldError(f"variables.{name}", f"is not a variable of {template.key}")


def rule_columns(rule: RuleDraft | Rule) -> dict[str, Any]:
    """The columns of a rule that an operator writes."""
    return {field.name: getattr(rule, field.name) for field in fields(RuleDraft)} | {"variables": dict(rule.variables)}
