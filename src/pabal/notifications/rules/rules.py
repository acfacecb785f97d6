"""Rules: which events make which notices, for whom, and where the payload says what they need.

The table's own trigger subscribes the hub to what a rule is for, so a rule written in plain SQL works as well.
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
    """A rule to be. `variables` says where a template's variable is found; one it does not name has its own name."""

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
    """A rule as it stands."""

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
        """Whether it is for events of this type: * stands for one part, or at the end for the rest."""
        wanted, parts = self.event_pattern.split("."), event_type.split(".")
        if wanted[-1] == "*" and len(parts) > len(wanted):
            parts = parts[: len(wanted)]
        return len(wanted) == len(parts) and all(w in {"*", p} for w, p in zip(wanted, parts, strict=True))


async def add_rule(tx: Tx, catalogue: TemplateCatalogue, draft: RuleDraft, actor: Actor) -> Rule:
    """Add a rule: it is for what is published from now on."""
    validate_rule(draft, catalogue)
    try:
        made = await tx.one(Rule, Q.insert_rule, id=new_id(), by=actor.name, **rule_columns(draft))
    except UniqueViolation:
        raise Conflict(f"name: there is a rule {draft.name} already") from None
    await record_action(tx, actor, "rule.added", str(made.id), template=made.template_key, events=made.event_pattern)
    return made


async def find_rule(tx: Tx, rule_id: UUID) -> Rule:
    return require_rule(await tx.maybe(Rule, Q.find_rule, id=rule_id), rule_id)


async def list_rules(tx: Tx, *, after: tuple[datetime, UUID] | None = None, limit: int = 50) -> list[Rule]:
    """The oldest first; `after` where the page before ended."""
    at, row = after or (None, None)
    return await tx.all(Rule, Q.list_rules, after=at, after_id=row, limit=limit)


async def list_active_rules(tx: Tx) -> list[Rule]:
    return await tx.all(Rule, Q.list_active_rules)


async def update_rule(
    tx: Tx, catalogue: TemplateCatalogue, rule_id: UUID, changes: Mapping[str, Any], actor: Actor
) -> Rule:
    """Change what is named, from the next event on; the rule must make sense as a whole afterwards.

    To be switched off it need not: nobody could, once its template is gone.
    """
    rule = require_rule(await tx.maybe(Rule, Q.lock_rule, id=rule_id), rule_id)
    said: dict[str, Any] = {**rule_columns(rule), **changes}
    wanted = RuleDraft(**said)
    if wanted.is_active or changes.keys() - {"is_active"}:
        validate_rule(wanted, catalogue)
    try:
        changed = await tx.one(Rule, Q.update_rule, id=rule_id, **rule_columns(wanted))
    except UniqueViolation:
        raise Conflict(f"name: there is a rule {wanted.name} already") from None
    await record_action(tx, actor, "rule.changed", str(rule_id), fields=sorted(changes))
    return changed


async def remove_rule(tx: Tx, rule_id: UUID, actor: Actor) -> None:
    """Forget a rule. What it asked for stays asked for."""
    if not await tx.run(Q.delete_rule, id=rule_id):
        raise NotFound(f"there is no rule {rule_id}")
    await record_action(tx, actor, "rule.removed", str(rule_id))


def require_rule(rule: Rule | None, rule_id: UUID) -> Rule:
    if rule is None:
        raise NotFound(f"there is no rule {rule_id}")
    return rule


def validate_rule(draft: RuleDraft, catalogue: TemplateCatalogue) -> None:
    """See that a rule can do what it says, as far as anybody can tell before the first event."""
    mistakes = [*rule_draft_errors(draft)]
    if draft.template_key in catalogue:
        mistakes += rule_template_errors(draft, catalogue.get(draft.template_key))
    else:
        mistakes.append(FieldError("template_key", f"no such template: {draft.template_key[:MAX_PATTERN_LENGTH]}"))
    if mistakes:
        raise Invalid(*mistakes)


def rule_draft_errors(draft: RuleDraft) -> Iterator[FieldError]:
    if not 0 < len(draft.name) <= MAX_NAME_LENGTH:
        yield FieldError("name", f"has 1 to {MAX_NAME_LENGTH} characters")
    if len(draft.event_pattern) > MAX_PATTERN_LENGTH or not EVENT_PATTERN.fullmatch(draft.event_pattern):
        yield FieldError("event_pattern", "is not a pattern such as order.paid or order.*")
    if not 0 < len(draft.recipients) <= MAX_RECIPIENT_PATHS:
        yield FieldError("recipients", f"are 1 to {MAX_RECIPIENT_PATHS} paths")
    if not draft.channels or len({*draft.channels}) < len(draft.channels):
        yield FieldError("channels", "are one or more, each once")
    if NotificationChannel.GUILD_AUDIT_CHANNEL in draft.channels and len(draft.channels) > 1:
        yield FieldError("channels", "guild_audit_channel stands alone: its recipients are channels, not people")
    named = {**{f"variables.{name}": path for name, path in draft.variables.items()}}
    named |= {f"recipients[{place}]": path for place, path in enumerate(draft.recipients)}
    named |= {name: path for name in ("guild_path", "incident_path") if (path := getattr(draft, name)) is not None}
    yield from (
        FieldError(name, "is not a path such as user.discord_id")
        for name, path in named.items()
        if not is_payload_path(path)
    )
    if draft.expires_after is not None and draft.expires_after <= timedelta():
        yield FieldError("expires_after", "is longer than nothing")
    if draft.expires_after is not None and draft.expires_after > MAX_EXPIRES_AFTER:
        yield FieldError("expires_after", "is at most a year")


def rule_template_errors(draft: RuleDraft, template: Template) -> Iterator[FieldError]:
    """Where a rule and its template disagree."""
    for channel in draft.channels:
        if channel not in template.texts:
            yield FieldError("channels", f"{template.key} has no text for {channel}")
    for name in draft.variables:
        if name not in template.variables:
            yield FieldError(f"variables.{name}", f"is no variable of {template.key}")


def rule_columns(rule: RuleDraft | Rule) -> dict[str, Any]:
    """What a rule says, by the names of its columns."""
    return {each.name: getattr(rule, each.name) for each in fields(RuleDraft)} | {"variables": dict(rule.variables)}
