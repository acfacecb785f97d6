"""Rules: which events make which notices, for whom, and where the payload says what they need.

The table's own trigger subscribes the hub to what a rule is for, so a rule written in plain SQL works as well.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pabal.audit.record import did
from pabal.core.actor import Actor
from pabal.core.errors import Conflict, Invalid, Mistake, NotFound
from pabal.core.ids import new_id
from pabal.db.faults import Duplicate
from pabal.db.queries import beside
from pabal.db.tx import Tx
from pabal.notifications.catalogue import Catalogue
from pabal.notifications.paths import is_path
from pabal.notifications.plan import Channel
from pabal.notifications.template import Template

Q = beside(__file__)

PATTERN = re.compile(r"(\*|[a-z0-9_]+)(\.(\*|[a-z0-9_]+))*")
LONGEST_PATTERN = 128
LONGEST_NAME = 100
MOST_PATHS = 20
LONGEST_LIFE = timedelta(days=365)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
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

    def wants(self, event_type: str) -> bool:
        """Whether it is for events of this type: * stands for one part, or at the end for the rest."""
        wanted, parts = self.event_pattern.split("."), event_type.split(".")
        if wanted[-1] == "*" and len(parts) > len(wanted):
            parts = parts[: len(wanted)]
        return len(wanted) == len(parts) and all(w in {"*", p} for w, p in zip(wanted, parts, strict=True))


async def add(tx: Tx, catalogue: Catalogue, draft: Draft, by: Actor) -> Rule:
    """Add a rule: it is for what is published from now on."""
    see(draft, catalogue)
    try:
        made = await tx.one(Rule, Q.add, id=new_id(), by=by.name, **columns(draft))
    except Duplicate:
        raise Conflict(f"name: there is a rule {draft.name} already") from None
    await did(tx, by, "rule.added", str(made.id), template=made.template_key, events=made.event_pattern)
    return made


async def find(tx: Tx, row: UUID) -> Rule:
    return there(await tx.maybe(Rule, Q.find, id=row), row)


async def every(tx: Tx, *, after: tuple[datetime, UUID] | None = None, limit: int = 50) -> list[Rule]:
    """The oldest first; `after` where the page before ended."""
    at, row = after or (None, None)
    return await tx.all(Rule, Q.list, after=at, after_id=row, limit=limit)


async def active(tx: Tx) -> list[Rule]:
    return await tx.all(Rule, Q.active)


async def change(tx: Tx, catalogue: Catalogue, row: UUID, to: Mapping[str, Any], by: Actor) -> Rule:
    """Change what is named, from the next event on; the rule must make sense as a whole afterwards.

    To be switched off it need not: nobody could, once its template is gone.
    """
    rule = there(await tx.maybe(Rule, Q.hold, id=row), row)
    said: dict[str, Any] = {**columns(rule), **to}
    wanted = Draft(**said)
    if wanted.is_active or to.keys() - {"is_active"}:
        see(wanted, catalogue)
    try:
        changed = await tx.one(Rule, Q.change, id=row, **columns(wanted))
    except Duplicate:
        raise Conflict(f"name: there is a rule {wanted.name} already") from None
    await did(tx, by, "rule.changed", str(row), fields=sorted(to))
    return changed


async def remove(tx: Tx, row: UUID, by: Actor) -> None:
    """Forget a rule. What it asked for stays asked for."""
    if not await tx.run(Q.remove, id=row):
        raise NotFound(f"there is no rule {row}")
    await did(tx, by, "rule.removed", str(row))


def there(rule: Rule | None, row: UUID) -> Rule:
    if rule is None:
        raise NotFound(f"there is no rule {row}")
    return rule


def see(draft: Draft, catalogue: Catalogue) -> None:
    """See that a rule can do what it says, as far as anybody can tell before the first event."""
    mistakes = [*wrong(draft)]
    if draft.template_key in catalogue:
        mistakes += unfit(draft, catalogue.get(draft.template_key))
    else:
        mistakes.append(Mistake("template_key", f"there is no template {draft.template_key[:LONGEST_PATTERN]}"))
    if mistakes:
        raise Invalid(*mistakes)


def wrong(draft: Draft) -> Iterator[Mistake]:
    if not 0 < len(draft.name) <= LONGEST_NAME:
        yield Mistake("name", f"has 1 to {LONGEST_NAME} characters")
    if len(draft.event_pattern) > LONGEST_PATTERN or not PATTERN.fullmatch(draft.event_pattern):
        yield Mistake("event_pattern", "is not a pattern such as order.paid or order.*")
    if not 0 < len(draft.recipients) <= MOST_PATHS:
        yield Mistake("recipients", f"are 1 to {MOST_PATHS} paths")
    if not draft.channels or len({*draft.channels}) < len(draft.channels):
        yield Mistake("channels", "are one or more, each once")
    if Channel.GUILD_AUDIT_CHANNEL in draft.channels and len(draft.channels) > 1:
        yield Mistake("channels", "guild_audit_channel stands alone: its recipients are channels, not people")
    named = {**{f"variables.{name}": path for name, path in draft.variables.items()}}
    named |= {f"recipients[{place}]": path for place, path in enumerate(draft.recipients)}
    named |= {name: path for name in ("guild_path", "incident_path") if (path := getattr(draft, name)) is not None}
    yield from (
        Mistake(name, "is not a path such as user.discord_id") for name, path in named.items() if not is_path(path)
    )
    if draft.expires_after is not None and draft.expires_after <= timedelta():
        yield Mistake("expires_after", "is longer than nothing")
    if draft.expires_after is not None and draft.expires_after > LONGEST_LIFE:
        yield Mistake("expires_after", "is at most a year")


def unfit(draft: Draft, template: Template) -> Iterator[Mistake]:
    """Where a rule and its template disagree."""
    for channel in draft.channels:
        if channel not in template.texts:
            yield Mistake("channels", f"{template.key} has no text for {channel}")
    for name in draft.variables:
        if name not in template.variables:
            yield Mistake(f"variables.{name}", f"is no variable of {template.key}")


def columns(said: Draft | Rule) -> dict[str, Any]:
    """What a rule says, by the names of its columns."""
    return {each.name: getattr(said, each.name) for each in fields(Draft)} | {"variables": dict(said.variables)}
